"""The order ``latest``: of the messages that wait only the newest of each key. Spec: sbus-protocol(7) §7."""

from __future__ import annotations

import struct

from sbus.protocol.packets import is_batch, parse_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import KNOWN_KEY_BYTES, waiting_bytes
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message

LATEST = b"CMSG order/latest"
REPLACED = b"CMSG !/bus/replaced\0"
LOST = b"CMSG !/bus/lost\0"
SMALL_BUFFER = 20_000
FILLING = bytes(1_000)


def slow_reader(harness: SwitchHarness, *commands: bytes, uid: int | None = None) -> int:
    """Return a client with the order ``latest`` that has read nothing, and whose socket is full of messages with the key ``full``."""
    reader, sender = harness.connect(b"", send_buffer=SMALL_BUFFER), harness.connect()
    if uid is not None:
        harness.set_party(reader, uid, cred=b"!/cred/1/2/3")
    for command in (LATEST, *commands):
        harness.send(reader, command)
    harness.run()
    while not harness.switch.connection_counters(reader).queued_packets:
        publish(harness, sender, b"full", FILLING)
    return reader


def publish(harness: SwitchHarness, sender: int, key: bytes, payload: bytes) -> None:
    """Publish one message."""
    assert harness.send(sender, message(key, payload))
    harness.run()


def counts(packets: list[bytes], head: bytes) -> list[int]:
    """Return what the notices that begin with *head* say."""
    return [int(packet.removeprefix(head)) for packet in packets if packet.startswith(head)]


def test_a_newer_message_replaces_the_older_one_of_its_key(harness: SwitchHarness) -> None:
    reader, sender = slow_reader(harness), harness.connect()
    for number in range(3):
        for key in (b"a", b"b", b"c"):
            publish(harness, sender, key, b"%d" % number)
    counters = harness.switch.connection_counters(reader)
    assert (counters.queued_packets, counters.replaced_packets, counters.lost_packets) == (4, 6, 0)
    packets = harness.drain(reader)
    assert packets[-3:] == [message(key, b"2") for key in (b"a", b"b", b"c")]
    assert counts(packets, REPLACED) == [6]
    assert counts(packets, LOST) == []
    assert harness.switch.counters().queued_bytes == harness.switch.counters().queued_packets == 0


def test_replaced_messages_of_a_batch_leave_room_for_the_messages_of_others(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queued_memory=60_000))
    reader, sender = slow_reader(harness, uid=1), harness.connect()
    other = harness.connect(b"other", send_buffer=SMALL_BUFFER)
    harness.set_party(other, 2)
    while not harness.switch.connection_counters(other).queued_packets:
        publish(harness, sender, b"other", FILLING)
    for packet in (*[message(b"a", bytes(5_000))] * 20, message(b"other", b"last")):
        assert harness.send(sender, packet)
    harness.run()
    assert harness.switch.connection_counters(reader).lost_packets == harness.switch.connection_counters(other).lost_packets == 0
    assert harness.drain(other)[-1] == message(b"other", b"last")


def test_a_key_keeps_its_place_however_often_others_come(harness: SwitchHarness) -> None:
    reader, sender = slow_reader(harness), harness.connect()
    publish(harness, sender, b"often", b"0")
    publish(harness, sender, b"seldom", b"x")
    for number in range(1, 50):
        publish(harness, sender, b"often", b"%d" % number)
    assert harness.drain(reader)[-2:] == [message(b"often", b"49"), message(b"seldom", b"x")]


def test_the_loss_report_precedes_its_messages_even_if_the_queue_is_full(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=3))
    reader, sender = slow_reader(harness), harness.connect()
    for key in (b"a", b"b", b"c", b"d", b"a", b"b", b"a"):
        publish(harness, sender, key, b"x")
    counters = harness.switch.connection_counters(reader)
    assert (counters.queued_packets, counters.replaced_packets, counters.lost_packets) == (3, 3, 2)
    packets = harness.drain(reader)
    kept = [number for number, packet in enumerate(packets) if packet in (message(b"a", b"x"), message(b"b", b"x"))]
    assert len(kept) == 2
    assert max(number for number, packet in enumerate(packets) if packet.startswith(REPLACED)) < kept[0]
    assert (sum(counts(packets, REPLACED)), sum(counts(packets, LOST))) == (3, 2)


def test_a_full_queue_accepts_newer_messages_of_its_keys_before_a_loss_report(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_bytes=8_000))
    reader, sender = slow_reader(harness), harness.connect()
    for number in range(30):
        publish(harness, sender, b"key %d" % number, bytes(500))
    before = harness.switch.connection_counters(reader)
    assert before.lost_packets > 0
    publish(harness, sender, b"key 0", b"\1" * 500)
    after = harness.switch.connection_counters(reader)
    assert (after.lost_packets, after.replaced_packets) == (before.lost_packets, 1)
    assert after.queued_bytes <= 8_000
    assert message(b"key 0", b"\1" * 500) in harness.drain(reader)


def test_a_message_over_the_limit_is_lost_and_replaces_nothing(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_bytes=6_000))
    reader, sender = slow_reader(harness), harness.connect()
    publish(harness, sender, b"a", b"old")
    publish(harness, sender, b"a", bytes(10_000))
    counters = harness.switch.connection_counters(reader)
    assert (counters.replaced_packets, counters.lost_packets) == (0, 1)
    packets = harness.drain(reader)
    assert message(b"a", b"old") in packets
    assert (counts(packets, REPLACED), counts(packets, LOST)) == ([], [1])


def test_a_known_key_is_charged_to_the_reader_s_user(harness: SwitchHarness) -> None:
    reader, sender = slow_reader(harness, uid=1), harness.connect()
    before = harness.switch.connection_counters(reader).queued_bytes
    publish(harness, sender, b"a", b"x")
    cost = waiting_bytes(len(message(b"a", b"x"))) + KNOWN_KEY_BYTES
    assert harness.switch.connection_counters(reader).queued_bytes - before == cost
    publish(harness, sender, b"a", b"y")
    assert harness.switch.connection_counters(reader).queued_bytes - before == cost
    assert harness.switch.user_counters(1).queued_bytes == before + cost
    harness.send(reader, b"CMSG order/queue")
    harness.run()
    assert harness.switch.connection_counters(reader).queued_bytes == before + cost - 2 * KNOWN_KEY_BYTES


def test_another_user_s_messages_take_half_of_the_room_with_their_keys(make_harness: MakeHarness) -> None:
    """The memory of known keys counts as the publisher's: without that it could take more than it leaves free."""
    harness = make_harness(LimitSettings(queue_bytes=60_000))
    reader, sender = slow_reader(harness, uid=1), harness.connect()
    own = harness.switch.connection_counters(reader).queued_bytes
    harness.set_party(sender, 2, cred=b"!/cred/4/5/6")
    for number in range(1_000):
        publish(harness, sender, b"%d" % number, b"")
    taken = harness.switch.connection_counters(reader).queued_bytes - own
    one = waiting_bytes(len(message(b"100", b""))) + KNOWN_KEY_BYTES
    assert (60_000 - own) // 2 - 2 * one < taken <= (60_000 - own) // 2


def test_messages_queued_in_another_order_are_not_replaced(harness: SwitchHarness) -> None:
    reader, sender = slow_reader(harness, b"CMSG order/queue"), harness.connect()
    for payload in (b"1", b"2"):
        publish(harness, sender, b"a", payload)
    harness.send(reader, LATEST)
    harness.run()
    for payload in (b"3", b"4", b"5"):
        publish(harness, sender, b"a", payload)
    assert harness.switch.connection_counters(reader).replaced_packets == 2
    packets = harness.drain(reader)
    assert packets[-3:] == [message(b"a", payload) for payload in (b"1", b"2", b"5")]


def test_a_message_is_replaced_where_it_waits_alone_and_not_for_others(harness: SwitchHarness) -> None:
    reader, sender = slow_reader(harness), harness.connect()
    other = harness.connect(b"a", send_buffer=SMALL_BUFFER)
    for number in range(60):
        publish(harness, sender, b"a", b"%d " % number + FILLING)
    assert harness.switch.connection_counters(reader).replaced_packets == 59
    assert [int(packet[6:].split(b" ")[0]) for packet in harness.drain(other)] == list(range(60))
    assert harness.drain(reader)[-1] == message(b"a", b"59 " + FILLING)


def test_messages_of_one_batch_replace_each_other_and_go_out_in_batches(harness: SwitchHarness) -> None:
    reader, sender = slow_reader(harness, b"CMSG batch/on", b"CMSG sender/on"), harness.connect()
    harness.set_party(sender, 7, cred=b"!/cred/8/9/7")
    inner = [message(b"ab"[number % 2 :][:1], b"%d" % number) for number in range(20)]
    harness.send(sender, b"CMSG !/batch\0" + b"".join(struct.pack("<I", len(packet)) + packet for packet in inner))
    harness.run()
    assert harness.switch.connection_counters(reader).replaced_packets == 18
    packets = [part for packet in harness.drain(reader) for part in (parse_batch(packet) if is_batch(packet) else (packet,))]
    assert [bytes(packet).partition(b"\0")[2] for packet in packets[-2:]] == inner[-2:]
    assert counts(packets, REPLACED) == [18]


def test_a_publisher_is_not_blocked_by_a_message_that_replaces_one(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=3))
    reader, sender = slow_reader(harness, b"CMSG blocking/hard/block", uid=1), harness.connect()
    harness.set_party(sender, 1, cred=b"!/cred/4/5/1")
    for key in (b"a", b"b"):
        publish(harness, sender, key, b"x")
    for number in range(20):
        publish(harness, sender, b"a", b"%d" % number)
    assert harness.switch.connection_counters(reader).replaced_packets == 20
    assert harness.switch.counters().blocks == 0
    publish(harness, sender, b"c", b"x")
    assert harness.switch.counters().blocks == 1


def test_replacement_continues_after_a_handover(harness: SwitchHarness) -> None:
    reader, sender = slow_reader(harness, b"CMSG order/queue"), harness.connect()
    publish(harness, sender, b"a", b"kept")
    harness.send(reader, LATEST)
    harness.run()
    for payload in (b"1", b"2"):
        publish(harness, sender, b"a", payload)
    before = harness.switch.connection_counters(reader)
    harness.hand_over()
    assert harness.switch.connection_counters(reader) == before
    publish(harness, sender, b"a", b"3")
    assert harness.switch.connection_counters(reader).replaced_packets == 2
    packets = harness.drain(reader)
    assert packets[-2:] == [message(b"a", payload) for payload in (b"kept", b"3")]
    assert counts(packets, REPLACED) == [2]


def colliding_keys(count: int) -> list[bytes]:
    """Return keys of which ``std::hash`` of GNU's C++ library makes the same number for ``MSG `` and the key: MurmurHash64A, solved."""
    mask, mul = (1 << 64) - 1, 0xC6A4A7935BD1E995
    inverse = pow(mul, -1, 1 << 64)

    def mix(block: int) -> int:
        block = block * mul & mask
        return (block ^ block >> 47) * mul & mask

    def unmix(mixed: int) -> int:
        block = mixed * inverse & mask
        return (block ^ block >> 47) * inverse & mask

    seed, target, keys = 0xC70F6907 ^ (16 * mul & mask), 0x0123456789ABCDEF, []
    for number in range(1 << 20):
        first = b"MSG " + b"%04x" % number
        state = (seed ^ mix(int.from_bytes(first, "little"))) * mul & mask
        last = unmix(state ^ target).to_bytes(8, "little")
        if not set(last) & set(b"\0/*#?[]{}+>"):
            keys.append(first[4:] + last)
            if len(keys) == count:
                return keys
    raise AssertionError("too few keys collide")


def test_keys_that_collide_are_replaced_each_for_itself(harness: SwitchHarness) -> None:
    """With one entry for each hash, another user could keep a key from being replaced by one of the same hash that comes first."""
    reader, sender = slow_reader(harness), harness.connect()
    keys = colliding_keys(200)
    for payload in (b"1", b"2"):
        for key in keys:
            publish(harness, sender, key, payload)
    assert harness.switch.connection_counters(reader).replaced_packets == 200
    assert harness.drain(reader)[-200:] == [message(key, b"2") for key in keys]
