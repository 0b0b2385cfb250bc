"""The program: its options, one line for each error, and its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.stage import ROOT

pytestmark = pytest.mark.slow

ENV = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sbus_services.relay.main", *arguments]
    return subprocess.run(command, env=ENV | env, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "relay.toml"
    file.write_text('redis = "/nonexistent/redis.sock"\n')
    return file


def test_a_good_configuration(config: Path) -> None:
    options = ("--twin", "7", "--redis", "localhost:6379", "--substrate", "http://localhost/graphql", "--network", "dev")
    done = run("-C", str(config), "--check", *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "configuration is valid\n", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "twin: not set; write the number of this host, or use --twin ID"),
        ("twin = 1\n[[peers]]\ntwin = 1\n", "twin 1 is this host"),
        ('twin = 1\nredis = "http://x"\n', 'sbus-relay: redis = "http://x": not HOST:PORT'),
        ('twin = 1\nredis = "host:port"\n', "not HOST:PORT"),
        ('twin = 1\n[[peers]]\ntwin = 2\nkey_file = "/nonexistent/key"\n', "/nonexistent/key: cannot read the key: No such file"),
        (
            'twin = 1\n[tls]\ncertificate = "/nonexistent/c"\nkey = "/nonexistent/k"\nauthority = "/nonexistent/a"\n',
            "cannot load certificate",
        ),
        ("twin = 1\nretry = 1\n", "unknown key"),
    ],
)
def test_unexpected_error_is_logged_in_one_line(config: Path, text: str, says: str) -> None:
    config.write_text(text)
    done = run("-C", str(config), "--check")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith("sbus-relay: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--twin", "0"), ("--twin", "x"), ("--network", "moon"), ("--substrate", "ftp://x"), ("x",)])
def test_wrong_options_are_two(config: Path, arguments: tuple[str, ...]) -> None:
    done = run("-C", str(config), *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_missing_libraries_are_reported_with_their_packages(config: Path, tmp_path: Path) -> None:
    (tmp_path / "broken" / "redis").mkdir(parents=True)
    (tmp_path / "broken" / "redis" / "__init__.py").write_text("raise ModuleNotFoundError('redis', name='redis')")
    done = run("-C", str(config), "--twin", "1", PYTHONPATH=f"{tmp_path}/broken:{ROOT}")
    assert (done.returncode, done.stderr) == (78, "sbus-relay: redis is not installed; install it with: pip install 'sbusd[relay]'\n")
