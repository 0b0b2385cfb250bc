"""The program that is to take the place is examined beside the bus, which is never held up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sbusd.restart.program_check import ProgramCheck
from tests.support.world import World


def _verdict(world: World, command: list[str], folder: str = "/") -> str:
    """Return what is said of a program, once it has ended."""
    successor = ProgramCheck(world.switch, command, folder)
    successor.start()
    while (verdict := successor.take_result()) is None:
        world.switch.turn(30_000)
    assert successor.take_result() is None
    successor.close()
    return verdict


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
def test_how_it_ends_decides(world: World, program: str, says: str) -> None:
    verdict = _verdict(world, [sys.executable, "-c", program])
    assert says in verdict
    assert bool(verdict) == bool(says)
    assert verdict.isprintable()


def test_what_cannot_be_run_is_told(world: World) -> None:
    assert "cannot run the new program" in _verdict(world, ["/no/such/program"])
    assert "cannot run the new program" in _verdict(world, [sys.executable], "/no/such/folder")


def test_to_ask_again_ends_the_first_examination(world: World) -> None:
    successor = ProgramCheck(world.switch, [sys.executable, "-c", "import time; time.sleep(600)"], "/")
    successor.start()
    successor.start()
    successor.close()
    assert successor.take_result() is None


def test_a_verdict_that_nobody_took_is_not_that_of_a_later_examination(world: World, tmp_path: Path) -> None:
    program = "import pathlib, time; p = pathlib.Path('mark'); p.exists() and time.sleep(600); p.touch()"
    successor = ProgramCheck(world.switch, [sys.executable, "-c", program], str(tmp_path))
    successor.start()
    while not (tmp_path / "mark").exists() or not world.switch.turn(100):
        pass
    successor.start()
    assert successor.take_result() is None
    successor.close()
