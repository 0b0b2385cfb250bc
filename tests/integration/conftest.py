"""Real daemons for integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, StartDaemon, start_daemon
from tests.support.program import Program
from tests.support.users import User
from tools.stage import Stage


@pytest.fixture(params=["compiled", "reference"])
def switch_name(request: pytest.FixtureRequest) -> str:
    """Each of the two switches: a test that asks for this runs with both."""
    name: str = request.param
    return name


@pytest.fixture
def daemon(folder: Path, stage: Stage) -> Iterator[StartDaemon]:
    """Start daemons: see :class:`tests.support.daemons.StartDaemon`. Each must end with status 0, and without a traceback."""
    started: list[Daemon] = []

    def start(*options: str, switch: str = "compiled", user: User | None = None, env: dict[str, str] | None = None) -> Daemon:
        made = start_daemon(folder, len(started), options, switch=switch, stage=stage, user=user, env=env)
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
    """One ready daemon with the compiled switch."""
    return daemon()


@pytest.fixture
def each_bus(daemon: StartDaemon, switch_name: str) -> Daemon:
    """One ready daemon, once with each switch."""
    return daemon(switch=switch_name)


@pytest.fixture
def program(folder: Path) -> Iterator[Program]:
    """The program as scripts start it."""
    made = Program(folder)
    yield made
    made.close()
