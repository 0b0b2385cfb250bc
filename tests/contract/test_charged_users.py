"""Ids that are charged to one user, such as those of its containers: its limits, without its rights. See also test_fair.py."""

from __future__ import annotations

from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import HardMode
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message

COUNT = 30
BIG = bytes(150_000)
"""A socket takes two or three of these."""


def publish(harness: SwitchHarness, sender: int) -> None:
    """Publish more than a socket takes."""
    for _ in range(COUNT):
        assert harness.send(sender, message(b"a", BIG))
        harness.run()


def test_they_have_the_share_of_one_user_in_a_queue(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=8))
    reader, friend = harness.connect(b"a"), harness.connect()
    harness.set_party(reader, 1)
    harness.set_party(friend, 3)
    for uid in range(200, 204):
        flooder = harness.connect()
        harness.set_party(flooder, uid, charged=2)
        publish(harness, flooder)
    assert harness.switch.connection_counters(reader).queued_packets == 4
    publish(harness, friend)
    assert harness.switch.connection_counters(reader).queued_packets >= 6


def test_their_queues_are_bounded_together_and_do_not_block_that_user(harness: SwitchHarness) -> None:
    readers, sender = [harness.connect(b"a") for _ in range(4)], harness.connect()
    harness.set_party(sender, 1000)
    for number, reader in enumerate(readers):
        harness.set_party(reader, 200 + number, charged=1000)
        harness.configure(reader, hard=HardMode.BLOCK)
    harness.set_user_limits(1000, 5, 1 << 30)
    publish(harness, sender)
    counters = [harness.switch.connection_counters(reader) for reader in readers]
    assert harness.switch.user_counters(1000).queued_packets == sum(each.queued_packets for each in counters) == 5
    assert {each.delivered_packets + each.queued_packets + each.lost_packets for each in counters} == {COUNT}


def test_each_has_groups_of_its_own(harness: SwitchHarness) -> None:
    members, sender = [harness.connect(), harness.connect()], harness.connect()
    for number, member in enumerate(members):
        harness.set_party(member, 200 + number, charged=1000)
        harness.switch.subscribe(member, b"b\0workers")
    assert harness.send(sender, message(b"b", b""))
    harness.run()
    assert [len(harness.receive(member)) for member in members] == [1, 1]
