"""The program: its options, one line for each error, and its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.authority import Authority, Certificate
from tools.stage import ROOT

pytestmark = pytest.mark.slow

ENV = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
GOOD = 'realm = "R"\nhost = "alpha"\nservers = ["nats://127.0.0.1:4222"]\n[[export]]\nkeys = "net/"\n'


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sbus_services.link.main", *arguments]
    return subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "link.toml"
    file.write_text(GOOD)
    return file


def test_a_good_configuration(config: Path) -> None:
    done = run("-C", str(config), "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "configuration is valid\n", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "realm: not set; write the name of the realm"),
        ('realm = "R"\nhost = "alpha"\n', "servers: no servers: name at least one"),
        (GOOD + '[[export]]\nkeys = "rpc/"\n', "export.2: invalid keys"),
        (GOOD.replace("nats:", "tls:"), "needs certificate, key and authority"),
        ('password_file = "/nonexistent/p"\n' + GOOD, "/nonexistent/p: cannot read it: No such file"),
        (GOOD + '[tls]\ncertificate = "/nonexistent/c"\nkey = "/nonexistent/k"\nauthority = "/nonexistent/a"\n', "cannot load certificate"),
        (GOOD + "[[imports]]\n", "unknown key"),
    ],
)
def test_a_mistake_is_one_line(config: Path, text: str, says: str) -> None:
    config.write_text(text)
    done = run("-C", str(config), "--check")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith("sbus-link: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def _tls(authority: Authority, signed: Certificate) -> str:
    direct = 'transport = "direct"\nlisten = "127.0.0.1:1"\n' + GOOD.replace("servers", "# servers")
    return f'{direct}[[peers]]\nhost = "beta"\n{authority.settings(signed)}'


@pytest.mark.parametrize("options", [("--check",), ()], ids=["check", "start"])
def test_a_certificate_of_another_host_and_an_unreadable_key_are_78(config: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    authority = Authority(tmp_path)
    config.write_text(_tls(authority, authority.sign("gamma")))
    done = run("-C", str(config), *options)
    assert (done.returncode, "gamma.pem: names gamma, not this host; make one for DNS:alpha" in done.stderr) == (78, True)
    signed = authority.sign("alpha")
    signed.key.unlink()
    config.write_text(_tls(authority, signed))
    done = run("-C", str(config), *options)
    assert (done.returncode, "alpha.key" in done.stderr) == (78, True)


@pytest.mark.parametrize("transport", ["nats", "direct"])
def test_a_check_finds_an_expired_certificate(config: Path, tmp_path: Path, transport: str) -> None:
    authority = Authority(tmp_path)
    signed = authority.sign_between("alpha", "20200101000000Z", "20210101000000Z")
    config.write_text(_tls(authority, signed) if transport == "direct" else GOOD + authority.settings(signed))
    done = run("-C", str(config), "--check")
    assert (done.returncode, "has expired" in done.stderr) == (78, True)
