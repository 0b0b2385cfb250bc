"""The queue of a slow client, and the packets that do not fit into it: rule 3 of sbusd/dataplane/contract.py."""

from __future__ import annotations

from sbus_programs.config.settings import LimitSettings
from tests.support.heap import heap_bytes
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message

LOST = b"CMSG !/bus/lost\0"
SMALL_BUFFER = 20_000


def numbered(number: int, size: int = 1_000) -> bytes:
    """Return a message that says its number."""
    return message(b"a", b"%d " % number + bytes(size))


def check_gaps(received: list[bytes], total: int) -> int:
    """Fail unless each of *total* numbered messages was received, or reported as lost in its place; return the number of losses."""
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


def test_packets_for_a_slow_client_are_queued_in_order(harness: SwitchHarness) -> None:
    slow, sender = harness.connect(b"a", send_buffer=SMALL_BUFFER), harness.connect()
    for number in range(200):
        assert harness.send(sender, numbered(number))
        harness.run()
    counters = harness.switch.connection_counters(slow)
    assert counters.queued_packets > 100
    assert counters.queued_bytes > 100_000
    assert harness.switch.counters().queued_bytes == counters.queued_bytes
    assert check_gaps(harness.drain(slow), 200) == 0
    assert harness.switch.counters().queued_bytes == harness.switch.counters().queued_packets == 0


def test_no_more_packets_wait_than_the_bound(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=3))
    slow, sender = harness.connect(b"a", send_buffer=SMALL_BUFFER), harness.connect()
    for number in range(100):
        harness.send(sender, numbered(number))
        harness.run()
        assert harness.switch.connection_counters(slow).queued_packets <= 3
    lost = harness.switch.connection_counters(slow).lost_packets
    assert lost > 50
    assert check_gaps(harness.drain(slow), 100) == lost
    assert sum(event[2] for event in harness.events if event[0] == "lost" and isinstance(event[2], int)) == lost


def test_no_more_bytes_wait_than_the_bound(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_bytes=10_000))
    slow, sender = harness.connect(b"a", send_buffer=SMALL_BUFFER), harness.connect()
    for number in range(100):
        harness.send(sender, numbered(number, 3_000 if number % 3 else 10))
        harness.run()
        assert harness.switch.connection_counters(slow).queued_bytes <= 10_000
    assert harness.switch.connection_counters(slow).queued_packets > 2
    lost = harness.switch.connection_counters(slow).lost_packets
    assert 0 < lost == check_gaps(harness.drain(slow), 100)


def test_each_gap_is_reported_in_its_place(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=2))
    slow, sender = harness.connect(b"a", send_buffer=SMALL_BUFFER), harness.connect()
    received: list[bytes] = []
    for number in range(300):
        harness.send(sender, numbered(number))
        harness.run()
        if number % 60 == 59:
            received += harness.drain(slow)
    assert check_gaps(received, 300) == harness.switch.connection_counters(slow).lost_packets
    assert sum(packet.startswith(LOST) for packet in received) == 5


def test_a_packet_larger_than_the_socket_buffer_is_lost_and_reported_in_its_place(harness: SwitchHarness) -> None:
    small, large, sender = harness.connect(b"a", send_buffer=SMALL_BUFFER), harness.connect(b"a"), harness.connect()
    for number, size in enumerate([10, 150_000, 10, 150_000, 150_000, 10]):
        assert harness.send(sender, numbered(number, size))
        harness.run()
    received = harness.drain(small)
    assert check_gaps(received, 6) == 3
    assert [packet for packet in received if packet.startswith(LOST)] == [LOST + b"1"] * 3
    assert check_gaps(harness.drain(large), 6) == 0
    assert harness.switch.connection_counters(small).lost_packets == 3


def test_a_packet_larger_than_the_socket_buffer_is_lost_after_queued_ones_too(harness: SwitchHarness) -> None:
    small, sender = harness.connect(b"a", send_buffer=SMALL_BUFFER), harness.connect()
    for number in range(100):
        harness.send(sender, numbered(number, 150_000 if number in {70, 99} else 500))
        harness.run()
    assert harness.switch.connection_counters(small).queued_packets > 50
    assert check_gaps(harness.drain(small), 100) == 2


def test_the_answers_of_the_bus_keep_to_the_same_bounds(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=4))
    client = harness.connect(send_buffer=SMALL_BUFFER)
    for number in range(100):
        harness.send(client, b"CMSG ping\0%d " % number + bytes(1_000))
        harness.run()
    assert harness.switch.connection_counters(client).queued_packets == 4
    answers = [packet.replace(b"CMSG ping\0", b"MSG a\0") for packet in harness.drain(client)]
    assert check_gaps(answers, 100) == harness.switch.connection_counters(client).lost_packets > 0


def test_one_that_never_reads_costs_others_nothing(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=5))
    harness.connect(b"a", send_buffer=SMALL_BUFFER)
    others, sender = [harness.connect(b"a") for _ in range(3)], harness.connect()
    received: dict[int, list[bytes]] = {other: [] for other in others}
    for number in range(500):
        assert harness.send(sender, numbered(number))
        harness.run()
        for other in others:
            received[other] += harness.receive(other)
    for packets in received.values():
        assert check_gaps(packets, 500) == 0


def test_packets_queued_for_a_closed_client_are_counted_as_abandoned(harness: SwitchHarness) -> None:
    slow, sender = harness.connect(b"a", send_buffer=SMALL_BUFFER), harness.connect()
    for number in range(100):
        harness.send(sender, numbered(number))
    harness.run()
    waited = harness.switch.connection_counters(slow).queued_packets
    assert waited > 50
    harness.hang_up(slow)
    harness.run()
    counters = harness.switch.counters()
    assert (counters.abandoned_packets, counters.queued_packets, counters.queued_bytes) == (waited, 0, 0)


def test_queues_share_one_copy_of_a_packet(harness: SwitchHarness) -> None:
    size = 300_000
    waiting = [harness.connect(b"a", send_buffer=212_992) for _ in range(20)]
    sender = harness.connect()
    total = 0
    while not harness.switch.connection_counters(waiting[-1]).queued_packets:
        harness.send(sender, numbered(total, size))
        harness.run()
        total += 1
    before = heap_bytes()
    harness.send(sender, numbered(total, size))
    harness.run()
    assert [harness.switch.connection_counters(client).queued_packets for client in waiting] == [2] * 20
    assert 0.9 * size < heap_bytes() - before < 2 * size
    for client in waiting:
        assert check_gaps(harness.drain(client), total + 1) == 0
    assert heap_bytes() < before
    assert harness.switch.counters().queued_bytes == 0


def test_many_packets_through_queues_leave_no_memory_behind(harness: SwitchHarness) -> None:
    waiting = [harness.connect(b"a", send_buffer=SMALL_BUFFER) for _ in range(5)]
    sender = harness.connect()

    def one_round() -> None:
        for number in range(60):
            assert harness.send(sender, numbered(number, 5_000))
            harness.run()
        for client in waiting:
            check_gaps(harness.drain(client), 60)
        harness.events.clear()

    one_round()
    before = heap_bytes()
    for _ in range(40):
        one_round()
    # One packet leaked in each round would be 200 kB.
    assert heap_bytes() - before < 100_000


def test_losses_before_and_after_a_packet_are_reported_in_their_places(make_harness: MakeHarness) -> None:
    """A packet that can never be sent is found at the head of a full queue, when more were lost at its end."""
    harness = make_harness(LimitSettings(queue_packets=8))
    slow, sender = harness.connect(b"a", send_buffer=SMALL_BUFFER), harness.connect()
    sent = 0
    while not harness.switch.connection_counters(slow).queued_packets:
        harness.send(sender, numbered(sent))
        harness.run()
        sent += 1
    for size in [300_000, *[1_000] * 12]:
        harness.send(sender, numbered(sent, size))
        harness.run()
        sent += 1
    lost = check_gaps(harness.drain(slow), sent)
    assert lost == harness.switch.connection_counters(slow).lost_packets > 2
