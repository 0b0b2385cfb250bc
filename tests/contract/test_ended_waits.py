"""A blocked publisher disconnects: the state of its block and of its packets. Spec: sbus-protocol(7) §7."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from sbus.protocol.packets import join_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import SoftMode
from tests.support.heap import heap_bytes
from tests.support.switch_harness import SwitchHarness

LIMITS = LimitSettings(queue_packets=8, queue_bytes=4 << 20, block_timeout=600.0, progress_timeout=600.0, pace_limit=1.0)
READER, OTHER = 1000, 2000


def paced(harness: SwitchHarness, uid: int) -> int:
    publisher = harness.connect()
    harness.switch.set_party(publisher, uid)
    harness.send(publisher, b"CMSG pace/on")
    harness.run()
    return publisher


@pytest.mark.parametrize("uid", [READER, OTHER])
@pytest.mark.parametrize("is_drained", [True, False])
def test_a_publisher_that_ends_while_it_waits_and_whose_patterns_are_erased_later(uid: int, is_drained: bool) -> None:
    """It keeps its number until the last of them is erased, and has no owner; this once made it possible to crash the bus."""
    harness = SwitchHarness(dataclasses.replace(LIMITS, turn_time=1e-6))
    reader, publisher = harness.connect(b"a"), paced(harness, uid)
    harness.switch.set_party(reader, READER)
    for number in range(2_000):
        harness.switch.subscribe(publisher, b"p/%d" % number)
    for _ in range(40):
        if not harness.send(publisher, b"MSG a\0" + bytes(150_000)):
            break
        harness.run()
    assert harness.switch.progress(reader).blocks == (publisher,)
    harness.hang_up(publisher)
    while publisher in harness.switch.connections():
        harness.switch.turn(0)
    if is_drained:
        harness.receive(reader)
    harness.run()
    assert len(harness.drain(reader)) > 0
    harness.run()
    assert harness.switch.progress(reader).blocks == ()
    harness.check_balance()
    harness.close()


def test_a_publisher_that_closes_while_it_waits_for_itself_has_its_packets_delivered() -> None:
    """It had shut down its sending side before. When its queue found it gone, the bus forgot what it had read and not handled yet."""
    # The packets and the end after them are read in one turn, however slow this machine is.
    harness = SwitchHarness(dataclasses.replace(LIMITS, turn_time=10.0))
    reader, publisher = harness.connect(b"a"), paced(harness, READER)
    harness.switch.set_party(reader, READER)
    harness.switch.subscribe(publisher, b"a")
    packets = [b"MSG a\0%d " % number + bytes(8_000) for number in range(40)]
    assert harness.send(publisher, join_batch(packets))
    harness.clients[publisher].shutdown(socket.SHUT_WR)
    harness.run()
    received = harness.drain(reader)
    assert harness.switch.progress(publisher).blocks == (publisher,)
    assert 0 < len(received) < len(packets)
    harness.hang_up(publisher)
    harness.run()
    assert received + harness.drain(reader) == packets
    assert publisher not in harness.switch.connections()
    harness.check_balance()
    harness.close()


def test_handled_packets_are_freed_even_if_the_publisher_is_blocked_repeatedly() -> None:
    """What was put back stood in front of what had been handled, which so stayed until all was."""
    harness = SwitchHarness(LIMITS)
    reader, publisher = harness.connect(b"a", send_buffer=5_000), paced(harness, READER)
    harness.switch.set_party(reader, READER)
    harness.configure(reader, soft=SoftMode.BLOCK)
    assert harness.send(publisher, join_batch([b"MSG a\0"] * 3_000))
    harness.run()
    count, heap = 0, list[int]()
    while packets := harness.receive(reader):
        count += len(packets)
        harness.run()
        if harness.switch.progress(reader).blocks == (publisher,):
            heap.append(heap_bytes(is_first=not heap))
    assert count == 3_000
    assert len(heap) > 100
    assert max(heap) - heap[0] < 20_000
    harness.check_balance()
    harness.close()
