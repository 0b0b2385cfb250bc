"""What is left of a wait when the publisher ends, and of what it had sent. Spec: sbus-protocol(7) §7."""

from __future__ import annotations

import dataclasses

import pytest

from sbusd.config.settings import LimitSettings
from sbusd.dataplane.contract import SoftMode
from sbusd.protocol.batches import join_batch
from tests.support.heap import heap_bytes
from tests.support.world import World

LIMITS = LimitSettings(queue_packets=8, queue_bytes=4 << 20, block_timeout=600.0, progress_timeout=600.0, pace_limit=1.0)
READER, OTHER = 1000, 2000


def paced(world: World, uid: int) -> int:
    publisher = world.connect()
    world.switch.set_party(publisher, uid)
    world.send(publisher, b"CMSG pace/on")
    world.run()
    return publisher


@pytest.mark.parametrize("uid", [READER, OTHER])
@pytest.mark.parametrize("is_drained", [True, False])
def test_a_publisher_that_ends_while_it_waits_and_whose_patterns_are_erased_later(uid: int, is_drained: bool) -> None:
    """It has its number until the last of them is erased, and belongs to nobody: by that the bus could be crashed."""
    world = World(dataclasses.replace(LIMITS, turn_time=1e-6))
    reader, publisher = world.connect(b"a"), paced(world, uid)
    world.switch.set_party(reader, READER)
    for number in range(2_000):
        world.switch.subscribe(publisher, b"p/%d" % number)
    for _ in range(40):
        if not world.send(publisher, b"MSG a\0" + bytes(150_000)):
            break
        world.run()
    assert world.switch.progress(reader).blocks == (publisher,)
    world.hang_up(publisher)
    while publisher in world.switch.connections():
        world.switch.turn(0)
    if is_drained:
        world.receive(reader)
    world.run()
    assert len(world.drain(reader)) > 0
    world.run()
    assert world.switch.progress(reader).blocks == ()
    world.check_balance()
    world.close()


def test_what_is_handled_is_freed_though_its_publisher_waits_again_and_again() -> None:
    """What was put back stood in front of what had been handled, which so stayed until all was."""
    world = World(LIMITS)
    reader, publisher = world.connect(b"a", send_buffer=5_000), paced(world, READER)
    world.switch.set_party(reader, READER)
    world.configure(reader, soft=SoftMode.BLOCK)
    assert world.send(publisher, join_batch([b"MSG a\0"] * 3_000))
    world.run()
    count, heap = 0, []
    while packets := world.receive(reader):
        count += len(packets)
        world.run()
        if world.switch.progress(reader).blocks == (publisher,):
            heap.append(heap_bytes())
    assert count == 3_000
    assert len(heap) > 100
    assert max(heap) - heap[0] < 20_000
    world.check_balance()
    world.close()
