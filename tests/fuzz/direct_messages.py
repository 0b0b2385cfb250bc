"""Fuzz target: the switch delivers exactly the direct messages that the plain parser accepts, and to their recipient alone.

Input: a byte of choices (bits: 1 the readers want batches, 2 few packets a turn, 4 a restart after the first turn, 8 a tap, 16 the packets
are sent in one batch, 32 the sender may vouch, 64 one reader is a member of a group), then direct messages without their first 10 bytes,
each after a byte with its length. The readers have the numbers 1 and 2.
"""

from __future__ import annotations

import json

from sbus.protocol.direct_messages import parse_direct
from sbus.protocol.errors import ProtocolError
from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import is_batch, join_batch, parse_batch
from sbus.protocol.vouching import VOUCHED_HEAD, parse_vouched
from sbus_programs.config.settings import LimitSettings
from tests.support.switch_harness import RecordingHarness, SwitchHarness

LIMITS = (LimitSettings(), LimitSettings(batch_packets=2))
CRED = b"!/cred/9/990/55"
READERS = (1, 2)
MOST_PACKETS = 12

Direct = tuple[int, bytes]
"""The recipient and the MSG packet."""


def check(data: bytes) -> None:
    """Readers get what the plain parser accepts and is for them; everything else goes to the sink unchanged."""
    choices = data[0] if data else 0
    packets = _packets(data[1:])
    expected: list[Direct] = []
    reported: list[bytes] = []
    for packet in packets:
        try:
            recipient, inner = parse_direct(packet)
        except ProtocolError as error:
            assert error.words.isprintable()
            reported.append(packet)
            continue
        if inner.startswith(VOUCHED_HEAD):
            if not choices & 32:
                reported.append(packet)
                continue
            inner = parse_vouched(inner)[1]
        if _is_routed(_key(inner)):
            expected.append((recipient, inner))
    assert _run(choices, packets, expected) == reported


def _packets(data: bytes) -> list[bytes]:
    """Cut *data* into packets."""
    packets: list[bytes] = []
    while data and len(packets) < MOST_PACKETS:
        end = 1 + data[0]
        packets.append(b"CMSG !/to/" + data[1:end])
        data = data[end:]
    return packets


def _is_routed(key: bytes) -> bool:
    """Return whether a message with *key* is routed."""
    return len(key) <= LIMITS[0].key_bytes and KeySpace().is_publishable(key)


def _key(message: bytes) -> bytes:
    """Return the key of a message."""
    return message[4:].partition(b"\0")[0]


def _run(choices: int, packets: list[bytes], expected: list[Direct]) -> list[bytes]:
    """Send *packets*, check that the two readers of everything, and a tap, get what is *expected*, and return the calls of the sink."""
    harness = RecordingHarness(LIMITS[bool(choices & 2)])
    try:
        tap, sender = _connect(harness, choices)
        for packet in [join_batch(packets)] if choices & 16 and packets else packets:
            harness.send(sender, packet)
        harness.switch.turn(0)
        if choices & 4:
            harness.hand_over()
        harness.run()
        head = b"CMSG !/group/g\0" if choices & 64 else b""
        # A pattern that matches every key matches no reserved ones.
        ordinary = [each for each in expected if KeySpace().matches(b"", _key(each[1]))]
        assert _drain(harness, 1) == [inner for recipient, inner in ordinary if recipient == 1]
        assert _drain(harness, 2) == [head + inner for recipient, inner in ordinary if recipient == 2]
        if choices & 8:
            assert [_tapped(packet) for packet in _drain(harness, tap)] == expected
        harness.check_balance()
        reported = [report[1] for report in harness.events if report[0] == sender]
        return [packet for packet in reported if isinstance(packet, bytes)]
    finally:
        harness.close()


def _connect(harness: SwitchHarness, choices: int) -> tuple[int, int]:
    """Connect the two readers, a tap and the sender, and return the last two."""
    tap, sender = [harness.connect() for _ in range(4)][2:]
    harness.set_party(sender, 990, cred=CRED, may_deliver=True, may_vouch=bool(choices & 32))
    for reader in READERS:
        harness.set_party(reader, 1_000)
        harness.switch.subscribe(reader, b"\0g" if choices & 64 and reader == 2 else b"")
        harness.configure(reader, batch=bool(choices & 1))
    if choices & 8:
        harness.taps[tap] = b""
        harness.switch.set_tap(tap, b"")
    return tap, sender


def _drain(harness: SwitchHarness, client: int) -> list[bytes]:
    """Return the packets that a client receives, those in batches one by one."""
    return [packet for each in harness.drain(client) for packet in (parse_batch(each) if is_batch(each) else [each])]


def _tapped(packet: bytes) -> Direct:
    """Return the recipient and the message of a line of a tap."""
    line, _, inner = packet.partition(b"\0")[2].partition(b"\n")
    fields = json.loads(line)
    assert fields["cred"] == CRED.decode()
    return fields["to"], inner
