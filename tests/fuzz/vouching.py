"""Fuzz target: the switch routes exactly the messages for which the plain parser accepts the origin, and names nobody else as their sender.

Input: a byte of choices (bits: 1 the readers want batches, 2 few packets a turn, 4 a restart after the first turn, 8 a tap, 16 the packets
are sent in one batch), then packets in the name of others without their first 12 bytes, each after a byte with its length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from sbus.protocol.credentials import parse_sender
from sbus.protocol.errors import ProtocolError
from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import is_batch, join_batch, parse_batch
from sbus.protocol.vouching import parse_vouched
from sbus_programs.config.settings import LimitSettings
from tests.support.switch_harness import RecordingHarness, SwitchHarness

LIMITS = (LimitSettings(), LimitSettings(batch_packets=2))
CRED = b"!/cred/9/990/55"
MOST_PACKETS = 12

Vouched = tuple[bytes, bytes]


def check(data: bytes) -> None:
    """The switch routes what the plain parser accepts, with its origin; everything else goes to the sink unchanged."""
    choices, packets = data[0] if data else 0, list(_packets(data[1:]))
    expected: list[Vouched] = []
    reported: list[bytes] = []
    for packet in packets:
        try:
            origin, inner = parse_vouched(packet)
        except ProtocolError as error:
            assert error.words.isprintable()
            reported.append(packet)
        else:
            if _is_routed(_key(inner)):
                expected.append((origin, inner))
    assert _run(choices, packets, expected) == reported


def _packets(data: bytes) -> Iterator[bytes]:
    """Cut *data* into packets."""
    for _ in range(MOST_PACKETS):
        if not data:
            return
        end = 1 + data[0]
        yield b"CMSG !/from/" + data[1:end]
        data = data[end:]


def _is_routed(key: bytes) -> bool:
    """Return whether a message with *key* is routed."""
    return len(key) <= LIMITS[0].key_bytes and KeySpace().is_publishable(key)


def _key(message: bytes) -> bytes:
    """Return the key of a message."""
    return message[4:].partition(b"\0")[0]


def _run(choices: int, packets: list[bytes], expected: list[Vouched]) -> list[bytes]:
    """Send *packets*, check that readers of everything, and a tap, get what is *expected*, and return the calls of the sink.

    A key with a star among the ids of a private key is no pattern that reads it: only the tap gets that.
    """
    patterns = {b"", *(_key(inner) for _, inner in expected if inner.startswith(b"MSG !"))}
    read = [each for each in expected if any(KeySpace().matches(pattern, _key(each[1])) for pattern in patterns)]
    harness = RecordingHarness(LIMITS[bool(choices & 2)])
    try:
        plain, curious, tap, sender = (harness.connect() for _ in range(4))
        harness.set_party(sender, 990, cred=CRED, may_vouch=True)
        for reader in (plain, curious):
            for pattern in patterns:
                harness.switch.subscribe(reader, pattern)
            harness.configure(reader, batch=bool(choices & 1), sender=reader == curious)
        if choices & 8:
            harness.taps[tap] = b""
            harness.switch.set_tap(tap, b"")
        for packet in [join_batch(packets)] if choices & 16 and packets else packets:
            harness.send(sender, packet)
        harness.switch.turn(0)
        if choices & 4:
            harness.hand_over()
        harness.run()
        assert _drain(harness, plain) == [inner for _, inner in read]
        assert [_named(packet, sender) for packet in _drain(harness, curious)] == read
        if choices & 8:
            assert [_tapped(packet) for packet in _drain(harness, tap)] == expected
        harness.check_balance()
        reported = [report[1] for report in harness.events if report[0] == sender]
        return [packet for packet in reported if isinstance(packet, bytes)]
    finally:
        harness.close()


def _drain(harness: SwitchHarness, client: int) -> list[bytes]:
    """Return the packets that a client receives, those in batches one by one."""
    return [packet for each in harness.drain(client) for packet in (parse_batch(each) if is_batch(each) else [each])]


def _named(packet: bytes, sender: int) -> Vouched:
    """Return the origin and the message of a packet with its sender."""
    head, _, inner = packet.partition(b"\0")
    peer = parse_sender(head.removeprefix(b"CMSG "))
    assert (peer.uid, peer.connection) == (-1, sender)
    assert peer.voucher is not None
    assert peer.voucher.key_bytes == CRED
    return peer.origin_bytes, inner


def _tapped(packet: bytes) -> Vouched:
    """Return the origin and the message of a line of a tap."""
    line, _, inner = packet.partition(b"\0")[2].partition(b"\n")
    fields = json.loads(line)
    assert fields["cred"] == CRED.decode()
    return fields["vouched"].encode("ascii"), inner
