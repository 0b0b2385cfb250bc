"""A control packet that exceeds the time of a turn: the packets after it are put back, and are handled in the next turn unchanged.

One switch has no time at all, so it handles one control packet per turn; another has all the time that it needs. For one sender the
results must be equal, packet by packet: the replies, the deliveries to others, and the counters.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.protocol.packets import BATCH_HEAD, is_batch, parse_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import PublishRule
from tests.support.examples import examples
from tests.support.malformed_batches import FAULTS, batch_of
from tests.support.switch_harness import SwitchHarness

MESSAGES = st.sampled_from(
    [b"MSG a\0one", b"MSG a/b\0two", b"MSG !/reserved\0", b"MSG denied\0", b"MSG %b\0" % (b"k" * 3_000), b"MSG unused\0"]
)
CONTROLS = st.sampled_from(
    b"CMSG ping|SUB a|SUB a/*|UNSUB a|UNSUB x|CMSG batch/on|CMSG receipt/always\0t|CMSG sender/on|CMSG echo/off|CMSG echo/on".split(b"|")
)
PACKETS = st.lists(st.one_of(CONTROLS, MESSAGES), min_size=1, max_size=30)
BAD = b"BAD x"
"""Ends the connection."""


@st.composite
def sendings(draw: st.DrawFn) -> list[bytes]:
    """Draw what a client sends: single packets and batches, whole and faulty."""
    sent: list[bytes] = []
    for packets in draw(st.lists(PACKETS, min_size=1, max_size=6)):
        if draw(st.booleans()):
            sent.append(batch_of(packets) + draw(st.sampled_from((b"", *FAULTS))))
        else:
            sent += [*packets, *draw(st.sampled_from([[], [BATCH_HEAD[:-1]]]))]
    return [*sent, BAD] if draw(st.integers(0, 9)) == 0 else sent


def flat(packets: list[bytes]) -> list[bytes]:
    """Return *packets* one by one: what leaves together is not the same."""
    return [inner for packet in packets for inner in (parse_batch(packet) if is_batch(packet) else [packet])]


def summed(reported: list[tuple[object, ...]]) -> tuple[list[tuple[object, ...]], Counter[object]]:
    """Return the calls of the sink, and separately the refusals, which are reported once per turn."""
    sums: Counter[object] = Counter()
    others: list[tuple[object, ...]] = []
    for report in reported:
        match report:
            case ("refused", number, refusal, _, int(count)):
                sums[number, refusal] += count
            case ("ended", number, end, _):
                others.append(("ended", number, end))
            case _:
                others.append(report)
    return others, sums


@settings(max_examples=examples(300))
@given(sent=sendings(), turns=st.none() | st.integers(1, 8))
def test_the_results_for_one_sender_are_unchanged(sent: list[bytes], turns: int | None) -> None:
    limits = LimitSettings(key_bytes=2_000)
    outcomes = []
    for turn_time in (0.0, 10.0):
        with closing(SwitchHarness(replace(limits, turn_time=turn_time))) as harness:
            harness.set_publish_rules((PublishRule(b"denied", False),))
            reader, sender = harness.connect(b""), harness.connect()
            for number in (reader, sender):
                harness.set_party(number, number, rules=1, cred=b"!/cred/0/0/%d" % number)
            for packet in sent:
                assert harness.send(sender, packet)
            if turns is not None and not turn_time:
                for _ in range(turns):
                    harness.switch.turn(0)
                if sender in harness.switch.connections():
                    harness.hand_over()
            harness.run()
            received = [flat(harness.drain(number)) for number in (reader, sender)]
            counts = harness.switch.counters()
            numbers = (counts.received_packets, counts.received_bytes, counts.messages, counts.refused_packets, counts.received_batches)
            is_there = sender in harness.switch.connections()
            mine = (harness.switch.patterns(sender), harness.switch.connection_counters(sender)) if is_there else None
            outcomes.append((received, summed(harness.events), numbers, mine))
            harness.check_balance()
    assert outcomes[0] == outcomes[1]
