"""The program: its options, one line for each error, and its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.stage import ROOT

ENV = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
GOOD = 'realm = "R"\nhost = "alpha"\nservers = ["nats://127.0.0.1:4222"]\n[[export]]\nkeys = "net/"\n'


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sbusd.link.main", *arguments]
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


def test_a_missing_file_is_78_and_a_wrong_option_2(tmp_path: Path) -> None:
    assert run("-C", str(tmp_path / "none.toml")).returncode == 78
    done = run("--chek")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
