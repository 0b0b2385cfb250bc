"""Calls of systemctl(1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sbusd.trigger import service_manager_calls
from sbusd.trigger.service_manager_calls import ServiceManagerCalls

pytestmark = pytest.mark.slow


def program(folder: Path, script: str) -> str:
    """Return the path of a program."""
    path = folder / "systemctl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_name_is_never_an_option(tmp_path: Path) -> None:
    made = program(tmp_path, f'printf "%s\\n" "$@" >{tmp_path}/words')
    assert asyncio.run(ServiceManagerCalls(is_user=True, program=made).run("reload", "--force", waits=False)) == ""
    words = (tmp_path / "words").read_text().split()
    assert words == ["--user", "--no-ask-password", "--no-pager", "--no-block", "reload-or-restart", "--", "--force"]


def test_an_error_is_one_bounded_printable_line(tmp_path: Path) -> None:
    made = program(tmp_path, "printf 'Job failed.\\n\\033[31mSee log.' >&2; head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1")
    error = asyncio.run(ServiceManagerCalls(program=made).run("start", "x.service"))
    assert error.startswith("Job failed. \\x1b[31mSee log.")
    assert len(error) < 400


def test_without_a_program_the_error_names_it(tmp_path: Path) -> None:
    assert asyncio.run(ServiceManagerCalls(program=program(tmp_path, "exit 3")).run("start", "x.service")).endswith("exited with status 3")
    missing = str(tmp_path / "missing")
    assert asyncio.run(ServiceManagerCalls(program=missing).run("start", "x")) == f"cannot run {missing}: No such file or directory"


def test_the_state_of_a_unit(tmp_path: Path) -> None:
    made = program(tmp_path, f'printf "%s\\n" "$@" >{tmp_path}/words; printf "Result=exit-code\\nActiveState=failed\\n"')
    assert asyncio.run(ServiceManagerCalls(program=made).state("--x.service")) == ("failed", "exit-code")
    assert (tmp_path / "words").read_text().split() == ["--no-pager", "show", "--property=ActiveState,Result", "--", "--x.service"]
    assert asyncio.run(ServiceManagerCalls(program=program(tmp_path, "exit 1")).state("x")) == ("unknown", "unknown")
    assert asyncio.run(ServiceManagerCalls(program=str(tmp_path / "missing")).state("x")) == ("unknown", "unknown")


def test_a_systemctl_that_hangs_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_manager_calls, "STATE_SECONDS", 0.1)
    made = program(tmp_path, "exec sleep 600")
    assert asyncio.run(ServiceManagerCalls(program=made).state("x")) == ("unknown", "unknown")
