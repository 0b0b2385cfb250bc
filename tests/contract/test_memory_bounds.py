"""The queue limits bound memory, and the defaults suit healthy readers: rule 6 of sbusd/dataplane/contract.py."""

from __future__ import annotations

import resource

import pytest

from sbus.protocol.packets import join_batch
from sbus_programs.config.quantities import NO_BOUND
from sbus_programs.config.settings import LimitSettings, Quotas
from sbusd.broker.quota_usage import PATTERN_BYTES, SEGMENT_BYTES, STATE_COPIES
from sbusd.dataplane.contract import KNOWN_KEY_BYTES, RANDOM_PACKETS, HardMode, Order, waiting_bytes
from sbusd.state.records import STORED_BYTES
from tests.support.heap import heap_bytes
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message

SMALL_BUFFER = 5_000
READER, OTHER = 1000, 2000
MIB = 1 << 20


def user_of(harness: SwitchHarness, uid: int, *patterns: bytes, send_buffer: int | None = SMALL_BUFFER) -> int:
    """Add a client of the user *uid*, under the default quotas, that can leave little unread."""
    client = harness.connect(*patterns, send_buffer=send_buffer)
    harness.set_party(client, uid)
    quotas = Quotas()
    harness.set_user_limits(uid, quotas.queued_packets, quotas.queued_bytes)
    harness.configure(client, hard=HardMode.DISCARD)
    return client


def publish_many(harness: SwitchHarness, sender: int, packet: bytes, count: int) -> None:
    """Publish *packet* repeatedly, in batches."""
    most = max(1, 60_000 // (len(packet) + 4))
    while count:
        part = min(most, count)
        assert harness.send(sender, join_batch([packet] * part) if part > 1 else packet)
        harness.run()
        count -= part


@pytest.mark.parametrize(("length", "count"), [(6, 100_000), (64, 50_000), (1_000, 10_000), (60_000, 200)])
def test_the_charge_equals_the_used_memory(length: int, count: int) -> None:
    harness = SwitchHarness(LimitSettings(queued_memory=1 << 30))
    buffer = max(SMALL_BUFFER, 2 * length)
    reader, sender = user_of(harness, READER, b"a", send_buffer=buffer), user_of(harness, READER)
    packet = message(b"a", bytes(length - len(message(b"a", b""))))
    publish_many(harness, sender, packet, 8 * buffer // length)
    before, charged = heap_bytes(), harness.switch.counters().queued_bytes
    publish_many(harness, sender, packet, count)
    taken, charged = heap_bytes() - before, harness.switch.counters().queued_bytes - charged
    assert harness.switch.connection_counters(reader).lost_packets == 0
    assert charged == count * waiting_bytes(length)
    assert 0.97 * charged <= taken <= 1.02 * charged
    assert harness.switch.user_counters(READER).queued_bytes == harness.switch.counters().queued_bytes
    harness.check_balance()
    harness.close()


def test_a_packet_of_several_queues_is_charged_in_each_and_held_once(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queued_memory=16 * MIB))
    readers = [user_of(harness, READER + number, b"a", send_buffer=400_000) for number in range(10)]
    sender = user_of(harness, OTHER)
    # Ten times 200,000 bytes are charged, and the bus holds 3 MB: a fifth of what it may.
    publish_many(harness, sender, message(b"a", bytes(199_000)), 16)
    for reader in readers:
        counters = harness.switch.connection_counters(reader)
        assert counters.lost_packets == 0
        assert counters.queued_bytes == counters.queued_packets * waiting_bytes(199_000 + len(message(b"a", b"")))


@pytest.mark.parametrize("length", [400, 8_000])
def test_a_reader_may_be_32_mib_behind_a_publisher_of_another_user(make_harness: MakeHarness, length: int) -> None:
    harness = make_harness()
    reader, sender = user_of(harness, READER, b"a"), user_of(harness, OTHER)
    packet = message(b"a", bytes(length))
    most = 32 * MIB // waiting_bytes(len(packet))
    publish_many(harness, sender, packet, most - 10)
    counters = harness.switch.connection_counters(reader)
    assert counters.lost_packets == 0
    assert counters.queued_bytes > 31 * MIB
    publish_many(harness, sender, packet, 100)
    assert harness.switch.connection_counters(reader).lost_packets > 0
    assert harness.switch.connection_counters(reader).queued_bytes <= 32 * MIB + waiting_bytes(48)


def test_ten_users_fit_while_another_one_uses_all_of_its_quota() -> None:
    limits, quotas = LimitSettings(), Quotas()
    # By the rule of contract.py: each may hold at most as much as it leaves free.
    behind = 32 * MIB
    assert quotas.queued_bytes + 10 * behind + behind <= limits.queued_memory
    assert 2 * behind <= limits.queue_bytes <= quotas.queued_bytes
    assert limits.queue_packets == quotas.queued_packets == NO_BOUND


def test_queues_are_freed_in_steps_and_charged_until_then() -> None:
    harness = SwitchHarness(LimitSettings(turn_time=1e-6))
    reader, sender = user_of(harness, READER, b"a"), user_of(harness, OTHER)
    keeper = user_of(harness, READER, b"b")
    empty = heap_bytes()
    publish_many(harness, sender, message(b"a", b""), 200_000)
    before, waited = heap_bytes(), harness.switch.user_counters(READER).queued_bytes
    assert before - empty > 10 * MIB
    harness.switch.set_user_limits(READER, NO_BOUND, waited)
    harness.clients.pop(reader).close()
    while reader in harness.switch.connections():
        harness.switch.turn(0)
    assert heap_bytes() - empty > 9 * MIB, "all was freed in one turn"
    assert harness.switch.user_counters(READER).queued_packets == harness.switch.counters().queued_packets == 0
    assert harness.switch.counters().abandoned_packets > 190_000
    for number in range(3):
        assert harness.send(sender, message(b"b", bytes(60_000) + b"%d" % number))
    harness.switch.turn(0)
    assert harness.switch.connection_counters(keeper).lost_packets > 0, "the user has room, though its memory is not free yet"
    for _ in range(10_000):
        harness.switch.turn(0)
    assert heap_bytes() - empty < MIB
    harness.check_balance()
    harness.close()


def test_a_disconnected_user_is_removed_when_its_memory_is_free() -> None:
    harness = SwitchHarness(LimitSettings(turn_time=1e-6))
    reader, sender = user_of(harness, READER, b"a"), user_of(harness, OTHER)
    publish_many(harness, sender, message(b"a", b""), 5_000)
    harness.hang_up(reader)
    while reader in harness.switch.connections():
        harness.switch.turn(0)
    assert harness.switch.user_counters(READER) == (0, 0, 0, 0)
    assert READER not in harness.switch.tally().lost_by_user
    back = user_of(harness, READER, b"a")
    publish_many(harness, sender, message(b"a", b""), 5_000)
    assert harness.switch.connection_counters(back).lost_packets == 0
    harness.run()
    harness.hang_up(back)
    harness.run()
    harness.close()


def test_a_random_order_looks_at_the_oldest_packets_alone(make_harness: MakeHarness) -> None:
    harness = make_harness()
    reader, sender = user_of(harness, READER, b"a"), user_of(harness, READER)
    harness.configure(reader, order=Order.RANDOM)
    while not harness.switch.connection_counters(reader).queued_packets:
        publish_many(harness, sender, message(b"a", bytes(1_000)), 1)
    publish_many(harness, sender, message(b"a", b"small"), RANDOM_PACKETS // 2)
    publish_many(harness, sender, message(b"a", b"among the oldest" + bytes(1_000)), 1)
    publish_many(harness, sender, message(b"a", b"small"), RANDOM_PACKETS)
    publish_many(harness, sender, message(b"a", b"too far behind" + bytes(2_000)), 1)
    received = [packet[6:] for packet in harness.drain(reader)]
    among, behind = (next(place for place, each in enumerate(received) if each.startswith(what)) for what in (b"among", b"too"))
    small = received.index(b"small")
    assert among < small < behind
    assert len(received) - 1 > behind


def test_a_client_without_messages_gets_its_loss_reports_in_every_order(harness: SwitchHarness) -> None:
    client = harness.connect(send_buffer=SMALL_BUFFER)
    harness.configure(client, order=Order.STACK)
    for number in range(20):
        harness.switch.send(client, b"CMSG note\0%d " % number + bytes(1_000))
    assert harness.switch.connection_counters(client).queued_packets
    assert [int(packet[10:].split(b" ")[0]) for packet in harness.drain(client)] == list(range(20))


def heap_of(patterns: list[bytes], others: list[bytes]) -> int:
    """Return what *patterns* take in the switch, after *others* came and went."""
    harness = SwitchHarness()
    client, other = harness.connect(), harness.connect()
    before = heap_bytes()
    for pattern in patterns:
        harness.switch.subscribe(client, pattern)
    for pattern in others:
        harness.switch.subscribe(other, pattern)
    for pattern in others:
        harness.switch.unsubscribe(other, pattern)
    taken = heap_bytes() - before
    harness.close()
    return taken


def test_an_idle_pattern_uses_less_than_200_bytes() -> None:
    """A block of the trie and one of the connection: it took 576 bytes while each segment was a node."""
    patterns = [b"idle/%d/*/x" % number for number in range(20_000)]
    assert 40 <= heap_of(patterns, []) / len(patterns) <= 150


LITERALS = [format(number, "012b").encode() for number in range(4_096)]
DEEP = [b"/".join([b"%d" % number, *[b"abcdefghijklmnop*"] * 300]) for number in range(10)]


@pytest.mark.parametrize(
    ("patterns", "others"),
    [
        (LITERALS, []),
        ([literal + b"*" for literal in LITERALS], []),
        ([literal + b"*" for literal in LITERALS], [literal + b"*/y" for literal in LITERALS]),
        ([literal + b"*/x*" for literal in LITERALS], [literal + b"*/y" for literal in LITERALS]),
        ([pattern + b"/y" for pattern in DEEP], [pattern + b"/z" for pattern in DEEP]),
    ],
    ids=["exact", "forked", "forked and shared", "both", "deep and shared"],
)
def test_a_pattern_never_uses_more_memory_than_its_charge(patterns: list[bytes], others: list[bytes]) -> None:
    """The state that is kept besides has twice the bytes of each, and the heads of two records."""
    kept = STATE_COPIES * STORED_BYTES
    used = min(heap_of(patterns, others) for _ in range(3))  # without what the first one leaves in caches of the process
    charged = sum(2 * len(pattern) + SEGMENT_BYTES * (pattern.count(b"/") + 1) + PATTERN_BYTES - kept for pattern in patterns)
    assert 0.2 * charged <= used <= charged


def test_memory_of_a_drained_queue_is_not_faulted_in_again() -> None:
    """What was freed went back to the kernel 128 KiB at a time: each 64 KiB packet that waited cost 16 page faults."""
    harness = SwitchHarness()
    reader, sender = user_of(harness, READER, b"a", send_buffer=200_000), user_of(harness, READER)
    packet = message(b"a", bytes(60_000))
    faults = []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        publish_many(harness, sender, packet, 130)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        harness.drain(reader)  # not counted: the test reads into memory of its own, which can be new each time
    assert harness.switch.connection_counters(reader).lost_packets == 0
    # With what was given back they are 16 for each packet.
    assert sum(faults[10:]) < 10 * 130 * 8, faults
    harness.close()


def test_cached_keys_are_freed_in_steps_and_charged_until_then() -> None:
    harness = SwitchHarness(LimitSettings(turn_time=1e-6, cache_bytes=1 << 16))
    reader, sender = user_of(harness, READER, b""), user_of(harness, READER)
    harness.configure(reader, order=Order.LATEST)
    publish_many(harness, sender, message(b"full", bytes(400)), 30)
    count = 50_000
    before, charged = heap_bytes(), harness.switch.counters().queued_bytes
    for first in range(0, count, 1_000):
        assert harness.send(sender, join_batch([message(b"%06d" % number, b"") for number in range(first, first + 1_000)]))
        harness.run()
    taken, charged = heap_bytes() - before, harness.switch.counters().queued_bytes - charged
    assert harness.switch.connection_counters(reader).lost_packets == 0
    assert charged == count * (waiting_bytes(len(message(b"000000", b""))) + KNOWN_KEY_BYTES)
    assert 0.97 * charged <= taken <= 1.02 * charged
    held = heap_bytes()
    harness.configure(reader, order=Order.QUEUE)
    assert heap_bytes() - held > -0.1 * count * KNOWN_KEY_BYTES, "all was freed at once"
    assert harness.switch.connection_counters(reader).queued_bytes < charged
    harness.run()
    assert heap_bytes() - held < -0.95 * count * KNOWN_KEY_BYTES
    harness.check_balance()
    harness.close()


def test_keys_of_another_user_take_half_of_the_room_and_their_cost_is_bounded(make_harness: MakeHarness) -> None:
    """A hostile publisher gives each message a new key: it takes its share and no more, and keeps no other user out."""
    harness = make_harness(LimitSettings(queue_bytes=MIB))
    reader, hostile, own = user_of(harness, READER, b""), user_of(harness, OTHER), user_of(harness, READER)
    harness.configure(reader, order=Order.LATEST)
    for first in range(0, 20_000, 1_000):
        assert harness.send(hostile, join_batch([message(b"%06d" % number, b"") for number in range(first, first + 1_000)]))
        harness.run()
    counters = harness.switch.connection_counters(reader)
    assert counters.lost_packets > 10_000
    assert counters.queued_bytes <= MIB // 2 + 1_000
    for number in range(100):
        assert harness.send(own, message(b"own", b"%d" % number))
        harness.run()
    after = harness.switch.connection_counters(reader)
    assert (after.lost_packets, after.replaced_packets) == (counters.lost_packets, counters.replaced_packets + 99)
