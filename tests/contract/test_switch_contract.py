"""The rules of delivery in sbusd/dataplane/contract.py, each held against the switch."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import pytest

from sbusd.config.settings import LimitSettings
from sbusd.dataplane.contract import ConnectionCounters, End, Refusal
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.limits import MAX_PACKET_BYTES
from tests.support import skips
from tests.support.wire import message
from tests.support.world import REFUSALS, MakeWorld, World

EPROTO = b"CMSG !/bus/error\0EPROTO"


def ends(world: World) -> dict[object, object]:
    """Return why each connection that has ended did."""
    return {told[1]: told[2] for told in world.told if told[0] == "ended"}


# -- rule 1: the packets of one connection in their order, control packets between them


@dataclass
class Watching(World):
    """Reads for the first client whenever the sink sees a control packet."""

    seen: list[list[bytes]] = field(default_factory=list)

    def control(self, connection: int, packet: bytes) -> None:
        if packet.startswith(b"CMSG look"):
            self.seen.append(self.receive(1))
        else:
            super().control(connection, packet)


def test_what_came_before_a_control_packet_is_delivered_before_the_sink_sees_it(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(turn_time=10.0), of=Watching)  # all in one turn, however slow this machine is
    assert isinstance(world, Watching)
    world.connect(b"a")
    sender = world.connect()
    for packet in (message(b"a", b"1"), message(b"a", b"2"), b"CMSG look", message(b"a", b"3"), b"CMSG look", message(b"a", b"4")):
        assert world.send(sender, packet)
    assert world.switch.turn(0) == 1
    assert world.seen == [[message(b"a", b"1"), message(b"a", b"2")], [message(b"a", b"3")]]
    assert world.receive(1) == [message(b"a", b"4")]


def test_a_subscription_counts_from_its_place_between_messages(world: World) -> None:
    client = world.connect()
    for packet in (message(b"a", b"1"), b"SUB a", message(b"a", b"2"), b"UNSUB a", message(b"a", b"3")):
        world.send(client, packet)
    world.run()
    assert world.receive(client) == [message(b"a", b"2")]


def test_an_answer_stands_between_the_messages_before_and_after_its_question(world: World) -> None:
    client = world.connect(b"a")
    for packet in (message(b"a", b"1"), b"CMSG ping\0x", message(b"a", b"2")):
        world.send(client, packet)
    world.run()
    assert world.receive(client) == [message(b"a", b"1"), b"CMSG ping\0x", message(b"a", b"2")]


# -- rule 2: once each, in the order in which they were read


def test_a_packet_comes_once_however_many_patterns_match(world: World) -> None:
    client = world.connect(b"a/b", b"a/b", b"a/*", b"*/b", b"", b"a/")
    sender = world.connect()
    world.send(sender, message(b"a/b", b"once"))
    world.run()
    assert world.receive(client) == [message(b"a/b", b"once")]


def test_all_recipients_see_the_same_order(world: World) -> None:
    first, second = world.connect(b"a/"), world.connect(b"")
    senders = [world.connect() for _ in range(3)]
    for number in range(100):
        for sender in senders:
            world.send(sender, message(b"a/%d" % sender, b"%d" % number))
    world.run()
    received = world.drain(first)
    assert received == world.drain(second)
    for sender in senders:
        own = [packet for packet in received if packet.startswith(b"MSG a/%d\0" % sender)]
        assert own == [message(b"a/%d" % sender, b"%d" % number) for number in range(100)]


def test_bytes_are_delivered_as_they_came(world: World) -> None:
    client = world.connect(b"k")
    for payload in (b"", b"\0", bytes(range(256)), b"x" * 200_000):
        world.send(client, message(b"k", payload))
        world.run()
        assert world.receive(client) == [message(b"k", payload)]


def test_the_sender_gets_its_own_messages_unless_echo_is_off(world: World) -> None:
    client, other = world.connect(b"a"), world.connect(b"a")
    for packet in (b"CMSG echo/off", message(b"a", b"1"), b"CMSG echo/on", message(b"a", b"2")):
        world.send(client, packet)
    world.send(other, b"CMSG echo/off")
    world.run()
    assert world.receive(client) == [message(b"a", b"2")]
    assert world.receive(other) == [message(b"a", b"1"), message(b"a", b"2")]


def test_a_message_to_nobody_is_counted(world: World) -> None:
    client = world.connect(b"a")
    world.send(client, b"CMSG echo/off")
    for key in (b"a", b"b", b""):
        world.send(client, message(key))
    world.run()
    counters = world.switch.counters()
    assert (counters.messages, counters.undeliverable, counters.deliveries) == (3, 3, 0)


# -- rule 5: ends


@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_what_a_peer_sent_before_it_closed_is_delivered(world: World, count: int) -> None:
    listener, sender = world.connect(b"a"), world.connect()
    for number in range(count):
        assert world.send(sender, message(b"a", b"%d" % number))
    world.hang_up(sender)
    world.run()
    assert world.drain(listener) == [message(b"a", b"%d" % number) for number in range(count)]
    assert ends(world) == {sender: End.HANGUP}
    assert world.switch.connections() == [listener]


def test_what_a_peer_sent_before_it_closed_is_delivered_though_it_left_packets_unread(world: World) -> None:
    listener, sender = world.connect(b"a"), world.connect(b"a")
    world.send(listener, message(b"a", b"never read by the sender"))
    world.run()
    for number in range(100):
        assert world.send(sender, message(b"a", b"%d" % number))
    world.hang_up(sender)
    world.run()
    assert world.drain(listener)[1:] == [message(b"a", b"%d" % number) for number in range(100)]
    assert list(ends(world)) == [sender]


def test_a_peer_that_has_shut_down_its_sending_side_stays_a_recipient(world: World) -> None:
    half_closed, sender = world.connect(b"a"), world.connect()
    world.send(half_closed, message(b"a", b"last words"))
    world.clients[half_closed].shutdown(socket.SHUT_WR)
    world.run()
    for number in range(3):
        world.send(sender, message(b"a", b"%d" % number))
    world.run()
    assert world.receive(half_closed) == [message(b"a", b"last words"), *(message(b"a", b"%d" % number) for number in range(3))]
    assert ends(world) == {}
    world.hang_up(half_closed)
    world.run()
    assert ends(world) == {half_closed: End.HANGUP}


def test_a_half_closed_peer_that_closes_unseen_ends_with_the_next_packet_for_it(world: World) -> None:
    half_closed, sender = world.connect(b"a"), world.connect()
    world.clients[half_closed].shutdown(socket.SHUT_WR)
    world.run()
    world.send(sender, message(b"a"))
    world.hang_up(half_closed)
    world.run()
    assert ends(world) == {half_closed: End.HANGUP}


def test_a_peer_that_has_shut_down_its_receiving_side_can_still_publish(world: World) -> None:
    deaf, listener = world.connect(b"a"), world.connect(b"a")
    world.clients[deaf].shutdown(socket.SHUT_RD)
    for number in range(3):
        world.send(deaf, message(b"a", b"%d" % number))
        world.run()
    assert world.receive(listener) == [message(b"a", b"%d" % number) for number in range(3)]
    assert world.switch.counters().abandoned_packets == 3
    assert ends(world) == {}
    world.clients[deaf].shutdown(socket.SHUT_WR)
    world.run()
    assert list(ends(world)) == [deaf]


def test_a_packet_of_no_bytes_is_malformed_and_not_the_end(world: World) -> None:
    listener, client = world.connect(b"a"), world.connect()
    for packet in (message(b"a", b"before"), b"", message(b"a", b"after")):
        world.send(client, packet)
    world.run()
    assert world.receive(listener) == [message(b"a", b"before")]
    assert ("malformed", client, "EPROTO") in world.told
    assert world.receive(client) == [EPROTO, b""]
    assert ends(world) == {client: End.DISCONNECTED}


@pytest.mark.parametrize("waiting", [1, 63, 64, 300])
def test_last_words_come_before_the_end_though_the_peer_sent_more(world: World, waiting: int) -> None:
    client = world.connect()
    world.send(client, b"BAD")
    for _ in range(waiting):
        assert world.send(client, message(b"a", b"too late"))
    world.run()
    assert world.receive(client) == [EPROTO, b""]
    assert world.switch.counters().messages == 0


def test_last_words_come_instead_of_what_waited(make_world: MakeWorld) -> None:
    world = make_world()
    client, sender = world.connect(b"a", send_buffer=20_000), world.connect()
    for number in range(100):
        world.send(sender, message(b"a", b"%d" % number + bytes(1_000)))
    world.run()
    taken = 100 - world.switch.connection_counters(client).queued_packets
    assert 0 < taken < 100
    world.receive(client, taken)
    world.switch.disconnect(client, b"last words")
    world.run()
    assert world.receive(client) == [b"last words", b""]
    assert world.switch.counters().abandoned_packets == 100 - taken


def test_recipients_that_close_in_a_broadcast_are_the_only_ones_to_notice(world: World) -> None:
    staying = [world.connect(b"a") for _ in range(3)]
    going = [world.connect(b"a") for _ in range(5)]
    sender = world.connect()
    for number in range(200):
        world.send(sender, message(b"a", b"%d" % number))
    world.switch.turn(0)
    for client in going:
        world.hang_up(client)
    for number in range(200, 250):
        world.send(sender, message(b"a", b"%d" % number))
    world.run()
    for client in staying:
        assert world.drain(client) == [message(b"a", b"%d" % number) for number in range(250)]
    assert set(ends(world)) == set(going)
    assert world.switch.connections() == [*staying, sender]


def test_nothing_of_a_batch_is_handled_after_the_packet_that_ended_the_connection(world: World) -> None:
    listener, client = world.connect(b"a"), world.connect()
    for packet in (message(b"a", b"1"), b"NONSENSE", message(b"a", b"2"), b"SUB a"):
        world.send(client, packet)
    world.run()
    assert world.receive(listener) == [message(b"a", b"1")]
    assert world.switch.counters().subscriptions == 1


# -- refusals


def test_a_reserved_key_is_refused_in_its_place(world: World) -> None:
    client = world.connect(b"a")
    for packet in (message(b"a", b"1"), message(b"!/bus/error", b"forged"), message(b"!/cred/0"), message(b"a", b"2")):
        world.send(client, packet)
    world.run()
    refused = REFUSALS[Refusal.RESERVED]
    assert world.receive(client) == [message(b"a", b"1"), refused, refused, message(b"a", b"2")]
    assert ("refused", client, Refusal.RESERVED, b"!/bus/error", 2) in world.told
    assert world.switch.connection_counters(client).refused_packets == 2


def test_a_key_of_the_longest_length_is_taken_and_a_longer_one_refused(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(key_bytes=16))
    client = world.connect(b"")
    world.send(client, message(b"k" * 16))
    world.send(client, message(b"k" * 17))
    world.run()
    assert world.receive(client) == [message(b"k" * 16), REFUSALS[Refusal.KEY_TOO_LONG]]
    assert ("refused", client, Refusal.KEY_TOO_LONG, b"k" * 17, 1) in world.told


def test_a_packet_of_the_largest_size_is_taken_and_a_larger_one_refused(world: World) -> None:
    listener, client = world.connect(b"a"), world.connect()
    sock = world.clients[client]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    enough = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > MAX_PACKET_BYTES + 4_096
    skips.require(enough, "needs net.core.wmem_max of 256 KiB: sysctl net.core.wmem_max=262144", could_run=False)
    largest = message(b"a", bytes(MAX_PACKET_BYTES - 6))
    for packet in (largest, largest + b"x", b"SUB " + bytes(MAX_PACKET_BYTES), message(b"a", b"next")):
        assert world.send(client, packet)
        world.run()
    assert world.drain(listener) == [largest, message(b"a", b"next")]
    assert world.receive(client) == [REFUSALS[Refusal.TRUNCATED]] * 2
    assert [told[2] for told in world.told if told[0] == "refused"] == [Refusal.TRUNCATED] * 2


def test_a_bus_that_separates_by_dots_reserves_nothing(make_world: MakeWorld) -> None:
    world = make_world(keyspace=KeySpace(b"."))
    client = world.connect(b"a.*.c.", b"!*.")
    for key in (b"a.b.c.d", b"a/b/c/d", b"!/bus.x"):
        world.send(client, message(key))
    world.run()
    assert world.receive(client) == [message(b"a.b.c.d"), message(b"!/bus.x")]


# -- what the sink may ask


def test_connections_are_listed_oldest_first_and_numbers_are_unique(world: World) -> None:
    numbers = [world.connect() for _ in range(20)]
    for number in numbers[::3]:
        world.hang_up(number)
    world.run()
    left = [number for number in numbers if number not in numbers[::3]]
    assert world.switch.connections() == left
    newcomer = world.connect()
    assert world.switch.connections() == [*left, newcomer]
    with pytest.raises(ValueError, match="exists"):
        world.switch.adopt(world.clients[newcomer].fileno(), newcomer)


def test_patterns_are_counted_as_they_are_stored(world: World) -> None:
    client = world.connect(b"a", b"a", b"b", b"", b"a")
    assert world.switch.patterns(client) == {b"a": 3, b"b": 1, b"": 1}
    assert world.switch.counters().subscriptions == 5
    assert world.switch.unsubscribe(client, b"a") is True
    assert world.switch.unsubscribe(client, b"b") is True
    assert world.switch.unsubscribe(client, b"b") is False
    assert world.switch.patterns(client) == {b"a": 2, b"": 1}
    world.hang_up(client)
    world.run()
    assert world.switch.counters().subscriptions == 0


def test_patterns_have_an_order_and_can_be_had_in_parts(world: World) -> None:
    patterns = [b"", b"B", b"a", b"a/b", b"b", b"\x7f", b"\x80", b"\xff"]
    client = world.connect(*reversed(patterns), b"a")
    assert world.switch.patterns_after(client, None, 100) == patterns
    assert world.switch.patterns_after(client, None, 3) == patterns[:3]
    for number, pattern in enumerate(patterns):
        assert world.switch.patterns_after(client, pattern, 2) == patterns[number + 1 : number + 3]
    # Behind one that has gone meanwhile, too.
    assert world.switch.patterns_after(client, b"a/a", 1) == [b"a/b"]
    assert world.switch.patterns_after(client, None, 0) == []
    with pytest.raises(KeyError):
        world.switch.patterns_after(client + 1, None, 1)


def test_recipients_are_named_without_sending(world: World) -> None:
    first, _, third = world.connect(b"a"), world.connect(b"b"), world.connect(b"*")
    assert world.switch.recipients(b"a") == [first, third]
    assert world.switch.recipients(b"c/d") == []
    assert world.switch.recipients(b"!/bus/error") == []
    assert world.switch.counters().deliveries == 0


def test_an_unknown_number_is_a_key_error(world: World) -> None:
    for ask in (world.switch.patterns, world.switch.connection_counters, world.switch.disconnect):
        with pytest.raises(KeyError):
            ask(77)


def test_counters_of_a_connection_tell_what_it_did(world: World) -> None:
    client = world.connect(b"a")
    packets = [message(b"a", b"1234"), message(b"b"), message(b"!/no")]
    for packet in packets:
        world.send(client, packet)
    world.run()
    sent = [b"SUB a", *packets]
    told = [packets[0], REFUSALS[Refusal.RESERVED]]
    assert world.switch.connection_counters(client) == ConnectionCounters(
        received_packets=4,
        received_bytes=sum(map(len, sent)),
        delivered_packets=2,
        delivered_bytes=sum(map(len, told)),
        queued_packets=0,
        queued_bytes=0,
        lost_packets=0,
        refused_packets=1,
        replaced_packets=0,
    )
    assert world.receive(client) == told


def test_a_sink_that_sends_to_a_connection_that_is_ending_harms_nobody(world: World) -> None:
    client, other = world.connect(b"a"), world.connect(b"a")
    world.switch.disconnect(client, b"last words")
    world.switch.send(client, b"too late")
    world.switch.disconnect(client, b"twice")
    world.send(other, message(b"a", b"x"))
    world.run()
    assert world.receive(client) == [b"last words", b""]
    assert world.receive(other) == [message(b"a", b"x")]
