"""What is written down as it goes: a state that cannot be written is not believed, and is written again later."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sbus_programs.config.settings import DaemonSettings, QuotaSettings
from sbusd.broker.durable_state import full_state
from sbusd.restart import state_log as state_keeping
from sbusd.restart.connection_store import ConnectionStore
from sbusd.restart.state_log import StateLog
from sbusd.state import records
from sbusd.state.log_file import StateError, StateFile
from sbusd.state.records import State
from tests.support.in_process_bus import InProcessBus, MakeBus


@contextmanager
def keep(bus: InProcessBus) -> Iterator[StateLog]:
    """Let the state of a bus be kept."""
    store = ConnectionStore.create(lambda: [client.fd for client in bus.broker.roster])
    file = StateFile.create()
    made = StateLog(file, store, bus.broker)
    made.begin()
    bus.broker.set_change_log(made)
    yield made
    file.close()
    store.close()


@pytest.fixture
def kept(make_bus: MakeBus) -> Iterator[tuple[InProcessBus, StateLog]]:
    bus = make_bus()
    with keep(bus) as made:
        yield bus, made


def settle(bus: InProcessBus) -> None:
    """Let all be done that takes steps."""
    while not bus.broker.is_settled:
        bus.broker.settle()


def _read(made: StateLog) -> State:
    file = StateFile.adopt(made.file.fd)
    try:
        return records.replay(file.records())
    finally:
        file.close()


def test_every_change_is_there_at_once(kept: tuple[InProcessBus, StateLog]) -> None:
    bus, made = kept
    client, other = bus.client(), bus.client(uid=7)
    for packet in (b"SUB a", b"SUB a", b"SUB b", b"UNSUB b", b"CMSG echo/off", b"CMSG sender/on", b"CMSG tap/on\0t"):
        client.send(packet)
    other.close()
    bus.run()
    (connection,) = _read(made).connections.values()
    assert (connection.patterns, connection.settings.echo, connection.settings.sender) == ({b"a": 2}, False, True)
    assert connection.tap == b"t"
    assert _read(made).bus.next_connection > client.connection + 1
    assert _read(made) == records.replay(records.image(_read(made)))


def test_a_long_log_is_rewritten(kept: tuple[InProcessBus, StateLog], monkeypatch: pytest.MonkeyPatch) -> None:
    bus, made = kept
    monkeypatch.setattr(state_keeping, "LEAST_BYTES", 1_000)
    client = bus.client()
    sizes = []
    for _ in range(200):
        client.send(b"CMSG echo/off")
        bus.run()
        bus.broker.settle()
        sizes.append(made.file.size)
    assert max(sizes) < 3_000
    assert not _read(made).connections[client.connection].settings.echo


def test_the_number_of_a_rejected_connection_is_not_used_again_after_a_rewrite(kept: tuple[InProcessBus, StateLog]) -> None:
    """The log has no record of that connection, but log messages name it."""
    bus, made = kept
    bus.client()
    made.begin()
    bus.next_credentials = OSError(errno.EINVAL, "Invalid argument")
    rejected = bus.connect_next()
    assert b"EACCES" in rejected.receive()
    assert _read(made).bus.next_connection > rejected.connection


def test_a_state_that_cannot_be_written_is_not_believed_until_it_can(
    kept: tuple[InProcessBus, StateLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, made = kept
    client = bus.client()

    def fail(_record: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(made.file, "append", fail)
    client.send(b"SUB a")
    bus.run()
    with pytest.raises(StateError):
        _read(made)
    assert made.counts()["state_failures"] == 1
    monkeypatch.undo()
    client.send(b"SUB b")
    bus.run()
    settle(bus)
    with pytest.raises(StateError):
        _read(made)
    monkeypatch.setattr(made, "_retry_at", 0.0)
    settle(bus)
    assert _read(made).connections[client.connection].patterns == {b"a": 1, b"b": 1}
    assert [record.message.name for record in bus.recorded()].count("state-not-stored") == 1


def test_a_new_log_that_cannot_be_written_leaves_the_old_one(kept: tuple[InProcessBus, StateLog], monkeypatch: pytest.MonkeyPatch) -> None:
    bus, made = kept
    client = bus.client()
    for pattern in (b"a", b"b"):
        client.send(b"SUB " + pattern)
    bus.run()

    def fail(_records: list[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for steps in range(2):
        made._is_due, made._retry_at = True, 0.0
        for _ in range(steps):
            made.step()
        with monkeypatch.context() as patch:
            patch.setattr(made.file, "add_to_draft", fail)
            while made.has_work:
                made.step()
            client.send(b"SUB b")
            bus.run()
        assert _read(made).connections[client.connection].patterns == {b"a": 1, b"b": 2 + steps}
        assert made.counts()["state_failures"] == 1 + steps
        assert made.is_good
    assert bus.recorded() == []


def test_a_change_that_the_draft_does_not_take_ends_the_draft_alone(
    kept: tuple[InProcessBus, StateLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, made = kept
    client = bus.client()
    client.send(b"SUB a")
    bus.run()
    made._is_due = True
    made.step()
    made.step()

    def fail(_records: list[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(made.file, "add_to_draft", fail)
        client.send(b"UNSUB a")
        bus.run()
    assert made.file._draft is None
    assert _read(made).connections[client.connection].patterns == {}
    made._retry_at = 0.0
    settle(bus)
    assert _read(made).connections[client.connection].patterns == {}
    assert made.counts() == {"connection_store_failures": 0, "connections_missing": 0, "state_failures": 1, "state_rewrites": 2}


def test_a_handover_that_failed_is_undone(kept: tuple[InProcessBus, StateLog]) -> None:
    bus, made = kept
    client = bus.client()
    client.send(b"SUB a")
    bus.run()
    for is_good in (True, False):
        if not is_good:
            made._fail(OSError(errno.ENOSPC, "No space left on device"))
        made.write_handover(records.image(full_state(bus.broker)))
        assert _read(made).bus.is_orderly
        made.undo_handover()
        if is_good:
            assert not _read(made).bus.is_orderly
        else:
            with pytest.raises(StateError):
                _read(made)
    made._retry_at = 0.0
    settle(bus)
    assert _read(made).connections[client.connection].patterns == {b"a": 1}


def test_the_changes_of_a_user_are_charged_and_limited(make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who churns is refused while the log is rewritten, and no other user is; the memory of the file agrees with what is charged."""
    quotas = QuotaSettings(state_bytes=1 << 20, owner_factor=1)
    bus = make_bus(DaemonSettings(quotas=quotas))
    with keep(bus) as made:
        churner, other = bus.client(uid=7), bus.client(uid=8)
        usage = bus.broker.quotas.state_usage
        refused, sizes = 0, []
        for number in range(400):
            pattern = b"%d" % number + b"x" * 4_000
            churner.send(b"SUB " + pattern)
            churner.send(b"UNSUB " + pattern)
            refused += b"".join(churner.barrier()).count(b"EDQUOT state_bytes")
            sizes.append(usage.of(7))
            taken = os.fstat(made.file.fd).st_blocks * 512
            assert usage.of(7) <= taken <= usage.of(7) + usage.of(8) + (64 << 10)
        assert refused > 400
        assert max(sizes) < (1 << 20) + 8_100
        assert not bus.broker.is_settled
        other.send(b"SUB a")
        assert other.barrier() == []
        settle(bus)
        assert usage.of(7) == 0
        churner.send(b"SUB a")
        assert churner.barrier() == []
        (reported,) = [each for each in bus.recorded() if each.message.name == "quota-refused"][:1]
        assert (reported.uid, reported.facts["quota"]) == (7, "state_bytes")
