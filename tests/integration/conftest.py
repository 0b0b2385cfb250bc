"""Real daemons for integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Chromium
from tests.support.c_programs import Actor, client_program
from tests.support.daemons import Daemon, StartDaemon, start_daemon
from tests.support.fdstore import Manager
from tests.support.program import Program
from tests.support.shared_bus import SharedBus
from tests.support.skips import require_program
from tests.support.users import User
from tools.stage import Stage


@pytest.fixture
def daemon(folder: Path, stage: Stage) -> Iterator[StartDaemon]:
    """Start daemons: see :class:`tests.support.daemons.StartDaemon`. Each must end with status 0, and without a traceback."""
    started: list[Daemon] = []

    def start(*options: str, config: str | None = None, user: User | None = None, env: dict[str, str] | None = None) -> Daemon:
        if config is not None:
            file = folder / f"bus{len(started)}.toml"
            file.write_text(config)
            options = ("-C", str(file), *options)
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
def own_bus(daemon: StartDaemon) -> Daemon:
    """A daemon of this test."""
    return daemon()


@pytest.fixture
def bus(request: pytest.FixtureRequest) -> Daemon:
    """One ready daemon: that of the module if its ``SHARES_BUS`` is true, otherwise one of this test."""
    shares = getattr(request.module, "SHARES_BUS", False)
    ready: Daemon = request.getfixturevalue("shared_bus" if shares else "own_bus")
    return ready


@pytest.fixture(scope="module")
def bus_configuration(request: pytest.FixtureRequest) -> str:
    """The configuration of ``shared_bus``: the ``BUS_CONFIGURATION`` of the module."""
    return str(getattr(request.module, "BUS_CONFIGURATION", ""))


@pytest.fixture(scope="module")
def module_bus(bus_configuration: str, stage: Stage) -> Iterator[SharedBus]:
    """The daemon behind ``shared_bus``."""
    with SharedBus(stage, bus_configuration) as shared:
        yield shared


@pytest.fixture
def shared_bus(module_bus: SharedBus) -> Iterator[Daemon]:
    """The bus that the tests of a module share, which has no connection when a test begins.

    To start one for each test takes 34 ms of processor time. A test may end it. One that reads its log, or depends on what
    was counted before, starts its own by ``daemon``.
    """
    daemon = module_bus.unused()
    yield daemon
    daemon.close_clients()


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    """A bus that is started, whose state a service manager keeps."""
    with Manager(folder) as made:
        made.start()
        yield made
        assert "Traceback" not in made.stderr, made.stderr
        assert "internal error in" not in made.stderr


@pytest.fixture
def program(folder: Path) -> Iterator[Program]:
    """The program as scripts start it."""
    made = Program(folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program whose connections an Actor uses."""
    return client_program("actor", tmp_path_factory.mktemp("c"))


@pytest.fixture
def caller(c_program: Path, bus: Daemon) -> Iterator[Actor]:
    """A connection of the C program for calls."""
    actor = Actor(c_program, bus.path)
    yield actor
    actor.close()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser for all tests of a module; each has a page with cookies and storage of its own."""
    require_program("chromium", "chromium")
    with Chromium("chromium", tmp_path_factory.mktemp("chromium")) as running:
        yield running
