"""The program as a whole: what reaches the shell."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.minibus import MiniBus

pytestmark = pytest.mark.slow

_PROGRAM = [sys.executable, "-m", "sbusctl.main"]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_PROGRAM, *arguments], capture_output=True, text=True, check=False)


def test_no_arguments_is_the_help_and_a_wrong_use() -> None:
    done = _run()
    assert done.returncode == 2
    assert "Usage: sbusctl" in done.stdout + done.stderr


def test_a_bug_is_one_line_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sbusctl import application

    def fail() -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(application, "application", fail)
    with pytest.raises(SystemExit) as ended:
        application.run()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said == "sbusctl: internal error, please report it (python3 -X dev prints a traceback): ZeroDivisionError: by\\nzero\n"


def test_ctrl_c_while_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    from sbusctl import application

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(application, "application", interrupt)
    with pytest.raises(SystemExit) as ended:
        application.run()
    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("line", "status", "error"),
    [
        ("--json version", 0, ""),
        ("version --json", 0, ""),
        ("--json sub -n 1", 2, "sbusctl: sub: missing argument PATTERN"),
        ("--json short version", 2, "sbusctl: unknown command 'short'; write the style of JSON as --json=short"),
        ("--json=x version", 2, "sbusctl: invalid value for --json: 'x' is not one of 'short', 'pretty', 'off'"),
    ],
)
def test_json_with_and_without_a_style(tmp_path: Path, line: str, status: int, error: str) -> None:
    done = _run("-a", f"{tmp_path}/none", *line.split())
    assert (done.returncode, (done.stderr.splitlines() or [""])[0]) == (status, error)
    assert done.stdout.startswith('{"sbusctl":') == (status == 0)


def _shell(address: str, words: str) -> subprocess.CompletedProcess[str]:
    script = f"exec '{sys.executable}' -m sbusctl.main -a '{address}' {words}"
    return subprocess.run(["/bin/sh", "-c", script], check=False, timeout=60, capture_output=True, text=True)


def test_standard_descriptors_that_are_closed_are_not_reused(tmp_path: Path) -> None:
    with contextlib.closing(MiniBus(tmp_path / "bus")) as bus:
        done = _shell(bus.address, "sub --timeout 0 a <&- 2>&-")
        assert (done.returncode, done.stdout) == (0, "")
        assert _shell(bus.address, "pub a b <&- >&- 2>&-").returncode == 0, "it neither reads nor prints"


@pytest.mark.parametrize("words", ["version", "--help", "sub --help"])
def test_what_a_closed_standard_output_does_not_get_is_an_error(tmp_path: Path, words: str) -> None:
    done = _shell(f"{tmp_path}/none", f"{words} >&-")
    assert (done.returncode, done.stderr) == (1, "sbusctl: cannot write to standard output: Bad file descriptor\n")


@pytest.mark.parametrize("words", ["pub k -", "pub k -l", "pub k -l -0", "pub k --blob -", "call c -", "store put k -"])
def test_a_closed_standard_input_is_not_an_empty_payload(tmp_path: Path, words: str) -> None:
    with contextlib.closing(MiniBus(tmp_path / "bus")) as bus:
        done = _shell(bus.address, f"{words} <&-")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot read standard input: Bad file descriptor" in done.stderr


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["sub", "--help"], ["completion", "bash"]])
def test_a_full_disk_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        env = os.environ | {"SBUS_ADDRESS": f"{tmp_path}/none"}
        done = subprocess.run([*_PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert done.returncode == 1
    assert done.stderr == "sbusctl: cannot write to standard output: No space left on device\n"


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    with contextlib.closing(MiniBus(tmp_path / "bus")) as bus:
        done = _run("-a", bus.address, "sub", "--timeout", "0.1", "x.>")
    (warning,) = done.stderr.splitlines()
    assert warning == "sbusctl: warning: 'x.>' looks like a pattern of NATS, and matches only itself here; write 'x/'"
