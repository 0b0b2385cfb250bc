"""A bus, and a store with some streams, for tests of several users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemons import Daemon
from tests.support.store_programs import BUS_RIGHTS, StoreCaller, StoreProgram
from tests.support.users import FIRST, SECOND, User

RULES = f"""
[[policy]]
keys = "private/"
publish = "allow"
subscribe = "allow"
users = [{FIRST.uid}, 0]

[[policy]]
keys = "private/"
publish = "deny"
subscribe = "deny"
"""

STREAMS = f"""
[[stream]]
name = "state"
keys = ["net/", "sensor/"]
last = 1
on_subscribe = true

[[stream]]
name = "log"
keys = ["log/"]
max_bytes_per_user = "1MiB"

[[stream]]
name = "private"
keys = ["private/"]

[[stream]]
name = "mail"
keys = ["mail/"]
[[queue]]
name = "mail"
stream = "mail"
tries = 3
backoff = ["10ms"]
dead = "dead/mail/"

[[stream]]
name = "own"
keys = ["own/"]
[[queue]]
name = "own"
stream = "own"
users = [{FIRST.uid}]

[[stream]]
name = "dead"
keys = ["dead/"]

[limits]
waiting_calls = 4
readers = 4
leases = 8
pending_bytes = "1MiB"
"""

MakeCaller = Callable[[User | None], StoreCaller]


@pytest.fixture(scope="module")
def bus_configuration() -> str:
    """The configuration of the bus."""
    return BUS_RIGHTS + RULES


@pytest.fixture
def bus(shared_bus: Daemon) -> Daemon:
    """A bus with rules: only the first user may use private/. Each test has a store of its own."""
    return shared_bus


@pytest.fixture
def store(bus: Daemon, tmp_path: Path) -> Iterator[StoreProgram]:
    """A store that runs."""
    with StoreProgram(tmp_path, bus.path, STREAMS) as made:
        yield made


@pytest.fixture
def caller(bus: Daemon) -> Iterator[MakeCaller]:
    """Make callers of users; None is the test itself, root."""
    with ExitStack() as stack:
        yield lambda user: stack.enter_context(StoreCaller(bus.path, user))


@pytest.fixture
def alice(store: StoreProgram, caller: MakeCaller, needs_root: None) -> StoreCaller:
    """The first user."""
    return caller(FIRST)


@pytest.fixture
def mallory(store: StoreProgram, caller: MakeCaller, needs_root: None) -> StoreCaller:
    """The second user."""
    return caller(SECOND)
