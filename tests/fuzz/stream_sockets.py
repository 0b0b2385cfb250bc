"""Fuzz target: what the switch reads from a stream socket does not depend on how the stream is cut, and is what a plain parser finds.

Batches are left out: the target `batches` is about them.

Input: a byte with the size of the parts (0: all at once), a byte with the part after which the switch is handed over, then the stream.
"""

from __future__ import annotations

from sbus.protocol.packets import LENGTH_BYTES, MAX_PACKET_BYTES, is_batch
from tests.support.frames import LENGTH
from tests.support.switch_harness import RecordingHarness


def check(data: bytes) -> None:
    """The sink gets each packet of the stream that is not a message, and the connection ends at a wrong length."""
    size, move, stream = data[0] if data else 0, data[1] if len(data) > 1 else 0, data[2:]
    packets, is_wrong = _packets(stream)
    if any(is_batch(packet) for packet in packets):
        return
    harness = RecordingHarness()
    try:
        sender = harness.connect(is_stream=True)
        view = stream
        for step in range(len(stream) + 1):
            if not view or sender not in harness.switch.connections():
                break
            view = view[harness.clients[sender].send(view[: size or len(view)]) :]
            harness.run()
            if step == move:
                harness.hand_over()
                harness.run()
        reported = [report[1] for report in harness.events if report[0] == sender]
        assert reported == [packet for packet in packets if not _is_message(packet)]
        assert any(event[:2] == ("ended", sender) for event in harness.events) == is_wrong
        harness.check_balance()
    finally:
        harness.close()


def _is_message(packet: bytes) -> bool:
    """Return whether the switch handles the packet itself, or takes it apart."""
    return packet.startswith(b"MSG ") and b"\0" in packet


def _packets(stream: bytes) -> tuple[list[bytes], bool]:
    """Return the packets in *stream* up to a wrong length, and whether there is one."""
    packets: list[bytes] = []
    while len(stream) >= LENGTH_BYTES:
        (length,) = LENGTH.unpack_from(stream)
        if not 0 < length <= MAX_PACKET_BYTES:
            return packets, True
        if len(stream) < LENGTH_BYTES + length:
            break
        packets.append(stream[LENGTH_BYTES : LENGTH_BYTES + length])
        stream = stream[LENGTH_BYTES + length :]
    return packets, False
