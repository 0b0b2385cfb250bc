"""The demonstration that ``make run`` gives: it ends well, leaves nothing behind, and fails when something is not as it says."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.demo.narrator import DemoError, Narrator
from tools.demo.people import RAW_IDS, Person
from tools.demo.scenes import show
from tools.stage import ROOT, Stage

pytestmark = pytest.mark.usefixtures("needs_root", "needs_systemd_socket_activate", "needs_namespaces")

PEOPLE = (Person("first", 61_021, 61_021), Person("second", 61_022, 61_022))


def _traces() -> set[str]:
    """Return what a demonstration makes and must not leave: users, namespaces, folders."""
    users = {entry.pw_name for entry in pwd.getpwall() if entry.pw_name in RAW_IDS}
    folders = {str(path) for path in Path("/tmp").glob("sbus-*/sbus.socket")}
    namespaces = Path("/run/netns")
    return users | folders | ({path.name for path in namespaces.glob("sbus-demo-*")} if namespaces.is_dir() else set())


def test_demonstration_ends_well_and_leaves_nothing_behind() -> None:
    before = _traces()
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), "TERM": os.environ.get("TERM", "dumb")}
    done = subprocess.run([sys.executable, "-m", "tools.demo"], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for said in (
        "EACCES",
        "9 m/s from the north",
        "for your eyes only",
        '"event":"new"',
        '"event":"remove"',
        "Everything happened as said",
    ):
        assert said in done.stdout
    assert _traces() <= before


@dataclass(frozen=True, slots=True)
class BrokenStage(Stage):
    """A stage on which one program does something else."""

    broken: str = ""
    instead: str = ""

    def program(self, name: str, *arguments: str) -> list[str]:
        """Return the command of the program, or of what is run instead of the broken one."""
        # slots=True makes the class anew, which plain super() would not notice before Python 3.14.
        return [self.instead] if name == self.broken else Stage.program(self, name, *arguments)


@pytest.mark.parametrize(
    ("broken", "instead", "reason"),
    [
        ("sbusctl", "true", "first is group 61021 and user 61021, but the bus says ''"),
        ("sbusctl", "false", "it ended with status 1; it should have been 0"),
        ("sbusd", "false", "it ended with status 1"),
        ("sbus-feed", "false", "that program has ended, with status 1"),
    ],
)
def test_demonstration_fails_when_something_does_not_happen(stage: Stage, folder: Path, broken: str, instead: str, reason: str) -> None:
    made = BrokenStage(stage.python, stage.env, stage.folder, broken, instead)
    with pytest.raises(DemoError, match=reason):
        show(made, folder, Narrator(), PEOPLE)
    assert not (Path("/run/netns") / f"sbus-demo-{os.getpid()}").exists()
