"""A stream is cut at random places. The results are those of the same packets over SEQPACKET: deliveries, replies and counters.

The stream is also handed over between switches at random moments, with whatever it has in part.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.protocol.packets import BATCH_HEAD, MAX_PACKET_BYTES
from sbus_programs.config.settings import LimitSettings
from tests.support.examples import examples
from tests.support.frames import frame
from tests.support.malformed_batches import FAULTS, batch_of
from tests.support.switch_harness import SwitchHarness

MESSAGES = st.sampled_from([b"MSG a\0one", b"MSG a/b\0" + bytes(5_000), b"MSG !/no\0", b"MSG a\0" + bytes(70_000), b"MSG unused\0"])
CONTROLS = st.sampled_from(b"CMSG ping|SUB a|SUB a/*|UNSUB a|UNSUB x|CMSG receipt/always\0t|CMSG sender/on|CMSG echo/off".split(b"|"))
PACKETS = st.lists(st.one_of(CONTROLS, MESSAGES), min_size=1, max_size=20)
BAD = b"BAD x"
"""Ends the connection."""


@st.composite
def sendings(draw: st.DrawFn) -> list[bytes]:
    """Draw what a client sends: single packets and batches, whole and faulty."""
    sent: list[bytes] = []
    for packets in draw(st.lists(PACKETS, min_size=1, max_size=5)):
        whole = batch_of(packets) + draw(st.sampled_from((b"", *FAULTS)))
        # A larger packet cannot be sent in one piece.
        if draw(st.booleans()) and len(whole) <= MAX_PACKET_BYTES:
            sent.append(whole)
        else:
            sent += [*packets, *draw(st.sampled_from([[], [BATCH_HEAD[:-1]]]))]
    return [*sent, BAD] if draw(st.integers(0, 9)) == 0 else sent


Outcome = tuple[dict[int, list[bytes]], list[tuple[object, ...]], Counter[tuple[object, ...]], object]


def send_parts(harness: SwitchHarness, sender: int, sent: list[bytes], cuts: list[int]) -> Iterator[None]:
    """Send packets as a stream in parts of these sizes, used in rotation; yield after each."""
    stream = b"".join(map(frame, sent))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for size in itertools.cycle(cuts):
            if not stream:
                return
            stream = stream[harness.clients[sender].send(stream[:size]) :]
            yield


def send_packets(harness: SwitchHarness, sender: int, sent: list[bytes]) -> Iterator[None]:
    """Send packets one by one; yield after each."""
    for packet in sent:
        harness.send(sender, packet)
        yield


def outcome_of(sent: list[bytes], cuts: list[int], moves: set[int], room: int, turn_time: float = 10.0) -> Outcome:
    """Return what one sender and one subscriber receive, the calls of the sink without the refusals, the refusals, and the counters.

    *cuts* are the sizes of the parts of the streams; none: SEQPACKET. After each part in *moves* the switch is handed over. *room* is the
    send buffer of the switch's end for the subscriber, *turn_time* in seconds.
    """
    with closing(SwitchHarness(LimitSettings(turn_time=turn_time))) as harness:
        sender = harness.connect(is_stream=bool(cuts))
        subscriber = harness.connect(b"a*", b"a/*", is_stream=bool(cuts), send_buffer=room)
        received: dict[int, list[bytes]] = {sender: [], subscriber: []}
        parts = send_parts(harness, sender, sent, cuts) if cuts else send_packets(harness, sender, sent)
        for step, _ in enumerate(parts):
            harness.run()
            if step in moves:
                harness.hand_over()
                harness.run()
            for number, packets in received.items():
                if b"" not in packets:
                    packets.extend(harness.drain(number))
            harness.check_balance()
        others, refusals = summed(harness.events)
        is_there = sender in harness.switch.connections()
        return received, others, refusals, harness.switch.connection_counters(sender) if is_there else None


def summed(events: list[tuple[object, ...]]) -> tuple[list[tuple[object, ...]], Counter[tuple[object, ...]]]:
    """Return the calls of the sink, and separately the refusals, which are reported once per turn."""
    refusals: Counter[tuple[object, ...]] = Counter()
    for event in events:
        if event[0] == "refused":
            assert isinstance(event[4], int)
            refusals[event[:3]] += event[4]
    return [event for event in events if event[0] != "refused"], refusals


SIZES = st.sampled_from([1, 2, 3, 4, 5, 100, 4_095, 4_096, 4_097, 65_536])


@settings(max_examples=examples(100))
@given(
    sent=sendings(),
    cuts=st.lists(SIZES, min_size=1, max_size=20).filter(lambda sizes: max(sizes) >= 100),
    moves=st.sets(st.integers(0, 40), max_size=3),
    room=st.sampled_from([5_000, 212_992]),
)
def test_a_stream_has_the_results_of_the_same_packets(sent: list[bytes], cuts: list[int], moves: set[int], room: int) -> None:
    assert outcome_of(sent, cuts, moves, room) == outcome_of(sent, [], set(), 212_992)


@settings(max_examples=examples(50))
@given(
    sent=sendings().filter(lambda packets: BAD not in packets),  # a client that is disconnected gets no more of its frames
    cuts=st.lists(SIZES, min_size=1, max_size=20).filter(lambda sizes: max(sizes) >= 100),
    moves=st.sets(st.integers(0, 40), max_size=3),
    room=st.sampled_from([5_000, 212_992]),
)
def test_a_stream_that_gets_few_bytes_in_each_turn_has_the_same_results(
    sent: list[bytes], cuts: list[int], moves: set[int], room: int
) -> None:
    assert outcome_of(sent, cuts, moves, room, turn_time=1e-6) == outcome_of(sent, [], set(), 212_992)
