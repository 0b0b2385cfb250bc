"""Fuzz target: the switch takes any batch apart as the plain parser does, up to its fault, which goes to the sink.

Input: a byte of choices (bits: 1 the reader wants batches, 2 few packets a turn, 4 a restart after the first turn), then the batch.
"""

from __future__ import annotations

from sbus.protocol.errors import ProtocolError
from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import BATCH_HEAD, LENGTH_BYTES, is_batch, parse_batch
from sbus_programs.config.settings import LimitSettings
from tests.support.switch_harness import RecordingHarness

LIMITS = (LimitSettings(), LimitSettings(batch_packets=2))


def check(data: bytes) -> None:
    """The switch takes the batch apart as the plain parser does, up to its fault, which goes to the sink as a batch."""
    choices, batch = data[0] if data else 0, BATCH_HEAD + data[1:]
    inside, fault = _apart(batch)
    messages = [packet for packet in inside if packet.startswith(b"MSG ") and b"\0" in packet]
    reported = [packet for packet in inside if packet not in messages] + fault
    expected = [packet for packet in messages if _is_routed(packet[4:].partition(b"\0")[0])]
    assert _run(choices, batch, len(expected)) == (expected, reported)


def _is_routed(key: bytes) -> bool:
    """Return whether a message with *key* is routed."""
    return len(key) <= LIMITS[0].key_bytes and KeySpace().is_publishable(key)


def _apart(batch: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the packets in a batch, and in a list what begins with its fault, if it has one."""
    inside: list[bytes] = []
    try:
        inside.extend(parse_batch(batch))
    except ProtocolError as error:
        place = len(BATCH_HEAD) + sum(LENGTH_BYTES + len(packet) for packet in inside)
        assert error.words.isprintable()
        return inside, [BATCH_HEAD + batch[place:]]
    return inside, []


def _run(choices: int, batch: bytes, count: int) -> tuple[list[bytes], list[bytes]]:
    """Send *batch* to the switch; return the packets that a reader of everything receives, and the calls of the sink."""
    harness = RecordingHarness(LIMITS[bool(choices & 2)])
    try:
        reader, sender = harness.connect(), harness.connect()
        harness.switch.subscribe(reader, b"")
        for secret in {packet[4:].partition(b"\0")[0] for packet in _apart(batch)[0] if packet.startswith(b"MSG !")}:
            harness.switch.subscribe(reader, secret)
        harness.configure(reader, batch=bool(choices & 1))
        harness.send(sender, batch)
        harness.switch.turn(0)
        if choices & 4:
            harness.hand_over()
        harness.run()
        received = [packet for each in harness.drain(reader) for packet in (parse_batch(each) if is_batch(each) else [each])]
        counted = harness.switch.connection_counters(sender)
        reported = [report[1] for report in harness.events if report[0] == sender]
        assert counted.received_packets - counted.refused_packets == len(received) + len(reported)
        assert len(received) == count
        harness.check_balance()
        return received, [packet for packet in reported if isinstance(packet, bytes)]
    finally:
        harness.close()
