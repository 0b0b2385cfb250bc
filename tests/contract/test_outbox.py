"""What waits for a slow client, and what becomes of what cannot wait: rule 3 of sbusd/dataplane/contract.py."""

from __future__ import annotations

from sbusd.config.settings import LimitSettings
from tests.support.heap import heap_bytes
from tests.support.wire import message
from tests.support.world import MakeWorld, World

LOST = b"CMSG !/bus/lost\0"
SMALL_BUFFER = 20_000


def numbered(number: int, size: int = 1_000) -> bytes:
    """Return a message that says its number."""
    return message(b"a", b"%d " % number + bytes(size))


def check_gaps(received: list[bytes], total: int) -> int:
    """Fail unless all of *total* numbered messages are there, or told as lost in the very place; return how many were lost."""
    expected = lost = 0
    for packet in received:
        if packet.startswith(LOST):
            count = int(packet.removeprefix(LOST))
            assert count > 0
            expected, lost = expected + count, lost + count
        else:
            assert int(packet.removeprefix(b"MSG a\0").split(b" ")[0]) == expected
            expected += 1
    assert expected == total
    return lost


def test_what_a_slow_client_does_not_read_waits_in_order(world: World) -> None:
    slow, sender = world.connect(b"a", send_buffer=SMALL_BUFFER), world.connect()
    for number in range(200):
        assert world.send(sender, numbered(number))
        world.run()
    counters = world.switch.connection_counters(slow)
    assert counters.queued_packets > 100
    assert counters.queued_bytes > 100_000
    assert world.switch.counters().queued_bytes == counters.queued_bytes
    assert check_gaps(world.drain(slow), 200) == 0
    assert world.switch.counters().queued_bytes == world.switch.counters().queued_packets == 0


def test_no_more_packets_wait_than_the_bound(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=3))
    slow, sender = world.connect(b"a", send_buffer=SMALL_BUFFER), world.connect()
    for number in range(100):
        world.send(sender, numbered(number))
        world.run()
        assert world.switch.connection_counters(slow).queued_packets <= 3
    lost = world.switch.connection_counters(slow).lost_packets
    assert lost > 50
    assert check_gaps(world.drain(slow), 100) == lost
    assert sum(told[2] for told in world.told if told[0] == "lost" and isinstance(told[2], int)) == lost


def test_no_more_bytes_wait_than_the_bound(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_bytes=10_000))
    slow, sender = world.connect(b"a", send_buffer=SMALL_BUFFER), world.connect()
    for number in range(100):
        world.send(sender, numbered(number, 3_000 if number % 3 else 10))
        world.run()
        assert world.switch.connection_counters(slow).queued_bytes <= 10_000
    assert world.switch.connection_counters(slow).queued_packets > 2
    lost = world.switch.connection_counters(slow).lost_packets
    assert 0 < lost == check_gaps(world.drain(slow), 100)


def test_each_gap_is_told_in_its_own_place(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=2))
    slow, sender = world.connect(b"a", send_buffer=SMALL_BUFFER), world.connect()
    received: list[bytes] = []
    for number in range(300):
        world.send(sender, numbered(number))
        world.run()
        if number % 60 == 59:
            received += world.drain(slow)
    assert check_gaps(received, 300) == world.switch.connection_counters(slow).lost_packets
    assert sum(packet.startswith(LOST) for packet in received) == 5


def test_a_packet_that_a_socket_can_never_take_is_lost_and_told_in_its_place(world: World) -> None:
    small, large, sender = world.connect(b"a", send_buffer=SMALL_BUFFER), world.connect(b"a"), world.connect()
    for number, size in enumerate([10, 150_000, 10, 150_000, 150_000, 10]):
        assert world.send(sender, numbered(number, size))
        world.run()
    received = world.drain(small)
    assert check_gaps(received, 6) == 3
    assert [packet for packet in received if packet.startswith(LOST)] == [LOST + b"1"] * 3
    assert check_gaps(world.drain(large), 6) == 0
    assert world.switch.connection_counters(small).lost_packets == 3


def test_a_packet_that_a_socket_can_never_take_is_lost_behind_what_waits_too(world: World) -> None:
    small, sender = world.connect(b"a", send_buffer=SMALL_BUFFER), world.connect()
    for number in range(100):
        world.send(sender, numbered(number, 150_000 if number in {70, 99} else 500))
        world.run()
    assert world.switch.connection_counters(small).queued_packets > 50
    assert check_gaps(world.drain(small), 100) == 2


def test_the_answers_of_the_bus_keep_to_the_same_bounds(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=4))
    client = world.connect(send_buffer=SMALL_BUFFER)
    for number in range(100):
        world.send(client, b"CMSG ping\0%d " % number + bytes(1_000))
        world.run()
    assert world.switch.connection_counters(client).queued_packets == 4
    answers = [packet.replace(b"CMSG ping\0", b"MSG a\0") for packet in world.drain(client)]
    assert check_gaps(answers, 100) == world.switch.connection_counters(client).lost_packets > 0


def test_one_that_never_reads_costs_others_nothing(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=5))
    world.connect(b"a", send_buffer=SMALL_BUFFER)
    others, sender = [world.connect(b"a") for _ in range(3)], world.connect()
    received: dict[int, list[bytes]] = {other: [] for other in others}
    for number in range(500):
        assert world.send(sender, numbered(number))
        world.run()
        for other in others:
            received[other] += world.receive(other)
    for packets in received.values():
        assert check_gaps(packets, 500) == 0


def test_what_waits_for_a_client_that_goes_is_given_up_and_counted(world: World) -> None:
    slow, sender = world.connect(b"a", send_buffer=SMALL_BUFFER), world.connect()
    for number in range(100):
        world.send(sender, numbered(number))
    world.run()
    waited = world.switch.connection_counters(slow).queued_packets
    assert waited > 50
    world.hang_up(slow)
    world.run()
    counters = world.switch.counters()
    assert (counters.abandoned_packets, counters.queued_packets, counters.queued_bytes) == (waited, 0, 0)


def test_those_who_wait_share_one_copy_of_a_packet(world: World) -> None:
    size = 300_000
    waiting = [world.connect(b"a", send_buffer=212_992) for _ in range(20)]
    sender = world.connect()
    total = 0
    while not world.switch.connection_counters(waiting[-1]).queued_packets:
        world.send(sender, numbered(total, size))
        world.run()
        total += 1
    before = heap_bytes()
    world.send(sender, numbered(total, size))
    world.run()
    assert [world.switch.connection_counters(client).queued_packets for client in waiting] == [2] * 20
    assert 0.9 * size < heap_bytes() - before < 2 * size
    for client in waiting:
        assert check_gaps(world.drain(client), total + 1) == 0
    assert heap_bytes() < before
    assert world.switch.counters().queued_bytes == 0


def test_many_packets_through_queues_leave_no_memory_behind(world: World) -> None:
    waiting = [world.connect(b"a", send_buffer=SMALL_BUFFER) for _ in range(5)]
    sender = world.connect()

    def one_round() -> None:
        for number in range(60):
            assert world.send(sender, numbered(number, 5_000))
            world.run()
        for client in waiting:
            check_gaps(world.drain(client), 60)
        world.told.clear()

    one_round()
    before = heap_bytes()
    for _ in range(40):
        one_round()
    # One packet leaked in each round would be 200 kB.
    assert heap_bytes() - before < 100_000


def test_each_loss_is_told_in_its_own_place_though_one_is_in_front_and_others_behind(make_world: MakeWorld) -> None:
    """A packet that can never be sent is found at the head of a full queue, when more were lost at its end."""
    world = make_world(LimitSettings(queue_packets=8))
    slow, sender = world.connect(b"a", send_buffer=SMALL_BUFFER), world.connect()
    sent = 0
    while not world.switch.connection_counters(slow).queued_packets:
        world.send(sender, numbered(sent))
        world.run()
        sent += 1
    for size in [300_000, *[1_000] * 12]:
        world.send(sender, numbered(sent, size))
        world.run()
        sent += 1
    lost = check_gaps(world.drain(slow), sent)
    assert lost == world.switch.connection_counters(slow).lost_packets > 2
