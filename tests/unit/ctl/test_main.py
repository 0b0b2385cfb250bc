"""The program as a whole: what reaches the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = [sys.executable, "-m", "sbusd.ctl.main"]


def _run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_PROGRAM, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})


def test_no_arguments_is_the_help_and_a_wrong_use() -> None:
    done = _run()
    assert done.returncode == 2
    assert "Usage: sbusctl" in done.stdout + done.stderr


def test_a_bug_is_one_line_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sbusd.ctl import main

    def fail() -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(main, "application", fail)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said == "sbusctl: internal error, please report it (python3 -X dev prints a traceback): ZeroDivisionError: by\\nzero\n"


def test_ctrl_c_while_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    from sbusd.ctl import main

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "application", interrupt)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 130


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_shown_and_installed_for_the_calling_shell(tmp_path: Path, shell: str) -> None:
    # typer's own switch to name the shell as the option's value, where a test has no shell around it.
    env = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = _run("--show-completion", shell, env=env)
    assert shown.returncode == 0
    assert "_SBUSCTL_COMPLETE" in shown.stdout
    installed = _run("--install-completion", shell, env=env)
    assert installed.returncode == 0
    written = [path for path in tmp_path.rglob("*sbusctl*") if path.is_file()]
    assert [path.read_text().strip() for path in written] == [shown.stdout.strip()]


def test_bash_completes_with_the_printed_script(tmp_path: Path) -> None:
    program = tmp_path / "sbusctl"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m sbusd.ctl.main \"$@\"\n")
    program.chmod(0o755)
    # typer finds the shell among the ancestors of the process; the true at the end keeps bash from becoming sbusctl.
    script = (
        'eval "$(sbusctl --show-completion; true)"; COMP_WORDS=(sbusctl conn); COMP_CWORD=1\n'
        'complete -p sbusctl; _sbusctl_completion sbusctl; echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines() == ["complete -o default -F _sbusctl_completion sbusctl", "connections"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("sbusctl c", {"call", "connections"}),
        ("sbusctl --sys", {"--system"}),
        ("sbusctl sub --ti", {"--timeout"}),
        ("sbusctl stats --use", {"--user"}),
        ("sbusctl stats --json ", {"short", "pretty", "off"}),
    ],
)
def test_bash_completes(words: str, expected: set[str]) -> None:
    count = words.count(" ")
    done = _run(env={"_SBUSCTL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)})
    assert done.returncode == 0
    assert set(done.stdout.split()) == expected


def test_standard_descriptors_that_are_closed_are_not_reused(tmp_path: Path) -> None:
    script = f"exec '{sys.executable}' -m sbusd.ctl.main -a '{tmp_path}/none' version <&- >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", script], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["sub", "--help"], ["--show-completion", "bash"]])
def test_a_full_disk_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [*_PROGRAM, "-a", f"{tmp_path}/none", *arguments]
        env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert done.returncode == 1
    assert done.stderr.startswith("sbusctl: ")
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1
