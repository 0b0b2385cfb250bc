"""Units that are known at once, later, too late or never."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sbus.protocol.credentials import Credentials
from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_programs.systemd.processes import Placement, placement_of
from sbusd.broker import units
from sbusd.broker.roster import Client, Roster
from sbusd.broker.units import MAX_IN_FLIGHT, MAX_KNOWN, MAX_USERS, Report, Units
from tests.support.group_reader import GroupReader, replace_reader
from tests.support.switch_harness import SwitchHarness

ALICE, BOB = 1_000, 1_001
WEB = Placement("web.service", "system.slice")
FIRST = 100_000
"""The first id that subuid(5) gives to ALICE."""

IDS = ChargedUsers(SubordinateIds([SubordinateRange(FIRST, 65_536, ALICE)]))
SECONDS = 30.0
"""The timeout of everything; a test that passes takes far less."""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupReader]:
    """The replaced thread."""
    made = replace_reader(monkeypatch)
    yield made
    made.close()


class Lookup:
    """Units with a record of their reports."""

    def __init__(self, harness: SwitchHarness) -> None:
        self.switch = harness.switch
        self.found: list[tuple[int, Placement | None]] = []
        self.late: list[int] = []
        self.failed: list[int] = []
        self.roster = Roster(frozenset())
        self.units = Units(harness.switch, Report(self._note_found, self.late.append, self.failed.append), self.roster, charged=IDS.of)
        self._sockets: list[socket.socket] = []

    def find(self, connection: int, uid: int = ALICE) -> Placement | None:
        """Ask about a connection of this process."""
        client = self._connected(connection, uid)
        return self.units.find(connection, client.fd, client.credentials)

    def defer(self, connection: int, *, awaits_unit: bool = True) -> None:
        """Connect this process as a client whose unit is not needed now."""
        self._connected(connection, ALICE).awaits_unit = awaits_unit
        if not self.units.is_looking:
            self.units.defer()

    def leave(self, connection: int) -> None:
        """Disconnect a client."""
        self.roster.remove(connection)
        self.units.awaited.pop(connection, None)

    def turn_until(self, is_done: Callable[[], bool]) -> None:
        """Let the bus work until *is_done*, or for a long time."""
        end = time.monotonic() + SECONDS
        while not is_done() and time.monotonic() < end:
            self.switch.turn(200)

    def _connected(self, connection: int, uid: int) -> Client:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets += [own, other]
        return self.roster.add(connection, Credentials(os.getpid(), uid, uid), 0.0, own.fileno())

    def _note_found(self, connection: int, placement: Placement | None) -> None:
        self.found.append((connection, placement))
        self.roster[connection].awaits_unit = False

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self.units.close()


@pytest.fixture
def lookup(harness: SwitchHarness) -> Iterator[Lookup]:
    """Units without clients."""
    made = Lookup(harness)
    yield made
    made.close()


def test_the_unit_of_this_process_is_read(lookup: Lookup) -> None:
    expected = placement_of(Path("/proc/self/cgroup").read_text())
    assert lookup.find(1) is None
    lookup.units.wait(1, time.monotonic() + SECONDS)
    assert lookup.found == [(1, expected)]
    assert not lookup.units.awaited


def test_a_control_group_that_was_read_is_known_at_once(lookup: Lookup, reader: GroupReader) -> None:
    reader.number = 77
    assert lookup.find(1) is None
    reader.answer(1, number=77)
    lookup.units.drain()
    assert lookup.found == [(1, WEB)]
    assert lookup.find(2) == WEB
    assert 2 not in lookup.units.awaited
    # Those of another user are kept apart, and those of the same user in another control group.
    assert lookup.find(3, BOB) is None
    reader.number = 78
    assert lookup.find(4) is None
    assert reader.requests() == [1, 3, 4]


def test_an_unknown_place_is_known_as_unknown(lookup: Lookup, reader: GroupReader) -> None:
    reader.number = 77
    lookup.find(1)
    reader.answer(1, "/", number=77)
    lookup.units.drain()
    assert lookup.found == [(1, None)]
    assert lookup.find(2) is None
    assert not lookup.units.awaited


def test_without_numbers_each_connection_is_read(lookup: Lookup, reader: GroupReader) -> None:
    for connection in (1, 2):
        assert lookup.find(connection) is None
        reader.answer(connection)
    lookup.units.drain()
    assert lookup.found == [(1, WEB), (2, WEB)]


def test_a_kernel_without_pidfds_of_peers_is_not_asked_further(lookup: Lookup, reader: GroupReader) -> None:
    reader.number = -1
    assert lookup.find(1) is None
    assert not lookup.units.awaited
    assert reader.requests() == []
    assert lookup.found == []


@pytest.mark.parametrize(("error", "failed"), [(ProcessLookupError(), []), (OSError(errno.EMFILE, "no descriptor"), [errno.EMFILE])])
def test_a_process_without_a_pidfd_is_unknown(
    lookup: Lookup, reader: GroupReader, monkeypatch: pytest.MonkeyPatch, error: OSError, failed: list[int]
) -> None:
    def pidfd_of(_fd: int) -> int:
        raise error

    monkeypatch.setattr(units, "pidfd_of", pidfd_of)
    assert lookup.find(1) is None
    assert not lookup.units.awaited
    assert (lookup.found, lookup.failed) == ([], failed)
    monkeypatch.undo()
    # The next connection is another try.
    assert reader.requests() == []


def test_a_failure_is_reported_and_not_kept(lookup: Lookup, reader: GroupReader) -> None:
    reader.number = 77
    lookup.find(1)
    reader.answer(1, number=77, failure=errno.EACCES)
    lookup.units.drain()
    assert (lookup.found, lookup.failed) == ([(1, None)], [errno.EACCES])
    lookup.find(2)
    assert reader.requests() == [1, 2]


def test_few_requests_are_in_flight_and_users_take_turns(lookup: Lookup, reader: GroupReader) -> None:
    for connection in range(1, 101):
        lookup.find(connection, ALICE)
    lookup.find(200, BOB)
    lookup.find(201, BOB)
    asked = reader.requests()
    assert asked == list(range(1, MAX_IN_FLIGHT + 1))
    for connection in asked[:4]:
        reader.answer(connection)
    lookup.units.drain()
    # A user with many connections delays only itself.
    assert reader.requests() == [17, 200, 18, 201]


def test_the_ids_of_a_user_have_the_turns_of_one(lookup: Lookup, reader: GroupReader) -> None:
    for connection in range(1, 101):
        lookup.find(connection, FIRST + connection)
    lookup.find(200, BOB)
    asked = reader.requests()
    assert asked == list(range(1, MAX_IN_FLIGHT + 1))
    for connection in asked[:2]:
        reader.answer(connection)
    lookup.units.drain()
    assert reader.requests() == [17, 200]


def test_a_forgotten_connection_is_neither_read_nor_reported(lookup: Lookup, reader: GroupReader) -> None:
    for connection in range(1, 30):
        lookup.find(connection)
    for connection in (1, 20):
        lookup.leave(connection)
    asked = reader.requests()
    while asked:
        reader.answer(asked.pop(0))
        lookup.units.drain()
        asked += reader.requests()
    assert [connection for connection, _ in lookup.found] == [each for each in range(1, 30) if each not in (1, 20)]


def test_a_connection_that_waits_too_long_is_reported_once(harness: SwitchHarness, reader: GroupReader) -> None:
    late: list[int] = []
    found: list[tuple[int, Placement | None]] = []
    looked = Units(
        harness.switch, Report(lambda *each: found.append(each), late.append, lambda _errno: None), Roster(frozenset()), wait_seconds=0.02
    )
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        for connection in (1, 2, 3):
            looked.find(connection, own.fileno(), Credentials(os.getpid(), ALICE, ALICE))
        reader.answer(2)
        looked.drain()  # before any turn, in which the time may be over already
        end = time.monotonic() + SECONDS
        while late != [1, 3] and time.monotonic() < end:
            harness.switch.turn(100)
        reader.answer(1)
        harness.switch.turn(1_000)
        assert (late, found) == ([1, 3], [(2, WEB), (1, WEB)])
    looked.close()


def test_units_that_are_not_needed_now_are_requested_in_small_steps(lookup: Lookup, reader: GroupReader) -> None:
    """A burst of connections must not delay the messages of others."""
    for connection in range(1, 101):
        lookup.defer(connection)
    for connection in range(1, 101, 2):
        lookup.leave(connection)
    asked: list[int] = []

    def work() -> bool:
        found = reader.requests()
        assert len(found) <= MAX_IN_FLIGHT
        asked.extend(found)
        for connection in found:
            reader.answer(connection, number=7)
        return len(lookup.found) == 50

    lookup.turn_until(work)
    assert asked == list(range(2, 101, 2))
    assert lookup.found == [(connection, WEB) for connection in asked]


def test_a_deferred_unit_that_is_known_by_then_is_not_requested(lookup: Lookup, reader: GroupReader) -> None:
    reader.number = 77
    lookup.defer(1)
    lookup.find(2)
    assert reader.requests() == [2]
    reader.answer(2, number=77)
    lookup.turn_until(lambda: len(lookup.found) == 2)
    assert lookup.found == [(2, WEB), (1, WEB)]
    assert reader.requests() == []


def _has_found(lookup: Lookup, count: int) -> bool:
    return len(lookup.found) == count


def test_clients_that_connect_later_are_looked_at_too_and_then_nothing_is_due(lookup: Lookup, reader: GroupReader) -> None:
    reader.number = -1
    for number, connection in enumerate((1, 5, 9), 1):
        lookup.defer(connection)
        lookup.turn_until(partial(_has_found, lookup, number))
    lookup.turn_until(lambda: not lookup.units.is_looking)
    assert lookup.found == [(1, None), (5, None), (9, None)]
    lookup.defer(12)
    lookup.leave(12)
    lookup.turn_until(lambda: not lookup.units.is_looking)
    assert len(lookup.found) == 3


def test_a_crowd_of_clients_is_looked_at_in_steps(lookup: Lookup, reader: GroupReader) -> None:
    """Most of them do not wait for their unit."""
    reader.number = -1
    waiting = [connection for connection in range(1, 700) if connection % 100 == 50 or connection > 650]
    for connection in range(1, 700):
        lookup.defer(connection, awaits_unit=connection in waiting)
    steps: list[int] = []
    while lookup.units.is_looking:
        before = len(lookup.found)
        lookup.switch.turn(200)
        steps.append(len(lookup.found) - before)
    assert [connection for connection, _ in lookup.found] == waiting
    assert max(steps) == MAX_IN_FLIGHT


def test_a_client_that_is_read_already_is_not_looked_up_again(lookup: Lookup, reader: GroupReader) -> None:
    lookup.defer(1)
    lookup.turn_until(lambda: 1 in lookup.units.awaited)
    lookup.defer(2)
    lookup.turn_until(lambda: 2 in lookup.units.awaited)
    lookup.turn_until(lambda: not lookup.units.is_looking)
    assert reader.requests() == [1, 2]


def test_paths_are_kept_for_each_user_apart(lookup: Lookup, reader: GroupReader) -> None:
    def learn(connection: int, uid: int, number: int) -> None:
        reader.number = number
        lookup.find(connection, uid)
        reader.requests()
        reader.answer(connection, number=number)
        lookup.units.drain()

    learn(1, BOB, 5)
    for number in range(MAX_KNOWN + 1):
        learn(100 + number, ALICE, 1_000 + number)
    reader.number = 1_000
    assert lookup.find(2, ALICE) is None, "the oldest of too many is removed"
    reader.number = 5
    assert lookup.find(3, BOB) == WEB
    for uid in range(2_000, 2_000 + MAX_USERS):
        learn(uid, uid, 9)
    reader.number = 5
    assert lookup.find(4, BOB) is None, "the user that was absent for the longest time is removed"


def test_the_ids_of_a_user_keep_the_paths_of_one(lookup: Lookup, reader: GroupReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_USERS", 3)
    for connection, uid in enumerate((BOB, *range(FIRST, FIRST + 5)), 1):
        reader.number = connection
        lookup.find(connection, uid)
        reader.requests()
        reader.answer(connection, number=connection)
        lookup.units.drain()
    reader.number = 1
    assert lookup.find(10, BOB) == WEB


def test_a_thread_that_has_ended_leaves_nobody_waiting(lookup: Lookup, reader: GroupReader) -> None:
    for connection in range(1, 30):
        lookup.find(connection)
    reader.close()
    lookup.units.drain()
    assert lookup.found == [(connection, None) for connection in range(1, 30)]
    # The next request starts another thread.
    lookup.find(50)
    assert reader.requests() == [50]
    reader.answer(50)
    lookup.units.drain()
    assert lookup.found[-1] == (50, WEB)


def test_without_a_thread_the_unit_is_unknown(lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread:
        def __init__(self, **_options: object) -> None:
            pass

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(units, "Thread", NoThread)
    before = set(os.listdir("/proc/self/fd"))
    assert lookup.find(1) is None
    assert (lookup.failed, lookup.units.awaited) == ([0], {})
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 3, "only the sockets of the test, and the directory, are open"
