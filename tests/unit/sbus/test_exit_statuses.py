"""The names of the statuses with which systemd reports that it could not start a program."""

from __future__ import annotations

import subprocess

import pytest

from sbus.exit_statuses import STEPS, failed_step, named
from tests.support.skips import require_program


def test_each_status_has_its_name_and_step() -> None:
    assert named("226") == "226/NAMESPACE"
    assert failed_step("217") == "systemd could not determine or change the user (217/USER)"
    assert failed_step("203") == "systemd could not execute the program: it is missing, or not executable (203/EXEC)"


@pytest.mark.parametrize("status", ["0", "1", "78", "255", "", "unknown", "²", "9" * 30])
def test_other_statuses_are_those_of_the_program(status: str) -> None:
    assert (named(status), failed_step(status)) == (status, "")


@pytest.mark.slow
def test_the_names_are_those_of_systemd() -> None:
    require_program("systemd-analyze", "systemd")
    shown = subprocess.run(["systemd-analyze", "exit-status"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in shown.splitlines()]
    known = {int(status): name for name, status, kind in rows[1:] if kind == "systemd" and 200 <= int(status) <= 243}
    assert {status: name for status, (name, _) in STEPS.items()} == known
