"""Real daemons for integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser
from tests.support.daemons import Daemon, StartDaemon, start_daemon
from tests.support.program import Program
from tests.support.skips import require_program
from tests.support.users import User
from tools.stage import Stage


@pytest.fixture
def daemon(folder: Path, stage: Stage) -> Iterator[StartDaemon]:
    """Start daemons: see :class:`tests.support.daemons.StartDaemon`. Each must end with status 0, and without a traceback."""
    started: list[Daemon] = []

    def start(*options: str, user: User | None = None, env: dict[str, str] | None = None) -> Daemon:
        made = start_daemon(folder, len(started), options, stage=stage, user=user, env=env)
        started.append(made)
        return made

    yield start
    problems: list[str] = []
    for each in reversed(started):
        try:
            each.check()
        except AssertionError as problem:
            problems.append(str(problem))
    assert not problems, "\n".join(problems)


@pytest.fixture
def bus(daemon: StartDaemon) -> Daemon:
    """One ready daemon."""
    return daemon()


@pytest.fixture
def program(folder: Path) -> Iterator[Program]:
    """The program as scripts start it."""
    made = Program(folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser, which takes a second to start."""
    require_program("chromium", "chromium")
    made = Browser("chromium", tmp_path_factory.mktemp("chromium"))
    yield made
    made.end()
