"""The new program is checked while the bus runs, which is never blocked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sbusd.restart.program_check import ProgramCheck
from tests.support.switch_harness import SwitchHarness

pytestmark = pytest.mark.slow


def _result(harness: SwitchHarness, command: list[str], folder: str = "/") -> str:
    """Return the result of the check of a program."""
    check = ProgramCheck(harness.switch, command, folder)
    check.start()
    while (result := check.take_result()) is None:
        harness.switch.turn(30_000)
    assert check.take_result() is None
    check.close()
    return result


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("pass", ""),
        ("import sys; sys.exit(65)", ""),
        ("import sys; sys.exit(78)", "with status 78: no output"),
        ("import sys; sys.exit('sbusd: a key is wrong')", "with status 1: a key is wrong"),
        ("import os; os.kill(os.getpid(), 9)", "by signal 9: no output"),
        ("raise ImportError('no such module')", "no such module"),
        ("import sys; assert sys.argv[1:] == ['--check-config']", ""),
    ],
)
def test_the_exit_status_decides(harness: SwitchHarness, program: str, says: str) -> None:
    result = _result(harness, [sys.executable, "-c", program])
    assert says in result
    assert bool(result) == bool(says)
    assert result.isprintable()


def test_a_program_that_cannot_run_is_an_error(harness: SwitchHarness) -> None:
    assert "cannot run the new program" in _result(harness, ["/no/such/program"])
    assert "cannot run the new program" in _result(harness, [sys.executable], "/no/such/folder")


def test_a_second_check_stops_the_first(harness: SwitchHarness) -> None:
    check = ProgramCheck(harness.switch, [sys.executable, "-c", "import time; time.sleep(600)"], "/")
    check.start()
    check.start()
    check.close()
    assert check.take_result() is None


def test_an_old_result_is_not_that_of_a_later_check(harness: SwitchHarness, tmp_path: Path) -> None:
    program = "import pathlib, time; p = pathlib.Path('mark'); p.exists() and time.sleep(600); p.touch()"
    check = ProgramCheck(harness.switch, [sys.executable, "-c", program], str(tmp_path))
    check.start()
    while not (tmp_path / "mark").exists() or not harness.switch.turn(100):
        pass
    check.start()
    assert check.take_result() is None
    check.close()
