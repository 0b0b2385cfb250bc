"""What one read takes from a socket is bounded in bytes: a client's socket can hold as many megabytes as its SO_SNDBUF."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios

import pytest

from sbus.protocol.packets import MAX_PACKET_BYTES, join_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import UNREAD_BYTES, SoftMode
from tests.support import skips
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message

READ_BYTES = 1 << 20
SEND_BUFFER = 16 << 20
_SO_SNDBUFFORCE = 32
ALICE, BOB = 1_000, 2_000


def large_sender(harness: SwitchHarness, uid: int) -> int:
    """Return a client of a user whose socket holds megabytes."""
    sender = harness.connect()
    harness.set_party(sender, uid)
    end = harness.clients[sender]
    skips.require(os.geteuid() == 0, "needs root, for SO_SNDBUFFORCE", could_run=True)
    end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SEND_BUFFER)
    return sender


def unread(harness: SwitchHarness, number: int) -> int:
    """Return how many bytes of a client the bus has not read."""
    found = fcntl.ioctl(harness.fds[number], termios.FIONREAD, bytes(4))
    return int(struct.unpack("i", found)[0])


def fill(harness: SwitchHarness, number: int, packets: list[bytes], size: int) -> int:
    """Send *packets* again and again, *size* bytes or a little more, and return how many were sent."""
    sent = 0
    while size > 0:
        packet = packets[sent % len(packets)]
        assert harness.send(number, packet)
        size -= len(packet)
        sent += 1
    return sent


LARGEST = message(b"unused", bytes(MAX_PACKET_BYTES - len(message(b"unused", b""))))
SMALL = message(b"unused", b"")
BATCH = join_batch([message(b"unused", bytes(1_000))] * 60)


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize(
    "packets", [[LARGEST], [SMALL] * 2 + [LARGEST] * 19, [BATCH], [SMALL] * 50 + [BATCH] * 14], ids=["large", "mixed", "batches", "few"]
)
def test_a_turn_reads_one_megabyte_of_a_connection(make_harness: MakeHarness, packets: list[bytes], is_alone: bool) -> None:
    harness = make_harness(LimitSettings(turn_time=10.0))
    sender, other = large_sender(harness, ALICE), harness.connect()
    harness.set_party(other, BOB)
    # Reads grow with each that leaves nothing behind.
    for _ in range(10):
        harness.send(sender, SMALL)
        harness.run()
    count = 10 + fill(harness, sender, packets, 7 << 20)
    before, reads = unread(harness, sender), 0
    while before:
        if not is_alone:
            harness.send(other, SMALL)
        harness.switch.turn(0)
        after = unread(harness, sender)
        assert before - after <= READ_BYTES
        reads += after < before
        before = after
    harness.run()
    assert reads >= 7
    batched = 60 * (count - 10) if packets == [BATCH] else None
    assert harness.switch.connection_counters(sender).received_packets >= (count if batched is None else batched)


def test_what_is_read_and_not_handled_exceeds_its_bound_by_one_packet_at_most(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=8, block_timeout=600.0, progress_timeout=600.0))
    slow = harness.connect(b"a", send_buffer=4_608)
    harness.set_party(slow, ALICE)
    harness.configure(slow, soft=SoftMode.BLOCK)
    batch = join_batch([message(b"a", bytes(1_000))] * 400)
    assert len(batch) < MAX_PACKET_BYTES
    for _ in range(20):
        sender = large_sender(harness, ALICE)
        fill(harness, sender, [batch], 2 << 20)
        harness.run()
    packets, queues = harness.switch.queues()
    held = sum(len(packets[place]) for queue in queues.values() for place, _ in queue.unread)
    assert UNREAD_BYTES - MAX_PACKET_BYTES < held <= UNREAD_BYTES + MAX_PACKET_BYTES
