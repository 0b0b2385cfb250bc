"""Queue groups: of all members with a matching pattern one gets each message. Rule 13 of sbusd/dataplane/contract.py."""

from __future__ import annotations

import pytest

from sbus.protocol.packets import join_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import SoftMode
from tests.support.switch_harness import LONG_TIMEOUTS, MakeHarness, SwitchHarness
from tests.support.wire import message

WORKERS = b"jobs/\0workers"
HEAD = b"CMSG !/group/workers\0"


def member(bus: SwitchHarness, uid: int = 1, stored: bytes = WORKERS) -> int:
    """Return a new client of a user that is a member of a group."""
    number = bus.connect()
    bus.set_party(number, uid, cred=b"!/cred/1/%d/%d" % (uid, number))
    bus.switch.subscribe(number, stored)
    return number


def publish(bus: SwitchHarness, publisher: int, count: int, *, first: int = 0, key: bytes = b"jobs/a", size: int = 0) -> None:
    """Publish messages with numbers, and let the bus settle after each."""
    for number in range(first, first + count):
        assert bus.send(publisher, b"MSG %b\0%d %b" % (key, number, bytes(size)))
        bus.run()


def numbers(packets: list[bytes]) -> list[int]:
    """Return the numbers of messages of the group."""
    assert all(packet.startswith(HEAD + b"MSG jobs/") for packet in packets)
    return [int(packet.split(b"\0")[2].split(b" ")[0]) for packet in packets]


def test_one_member_gets_each_message_in_turn(make_harness: MakeHarness) -> None:
    bus = make_harness()
    members = [member(bus) for _ in range(3)]
    publisher = bus.connect()
    for number in range(9):
        bus.send(publisher, b"MSG jobs/a\0%d" % number)
    bus.run()
    assert [numbers(bus.receive(each)) for each in members] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_other_subscribers_get_every_message_too(make_harness: MakeHarness) -> None:
    bus = make_harness()
    members = [member(bus), member(bus)]
    observer, publisher = bus.connect(b"jobs/"), bus.connect()
    publish(bus, publisher, 4)
    assert bus.receive(observer) == [b"MSG jobs/a\0%d " % number for number in range(4)]
    assert sorted(number for each in members for number in numbers(bus.receive(each))) == [0, 1, 2, 3]


def test_a_connection_gets_a_message_as_subscriber_and_as_member(make_harness: MakeHarness) -> None:
    bus = make_harness()
    both, publisher = member(bus), bus.connect()
    bus.send(both, b"SUB jobs/")
    bus.send(publisher, b"MSG jobs/a\0001")
    bus.send(publisher, b"MSG jobs/a\0002")
    bus.run()
    assert bus.receive(both) == [b"MSG jobs/a\0001", HEAD + b"MSG jobs/a\0001", b"MSG jobs/a\0002", HEAD + b"MSG jobs/a\0002"]


def test_a_receipt_lists_the_member_that_got_the_message(make_harness: MakeHarness) -> None:
    bus = make_harness()
    first, second, publisher = member(bus), member(bus), bus.connect()
    observer = bus.connect(b"jobs/")
    for expected in (first, second, first):
        bus.send(publisher, b"CMSG receipt/recipients\0t")
        publish(bus, publisher, 1)
        assert bus.receive(publisher) == [b"CMSG !/bus/receipt\0t\x002\0%d,%d" % (expected, observer)]


def test_a_receipt_lists_a_connection_once(make_harness: MakeHarness) -> None:
    bus = make_harness()
    both, publisher = member(bus), bus.connect()
    for stored in (b"jobs/", b"jobs/\0others"):
        bus.switch.subscribe(both, stored)
    bus.send(publisher, b"CMSG receipt/recipients\0t")
    publish(bus, publisher, 1)
    assert bus.receive(publisher) == [b"CMSG !/bus/receipt\0t\x003\0%d" % both]


def test_groups_of_the_same_name_belong_to_different_users(make_harness: MakeHarness) -> None:
    """Otherwise another user could take the messages of a group by joining it."""
    bus = make_harness()
    mine, theirs, publisher = member(bus, 1), member(bus, 2), bus.connect()
    publish(bus, publisher, 3)
    assert numbers(bus.receive(mine)) == numbers(bus.receive(theirs)) == [0, 1, 2]


def test_members_of_one_group_may_have_different_patterns(make_harness: MakeHarness) -> None:
    bus = make_harness()
    narrow, wide, publisher = member(bus, stored=b"jobs/a\0workers"), member(bus, stored=b"*/\0workers"), bus.connect()
    publish(bus, publisher, 2, key=b"jobs/b")
    assert numbers(bus.receive(wide)) == [0, 1]
    publish(bus, publisher, 4, first=2)
    assert len(bus.receive(narrow)) == len(bus.receive(wide)) == 2


def test_a_member_with_unread_messages_gets_no_more_while_another_reads(make_harness: MakeHarness) -> None:
    bus = make_harness()
    idle, busy, publisher = member(bus), member(bus), bus.connect()
    done: list[int] = []
    for number in range(20):
        publish(bus, publisher, 1, first=number)
        done += numbers(bus.receive(idle))
    assert len(bus.receive(busy)) == 1
    assert len(done) == 19


def test_a_message_goes_to_a_member_whose_queue_has_room(make_harness: MakeHarness) -> None:
    bus = make_harness(LimitSettings(queue_packets=3))
    full, publisher = member(bus), bus.connect()
    publish(bus, publisher, 100, size=50_000)
    assert bus.switch.connection_counters(full).queued_packets
    lost = bus.switch.counters().lost_packets
    empty = member(bus)
    publish(bus, publisher, 3, first=100, size=10)
    assert numbers(bus.receive(empty)) == [100, 101, 102]
    assert bus.switch.counters().lost_packets == lost


def test_groups_that_do_not_read_cost_a_publisher_little(make_harness: MakeHarness) -> None:
    """Else one user with many groups slows down all publishers of a key. The estimate of the time for routing splits no batch for them."""
    bus = make_harness(LimitSettings(queue_packets=3, turn_time=1e-4))
    reader, publisher = bus.connect(b"jobs/"), bus.connect()
    for number, uid in ((reader, 2), (publisher, 3)):
        bus.set_party(number, uid)
    full = [member(bus, stored=b"jobs/\0%d" % number) for number in range(64)]
    while any(not bus.switch.connection_counters(each).lost_packets for each in full):
        publish(bus, publisher, 1, size=50_000)
        bus.receive(reader)
    lost = bus.switch.counters().lost_packets
    packets = [message(b"jobs/a", b"%d" % number) for number in range(40)]
    bus.send(publisher, join_batch(packets))
    bus.switch.turn(0)
    assert bus.receive(reader) == packets
    assert bus.switch.counters().lost_packets == lost + 64 * len(packets)


def test_a_full_group_leaves_the_messages_of_another_group_alone(make_harness: MakeHarness) -> None:
    """Both match the same key: the members of one group take turns, and the other group loses all messages of the batch."""
    bus = make_harness(LimitSettings(queue_packets=3))
    for _ in range(2):
        member(bus, stored=b"jobs/\0full")
    publisher = bus.connect()
    while not bus.switch.counters().lost_packets:
        publish(bus, publisher, 1, size=50_000)
    lost = bus.switch.counters().lost_packets
    working = [member(bus), member(bus)]
    bus.send(publisher, join_batch([message(b"jobs/a", b"%d" % number) for number in range(40)]))
    bus.switch.turn(0)
    assert [len(bus.receive(each)) for each in working] == [20, 20]
    assert bus.switch.counters().lost_packets == lost + 40


@pytest.mark.parametrize("sends_senders", [False, True])
def test_the_queue_of_a_member_that_ends_goes_to_another(make_harness: MakeHarness, sends_senders: bool) -> None:
    bus = make_harness()
    first, publisher = member(bus), bus.connect()
    if sends_senders:
        bus.send(first, b"CMSG sender/on")
    publish(bus, publisher, 40, size=20_000)
    queued = bus.switch.connection_counters(first).queued_packets
    assert queued > 10
    second = member(bus)
    bus.hang_up(first)
    bus.run()
    packets = bus.drain(second)
    heads = {packet.rpartition(b"MSG ")[0] for packet in packets}
    assert heads == {HEAD + (b"CMSG !/from/%d/\0" % publisher if sends_senders else b"")}
    assert [int(packet.split(b"\0")[2 + sends_senders].split(b" ")[0]) for packet in packets] == list(range(40 - queued, 40))
    assert bus.switch.counters().redelivered_packets == queued


def test_messages_for_a_member_that_has_closed_go_to_another_at_once(make_harness: MakeHarness) -> None:
    """The bus learns that a client has closed only when it looks; what it sends before that must not be lost."""
    bus = make_harness()
    first, second, publisher = member(bus), member(bus), bus.connect()
    for number in range(10):
        bus.send(publisher, b"MSG jobs/a\0%d" % number)
    bus.hang_up(first)
    bus.run()
    assert sorted(numbers(bus.drain(second))) == list(range(10))


def test_without_another_member_the_queue_is_abandoned(make_harness: MakeHarness) -> None:
    bus = make_harness()
    only, publisher = member(bus), bus.connect()
    publish(bus, publisher, 40, size=20_000)
    queued = bus.switch.connection_counters(only).queued_packets
    bus.hang_up(only)
    bus.run()
    counters = bus.switch.counters()
    assert (counters.abandoned_packets, counters.redelivered_packets, counters.queued_packets) == (queued, 0, 0)
    publish(bus, publisher, 1)
    assert bus.switch.counters().undeliverable == 1


def test_a_queue_goes_to_nobody_whose_pattern_does_not_match(make_harness: MakeHarness) -> None:
    bus = make_harness()
    first, publisher = member(bus), bus.connect()
    publish(bus, publisher, 40, size=20_000)
    other, foreign = member(bus, stored=b"jobs/b\0workers"), member(bus, 2)
    bus.hang_up(first)
    bus.run()
    assert bus.receive(other) == bus.receive(foreign) == []


def test_leaving_ends_the_membership_with_its_last_pattern(make_harness: MakeHarness) -> None:
    bus = make_harness()
    one, publisher = member(bus), bus.connect()
    bus.switch.subscribe(one, WORKERS)
    assert bus.switch.patterns(one) == {WORKERS: 2}
    assert bus.switch.unsubscribe(one, WORKERS)
    publish(bus, publisher, 1)
    assert numbers(bus.receive(one)) == [0]
    assert bus.switch.unsubscribe(one, WORKERS)
    assert not bus.switch.unsubscribe(one, WORKERS)
    publish(bus, publisher, 1)
    assert bus.receive(one) == []
    assert bus.switch.recipients(b"jobs/a") == []


def test_all_members_are_recipients_for_questions(make_harness: MakeHarness) -> None:
    bus = make_harness()
    both = member(bus)
    bus.send(both, b"SUB jobs/a")
    bus.run()
    other = member(bus)
    assert bus.switch.recipients(b"jobs/a") == [both, other]


def test_a_receipt_counts_one_member(make_harness: MakeHarness) -> None:
    bus = make_harness()
    members, publisher = [member(bus), member(bus)], bus.connect()
    bus.send(publisher, b"CMSG receipt/always\0t")
    publish(bus, publisher, 1)
    assert bus.receive(publisher) == [b"CMSG !/bus/receipt\0t\0001"]
    bus.hang_up(members[0])
    bus.send(publisher, b"CMSG receipt/always\0u")
    bus.send(publisher, b"MSG jobs/a\0x")
    bus.run()
    assert bus.receive(publisher) == [b"CMSG !/bus/receipt\0u\0001"]


def test_a_member_does_not_get_its_own_messages_without_echo(make_harness: MakeHarness) -> None:
    bus = make_harness()
    worker, other = member(bus), member(bus)
    bus.configure(worker, echo=False)
    publish(bus, worker, 3)
    assert bus.receive(worker) == []
    assert numbers(bus.receive(other)) == [0, 1, 2]


def test_a_publisher_waits_for_the_member_that_blocks(make_harness: MakeHarness) -> None:
    bus = make_harness(LONG_TIMEOUTS)
    only = member(bus)
    bus.configure(only, soft=SoftMode.BLOCK)
    publisher = bus.connect()
    bus.set_party(publisher, 1)
    for number in range(200):
        bus.send(publisher, b"MSG jobs/a\0%d %b" % (number, bytes(5_000)))
        bus.run()
    assert bus.switch.waits(publisher).blocked_by_count == 1
    got = numbers(bus.drain(only))
    assert got == list(range(len(got)))
    assert bus.switch.counters().lost_packets == 0


def test_messages_of_a_group_come_with_their_sender_in_batches(make_harness: MakeHarness) -> None:
    bus = make_harness()
    worker, publisher = member(bus), bus.connect()
    bus.set_party(publisher, 1, cred=b"!/cred/1/1/7", may_vouch=True)
    for setting in (b"sender/on", b"batch/on"):
        bus.send(worker, b"CMSG " + setting)
    bus.run()
    bus.send(publisher, b"MSG jobs/a\0001")
    bus.send(publisher, b"CMSG !/from/x/!/cred/1/2/3\0MSG jobs/a\0002")
    bus.run()
    (batch,) = bus.receive(worker)
    sender = b"CMSG !/from/%d/!/cred/1/1/7" % publisher
    packets = [HEAD + sender + b"\0MSG jobs/a\0001", HEAD + sender + b"/x/!/cred/1/2/3\0MSG jobs/a\0002"]
    assert batch == b"CMSG !/batch\0" + b"".join(len(packet).to_bytes(4, "little") + packet for packet in packets)


def test_a_loss_is_reported_to_all_members(make_harness: MakeHarness) -> None:
    bus = make_harness()
    members = [member(bus), member(bus), member(bus, stored=b"other/\0workers")]
    assert bus.switch.report_loss([b"jobs/"], 5, uid=1) == 2
    assert [bus.receive(each) for each in members] == [[b"CMSG !/bus/lost\0005"]] * 2 + [[]]


def test_groups_and_their_queues_survive_a_handover(make_harness: MakeHarness) -> None:
    bus = make_harness()
    first, publisher = member(bus), bus.connect()
    publish(bus, publisher, 40, size=20_000)
    queued = bus.switch.connection_counters(first).queued_packets
    bus.hand_over()
    second = member(bus)
    bus.hang_up(first)
    bus.run()
    assert numbers(bus.drain(second)) == list(range(40 - queued, 40))
    publish(bus, publisher, 1, first=40)
    assert numbers(bus.receive(second)) == [40]
    assert bus.switch.counters().redelivered_packets == queued


def test_a_handover_passes_on_what_ended_members_left(make_harness: MakeHarness) -> None:
    bus = make_harness(LimitSettings(turn_time=0.0001, queue_packets=10_000))
    first, publisher = member(bus), bus.connect()
    publish(bus, publisher, 3_000, size=10)
    queued = bus.switch.connection_counters(first).queued_packets
    assert queued > 1_000
    second = member(bus)
    bus.hang_up(first)
    bus.switch.turn(0)
    bus.switch.take_down()
    bus.hand_over()
    assert numbers(bus.drain(second)) == list(range(3_000 - queued, 3_000))


def test_a_turn_without_time_passes_on_one_message(make_harness: MakeHarness) -> None:
    bus = make_harness(LimitSettings(turn_time=0.0, queue_packets=10_000))
    first, publisher = member(bus), bus.connect()
    publish(bus, publisher, 40, size=20_000)
    queued = bus.switch.connection_counters(first).queued_packets
    second = member(bus)
    bus.hang_up(first)
    passed = [0]
    while bus.switch.turn(0) or passed[-1] < queued:
        passed.append(bus.switch.counters().redelivered_packets)
        assert passed[-1] - passed[-2] <= 1
    assert queued > 16
    assert numbers(bus.drain(second)) == list(range(40 - queued, 40))


def test_many_members_leave_no_memory_behind(make_harness: MakeHarness) -> None:
    bus = make_harness()
    one = member(bus)
    for number in range(500):
        bus.switch.subscribe(one, b"a/%d\0g%d" % (number, number % 7))
    bus.hang_up(one)
    bus.run()
    assert bus.switch.counters().subscriptions == 0
    fresh = member(bus)
    publisher = bus.connect()
    publish(bus, publisher, 2)
    assert numbers(bus.receive(fresh)) == [0, 1]


def test_limits_of_groups(make_harness: MakeHarness) -> None:
    bus = make_harness()
    members = [member(bus, stored=b"a\0first") for _ in range(17)]
    for number, each in enumerate(members):
        for group in range(15):
            name = b"%d" % (15 * number + group)
            assert bus.switch.may_join(each, name) is (number * 15 + group < 255)
            if bus.switch.may_join(each, name):
                bus.switch.subscribe(each, b"a\0" + name)
    assert not bus.switch.may_join(members[0], b"more")
    assert bus.switch.may_join(members[0], b"first")
    assert not bus.switch.may_join(members[0], b"200")
    assert bus.switch.may_join(member(bus), b"200")
    assert bus.switch.may_join(member(bus, uid=2), b"more")
    for each in members[1:]:
        bus.hang_up(each)
    bus.run()
    assert bus.switch.may_join(member(bus), b"more")
