"""The state of a bus as records: valid ones are read as they were written, and inconsistent ones are rejected."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.dataplane.switch_state import ConnectionProgress, ConnectionSettings, Queue, SwitchTotals
from sbusd.state import records as state
from sbusd.state.log_file import StateError
from sbusd.state.records import AccountState, BucketState, BusState, ConnectionState, HoldingState, State

BEGINNING = state.BUS + b'{"next_connection": 1}'
ONE = state.opened(ConnectionState(1, 1, 0.0))


def _full() -> State:
    """Return a state with a value in every field."""
    connections = {
        number: ConnectionState(
            number,
            1000 + number,
            1.5,
            ConnectionSettings(False, 1, 3, 2),
            {b"a": 2, b"\xff\x01\n": 1},
            b"tap\xfe",
            "caf\u00e9 1",
            ConnectionProgress(1, 2, 3, 4, 5, 6, 7, 8, blocks=(3,), blocking_ms=4),
            HoldingState(5, BucketState(1.0, 2.0)),
        )
        for number in (3, 7)
    }
    bus = BusState(9, True, SwitchTotals(accepted=2, lost_by_user={1: 5}), {"sent_errors": 4}, {"written": 3}, 2, 12.5)
    bucket = BucketState(3.5, 100.25)
    accounts = [AccountState(1, bucket, bucket, bucket, {"connections": 2}, 1)]
    return State(bus, connections, [b"MSG a\0\xff", b""], {7: Queue(((0, None, None), (1, 0, 5)), ((1, None, 0),))}, accounts)


def test_an_image_is_read_as_it_was_written() -> None:
    assert state.replay(state.image(_full())) == _full()


def test_changes_are_applied_in_order() -> None:
    records = [
        BEGINNING,
        state.reserved(1024),
        state.opened(ConnectionState(5, 50, 0.0)),
        state.subscribed(5, b"a\xff"),
        state.subscribed(5, b"a\xff"),
        state.subscribed(5, b""),
        state.unsubscribed(5, b"a\xff"),
        state.unsubscribed(5, b""),
        state.changed(5, ConnectionSettings(echo=False)),
        state.tapped(5, b"x"),
        state.tapped(5, None),
        state.tapped(5, b"\xff"),
        state.opened(ConnectionState(6, 60, 0.0)),
        state.closed(6),
        state.tried(),
    ]
    read = state.replay(records)
    assert read.connections == {5: ConnectionState(5, 50, 0.0, ConnectionSettings(echo=False), {b"a\xff": 1}, b"\xff")}
    assert (read.bus.next_connection, read.bus.is_orderly, read.tries) == (1024, False, 1)


def test_a_connection_number_is_never_reused() -> None:
    assert state.replay([BEGINNING, state.opened(ConnectionState(80, 1, 0.0)), state.closed(80)]).bus.next_connection == 81


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([], "no beginning"),
        ([state.closed(1)], "no beginning"),
        ([BEGINNING, state.closed(1)], "connection 1, which it does not contain"),
        ([BEGINNING, state.subscribed(1, b"a")], "connection 1, which"),
        ([BEGINNING, b"?x"], "unknown kind"),
        ([BEGINNING, b"S123"], "unknown kind"),
        ([BEGINNING, b""], "unknown kind"),
        ([BEGINNING, state.opened(ConnectionState(1, 1, 0.0)), state.opened(ConnectionState(1, 2, 0.0))], "connection 1 twice"),
        ([BEGINNING, state.opened(ConnectionState(1, 1, 0.0)), state.opened(ConnectionState(2, 1, 0.0))], "same socket"),
        ([BEGINNING, state.opened(ConnectionState(1, 1, 0.0)), state.unsubscribed(1, b"a")], "removes a pattern"),
        ([BEGINNING, b"C{}"], "ConnectionState"),
        ([BEGINNING, b"C{"], "ConnectionState"),
        ([state.BUS + b'{"next_connection": 1, "of_a_newer_bus": 2}'], "of_a_newer_bus"),
        ([BEGINNING, b'C{"number": 1, "inode": 1, "since": 1, "settings": {"soft": 9}}'], "settings.soft"),
        ([BEGINNING, state.stored(1, b"a", 1)], "connection 1, which"),
        ([BEGINNING, ONE, state.stored(1, b"a", 1), state.stored(1, b"a", 1)], "duplicate pattern"),
        ([BEGINNING, ONE, state.subscribed(1, b"a"), state.stored(1, b"a", 1)], "duplicate pattern"),
        ([BEGINNING, ONE, state.stored(1, b"a", 0)], "count 0"),
        ([BEGINNING, ONE, state.stored(1, b"", 1)[:-1]], "truncated pattern"),
        ([BEGINNING, b'C{"number": -1, "inode": 1, "since": 1}'], "number"),
    ],
)
def test_inconsistent_records_are_rejected_in_one_line(records: list[bytes], says: str) -> None:
    with pytest.raises(StateError, match=says) as refusal:
        state.replay(records)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("begun", "is_valid"),
    [
        (b"", False),
        (b"\5", True),
        (b"\5\0\0\0", True),
        (b"\5\0\0\0MSG ", True),
        (b"\5\0\0\0MSG a", False),
        (b"\5\0\0\0" + bytes(10_000), False),
        (bytes(4), True),
        (bytes(5), False),
        (b"\xff\xff\xff\xff", True),
        (b"\xff\xff\xff\xffM", False),
    ],
)
def test_a_stream_has_only_the_beginning_of_a_frame(begun: bytes, is_valid: bool) -> None:
    full = State(BusState(2, True), {1: ConnectionState(1, 1, 0.0)}, [begun], {1: Queue(half_read=0)})
    if is_valid:
        assert state.replay(state.image(full)) == full
        return
    with pytest.raises(StateError, match="beginning of a frame"):
        state.replay(state.image(full))


@pytest.mark.parametrize(
    ("queue", "is_valid"),
    [
        (Queue(part_sent=((0, 1, 5), 15, False)), True),
        (Queue(part_sent=((0, None, None), 10, True)), True),
        (Queue(part_sent=((0, None, None), 11, True)), False),
        (Queue(part_sent=((0, 1, 5), 16, False)), False),
        (Queue(part_sent=((2, None, None), 1, False)), False),
        (Queue(part_sent=((0, 2, None), 1, False)), False),
    ],
)
def test_a_stream_has_only_the_rest_of_one_frame(queue: Queue, is_valid: bool) -> None:
    """Packet 0 has 6 bytes, packet 1 has 5, and a frame 4 more."""
    full = State(BusState(2, True), {1: ConnectionState(1, 1, 0.0)}, [b"MSG a\0", b"CMSG "], {1: queue})
    if is_valid:
        assert state.replay(state.image(full)) == full
        return
    with pytest.raises(StateError):
        state.replay(state.image(full))


def test_a_queue_needs_its_packets_and_its_connection() -> None:
    for queue, number in (
        (Queue(half_read=9), 7),
        (Queue(part_sent=((9, None, None), 1, False)), 7),
        (Queue(((2, None, None),)), 7),
        (Queue(((0, 2, None),)), 7),
        (Queue(((0, None, None),)), 99),
    ):
        full = _full()
        full.queues = {number: queue}
        with pytest.raises(StateError):
            state.replay(state.image(full))


@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(0, 2**32))
def test_garbage_is_rejected_with_a_state_error(garbage: list[bytes], seed: int) -> None:
    """Any end of any image, and any damage to one of its records: an error of ours, or a state."""
    records = list(state.image(_full()))
    place = random.Random(seed).randrange(len(records))
    for damaged in ([BEGINNING, *garbage], [*records[:place], *garbage, *records[place + 1 :]], [*records, *garbage]):
        try:
            state.replay(damaged)
        except StateError as error:
            assert str(error).isprintable()  # noqa: PT017 - it is not always raised


def test_no_pattern_can_forge_a_record() -> None:
    """A client chooses the bytes of its patterns and packets; nothing else in a state comes from one."""
    forged = state.closed(1) + state.opened(ConnectionState(9, 9, 0.0))
    records = [BEGINNING, state.opened(ConnectionState(1, 1, 0.0)), state.subscribed(1, forged)]
    assert state.replay(records).connections[1].patterns == {forged: 1}
    full = State(BusState(2, True), {1: ConnectionState(1, 1, 0.0, patterns={b'"}],{"': 1})}, [forged], {1: Queue(((0, None, None),))})
    assert state.replay(state.image(full)) == full


def test_the_format_does_not_change_unseen() -> None:
    """A newer bus must read the state of an older one: give new fields defaults, or increase FORMAT."""
    assert json.loads(state.opened(ConnectionState(1, 2, 3.0))[1:]).keys() == {"number", "inode", "since", "settings", "who"}
    full = ConnectionState(1, 2, 3.0, progress=ConnectionProgress(1), holding=HoldingState(1), patterns={b"a": 1}, tap=b"t")
    assert json.loads(state.opened(full)[1:]).keys() == {"number", "inode", "since", "settings", "who", "progress", "holding"}
    assert state.stored(1, b"a\xff", 258) == b"I\1\0\0\0\0\0\0\0\2\1\0\0a\xff"
    first = state.replay([state.BUS + b'{"next_connection":4}', b'C{"number":1,"inode":2,"since":3.5}'])
    assert first.connections[1] == ConnectionState(1, 2, 3.5)
    changes = [state.subscribed(1, b"a"), state.unsubscribed(1, b"b"), state.closed(2), state.reserved(3), state.tried()]
    numbers = [bytes([number, 0, 0, 0, 0, 0, 0, 0]) for number in (1, 1, 2, 3)]
    assert changes == [b"S" + numbers[0] + b"a", b"U" + numbers[1] + b"b", b"G" + numbers[2], b"N" + numbers[3], b"T"]
