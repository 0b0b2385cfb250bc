"""The rules of delivery in sbusd/dataplane/contract.py, each held against the switch."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import pytest

from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import End, Refusal
from sbusd.dataplane.counters import ConnectionCounters
from tests.support import skips
from tests.support.switch_harness import REFUSALS, MakeHarness, SwitchHarness, refused
from tests.support.wire import message

EPROTO = b"CMSG !/bus/error\0EPROTO"


def ends(harness: SwitchHarness) -> dict[object, object]:
    """Return why each connection that has ended did."""
    return {event[1]: event[2] for event in harness.events if event[0] == "ended"}


# -- rule 1: the packets of one connection in their order, control packets between them


@dataclass
class ReadingHarness(SwitchHarness):
    """Reads for the first client whenever the sink sees a control packet."""

    seen: list[list[bytes]] = field(default_factory=list)

    def control(self, connection: int, packet: bytes) -> None:
        if packet.startswith(b"CMSG look"):
            self.seen.append(self.receive(1))
        else:
            super().control(connection, packet)


def test_what_came_before_a_control_packet_is_delivered_before_the_sink_sees_it(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(turn_time=10.0), of=ReadingHarness)  # all in one turn, however slow this machine is
    assert isinstance(harness, ReadingHarness)
    harness.connect(b"a")
    sender = harness.connect()
    for packet in (message(b"a", b"1"), message(b"a", b"2"), b"CMSG look", message(b"a", b"3"), b"CMSG look", message(b"a", b"4")):
        assert harness.send(sender, packet)
    assert harness.switch.turn(0) == 1
    assert harness.seen == [[message(b"a", b"1"), message(b"a", b"2")], [message(b"a", b"3")]]
    assert harness.receive(1) == [message(b"a", b"4")]


def test_a_subscription_counts_from_its_place_between_messages(harness: SwitchHarness) -> None:
    client = harness.connect()
    for packet in (message(b"a", b"1"), b"SUB a", message(b"a", b"2"), b"UNSUB a", message(b"a", b"3")):
        harness.send(client, packet)
    harness.run()
    assert harness.receive(client) == [message(b"a", b"2")]


def test_a_reply_is_sent_between_the_messages_before_and_after_its_request(harness: SwitchHarness) -> None:
    client = harness.connect(b"a")
    for packet in (message(b"a", b"1"), b"CMSG ping\0x", message(b"a", b"2")):
        harness.send(client, packet)
    harness.run()
    assert harness.receive(client) == [message(b"a", b"1"), b"CMSG ping\0x", message(b"a", b"2")]


# -- rule 2: once each, in the order in which they were read


def test_a_packet_comes_once_however_many_patterns_match(harness: SwitchHarness) -> None:
    client = harness.connect(b"a/b", b"a/b", b"a/*", b"*/b", b"", b"a/")
    sender = harness.connect()
    harness.send(sender, message(b"a/b", b"once"))
    harness.run()
    assert harness.receive(client) == [message(b"a/b", b"once")]


def test_all_recipients_see_the_same_order(harness: SwitchHarness) -> None:
    first, second = harness.connect(b"a/"), harness.connect(b"")
    senders = [harness.connect() for _ in range(3)]
    for number in range(100):
        for sender in senders:
            harness.send(sender, message(b"a/%d" % sender, b"%d" % number))
    harness.run()
    received = harness.drain(first)
    assert received == harness.drain(second)
    for sender in senders:
        own = [packet for packet in received if packet.startswith(b"MSG a/%d\0" % sender)]
        assert own == [message(b"a/%d" % sender, b"%d" % number) for number in range(100)]


def test_bytes_are_delivered_as_they_came(harness: SwitchHarness) -> None:
    client = harness.connect(b"k")
    for payload in (b"", b"\0", bytes(range(256)), b"x" * 200_000):
        harness.send(client, message(b"k", payload))
        harness.run()
        assert harness.receive(client) == [message(b"k", payload)]


def test_the_sender_gets_its_own_messages_unless_echo_is_off(harness: SwitchHarness) -> None:
    client, other = harness.connect(b"a"), harness.connect(b"a")
    for packet in (b"CMSG echo/off", message(b"a", b"1"), b"CMSG echo/on", message(b"a", b"2")):
        harness.send(client, packet)
    harness.send(other, b"CMSG echo/off")
    harness.run()
    assert harness.receive(client) == [message(b"a", b"2")]
    assert harness.receive(other) == [message(b"a", b"1"), message(b"a", b"2")]


def test_a_message_without_recipients_is_counted(harness: SwitchHarness) -> None:
    client = harness.connect(b"a")
    harness.send(client, b"CMSG echo/off")
    for key in (b"a", b"b", b""):
        harness.send(client, message(key))
    harness.run()
    counters = harness.switch.counters()
    assert (counters.messages, counters.undeliverable, counters.deliveries) == (3, 3, 0)


# -- rule 5: ends


@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_what_a_peer_sent_before_it_closed_is_delivered(harness: SwitchHarness, count: int) -> None:
    listener, sender = harness.connect(b"a"), harness.connect()
    for number in range(count):
        assert harness.send(sender, message(b"a", b"%d" % number))
    harness.hang_up(sender)
    harness.run()
    assert harness.drain(listener) == [message(b"a", b"%d" % number) for number in range(count)]
    assert ends(harness) == {sender: End.HANGUP}
    assert harness.switch.connections() == [listener]


def test_what_a_peer_sent_before_it_closed_is_delivered_though_it_left_packets_unread(harness: SwitchHarness) -> None:
    listener, sender = harness.connect(b"a"), harness.connect(b"a")
    harness.send(listener, message(b"a", b"never read by the sender"))
    harness.run()
    for number in range(100):
        assert harness.send(sender, message(b"a", b"%d" % number))
    harness.hang_up(sender)
    harness.run()
    assert harness.drain(listener)[1:] == [message(b"a", b"%d" % number) for number in range(100)]
    assert list(ends(harness)) == [sender]


def test_a_peer_that_has_shut_down_its_sending_side_stays_a_recipient(harness: SwitchHarness) -> None:
    half_closed, sender = harness.connect(b"a"), harness.connect()
    harness.send(half_closed, message(b"a", b"last words"))
    harness.clients[half_closed].shutdown(socket.SHUT_WR)
    harness.run()
    for number in range(3):
        harness.send(sender, message(b"a", b"%d" % number))
    harness.run()
    assert harness.receive(half_closed) == [message(b"a", b"last words"), *(message(b"a", b"%d" % number) for number in range(3))]
    assert ends(harness) == {}
    harness.hang_up(half_closed)
    harness.run()
    assert ends(harness) == {half_closed: End.HANGUP}


def test_a_half_closed_peer_that_closes_unseen_ends_with_the_next_packet_for_it(harness: SwitchHarness) -> None:
    half_closed, sender = harness.connect(b"a"), harness.connect()
    harness.clients[half_closed].shutdown(socket.SHUT_WR)
    harness.run()
    harness.send(sender, message(b"a"))
    harness.hang_up(half_closed)
    harness.run()
    assert ends(harness) == {half_closed: End.HANGUP}


def test_a_peer_that_has_shut_down_its_receiving_side_can_still_publish(harness: SwitchHarness) -> None:
    deaf, listener = harness.connect(b"a"), harness.connect(b"a")
    harness.clients[deaf].shutdown(socket.SHUT_RD)
    for number in range(3):
        harness.send(deaf, message(b"a", b"%d" % number))
        harness.run()
    assert harness.receive(listener) == [message(b"a", b"%d" % number) for number in range(3)]
    assert harness.switch.counters().abandoned_packets == 3
    assert ends(harness) == {}
    harness.clients[deaf].shutdown(socket.SHUT_WR)
    harness.run()
    assert list(ends(harness)) == [deaf]


def test_a_packet_of_no_bytes_is_malformed_and_not_the_end(harness: SwitchHarness) -> None:
    listener, client = harness.connect(b"a"), harness.connect()
    for packet in (message(b"a", b"before"), b"", message(b"a", b"after")):
        harness.send(client, packet)
    harness.run()
    assert harness.receive(listener) == [message(b"a", b"before")]
    assert ("malformed", client, "EPROTO") in harness.events
    assert harness.receive(client) == [EPROTO, b""]
    assert ends(harness) == {client: End.DISCONNECTED}


@pytest.mark.parametrize("waiting", [1, 63, 64, 300])
def test_last_words_come_before_the_end_though_the_peer_sent_more(harness: SwitchHarness, waiting: int) -> None:
    client = harness.connect()
    harness.send(client, b"BAD")
    for _ in range(waiting):
        assert harness.send(client, message(b"a", b"too late"))
    harness.run()
    assert harness.receive(client) == [EPROTO, b""]
    assert harness.switch.counters().messages == 0


def test_last_words_come_instead_of_what_waited(make_harness: MakeHarness) -> None:
    harness = make_harness()
    client, sender = harness.connect(b"a", send_buffer=20_000), harness.connect()
    for number in range(100):
        harness.send(sender, message(b"a", b"%d" % number + bytes(1_000)))
    harness.run()
    taken = 100 - harness.switch.connection_counters(client).queued_packets
    assert 0 < taken < 100
    harness.receive(client, taken)
    harness.switch.disconnect(client, b"last words")
    harness.run()
    assert harness.receive(client) == [b"last words", b""]
    assert harness.switch.counters().abandoned_packets == 100 - taken


def test_recipients_that_close_in_a_broadcast_are_the_only_ones_to_notice(harness: SwitchHarness) -> None:
    staying = [harness.connect(b"a") for _ in range(3)]
    going = [harness.connect(b"a") for _ in range(5)]
    sender = harness.connect()
    for number in range(200):
        harness.send(sender, message(b"a", b"%d" % number))
    harness.switch.turn(0)
    for client in going:
        harness.hang_up(client)
    for number in range(200, 250):
        harness.send(sender, message(b"a", b"%d" % number))
    harness.run()
    for client in staying:
        assert harness.drain(client) == [message(b"a", b"%d" % number) for number in range(250)]
    assert set(ends(harness)) == set(going)
    assert harness.switch.connections() == [*staying, sender]


def test_nothing_of_a_batch_is_handled_after_the_packet_that_ended_the_connection(harness: SwitchHarness) -> None:
    listener, client = harness.connect(b"a"), harness.connect()
    for packet in (message(b"a", b"1"), b"NONSENSE", message(b"a", b"2"), b"SUB a"):
        harness.send(client, packet)
    harness.run()
    assert harness.receive(listener) == [message(b"a", b"1")]
    assert harness.switch.counters().subscriptions == 1


# -- refusals


def test_a_reserved_key_is_refused_in_its_place(harness: SwitchHarness) -> None:
    client = harness.connect(b"a")
    for packet in (message(b"a", b"1"), message(b"!/bus/error", b"forged"), message(b"!/cred/0"), message(b"a", b"2")):
        harness.send(client, packet)
    harness.run()
    errors = [refused(Refusal.RESERVED, key) for key in (b"!/bus/error", b"!/cred/0")]
    assert harness.receive(client) == [message(b"a", b"1"), *errors, message(b"a", b"2")]
    assert harness.refusals(client) == {Refusal.RESERVED: (b"!/bus/error", 2)}
    assert harness.switch.connection_counters(client).refused_packets == 2


def test_a_key_of_the_longest_length_is_taken_and_a_longer_one_refused(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(key_bytes=16))
    client = harness.connect(b"")
    harness.send(client, message(b"k" * 16))
    harness.send(client, message(b"k" * 17))
    harness.run()
    assert harness.receive(client) == [message(b"k" * 16), refused(Refusal.KEY_TOO_LONG, b"k" * 17)]
    assert harness.refusals(client) == {Refusal.KEY_TOO_LONG: (b"k" * 17, 1)}


def test_a_packet_of_the_largest_size_is_taken_and_a_larger_one_refused(harness: SwitchHarness) -> None:
    listener, client = harness.connect(b"a"), harness.connect()
    sock = harness.clients[client]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    enough = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > MAX_PACKET_BYTES + 4_096
    skips.require(enough, "needs net.core.wmem_max of 256 KiB: sysctl net.core.wmem_max=262144", could_run=False)
    largest = message(b"a", bytes(MAX_PACKET_BYTES - 6))
    for packet in (largest, largest + b"x", b"SUB " + bytes(MAX_PACKET_BYTES), message(b"a", b"next")):
        assert harness.send(client, packet)
        harness.run()
    assert harness.drain(listener) == [largest, message(b"a", b"next")]
    assert harness.receive(client) == [refused(Refusal.TRUNCATED, b"a"), REFUSALS[Refusal.TRUNCATED]]
    assert [event[2] for event in harness.events if event[0] == "refused"] == [Refusal.TRUNCATED] * 2


def test_a_bus_that_separates_by_dots_reserves_nothing(make_harness: MakeHarness) -> None:
    harness = make_harness(keyspace=KeySpace(b"."))
    client = harness.connect(b"a.*.c.", b"!*.")
    for key in (b"a.b.c.d", b"a/b/c/d", b"!/bus.x"):
        harness.send(client, message(key))
    harness.run()
    assert harness.receive(client) == [message(b"a.b.c.d"), message(b"!/bus.x")]


# -- what the sink may ask


def test_connections_are_listed_oldest_first_and_numbers_are_unique(harness: SwitchHarness) -> None:
    numbers = [harness.connect() for _ in range(20)]
    for number in numbers[::3]:
        harness.hang_up(number)
    harness.run()
    left = [number for number in numbers if number not in numbers[::3]]
    assert harness.switch.connections() == left
    newcomer = harness.connect()
    assert harness.switch.connections() == [*left, newcomer]
    with pytest.raises(ValueError, match="exists"):
        harness.switch.adopt(harness.clients[newcomer].fileno(), newcomer)


def test_patterns_are_counted_as_they_are_stored(harness: SwitchHarness) -> None:
    client = harness.connect(b"a", b"a", b"b", b"", b"a")
    assert harness.switch.patterns(client) == {b"a": 3, b"b": 1, b"": 1}
    assert harness.switch.counters().subscriptions == 5
    assert harness.switch.unsubscribe(client, b"a") is True
    assert harness.switch.unsubscribe(client, b"b") is True
    assert harness.switch.unsubscribe(client, b"b") is False
    assert harness.switch.patterns(client) == {b"a": 2, b"": 1}
    harness.hang_up(client)
    harness.run()
    assert harness.switch.counters().subscriptions == 0


def test_patterns_have_an_order_and_can_be_had_in_parts(harness: SwitchHarness) -> None:
    patterns = [b"", b"B", b"a", b"a/b", b"b", b"\x7f", b"\x80", b"\xff"]
    client = harness.connect(*reversed(patterns), b"a")
    assert harness.switch.patterns_after(client, None, 100) == patterns
    assert harness.switch.patterns_after(client, None, 3) == patterns[:3]
    for number, pattern in enumerate(patterns):
        assert harness.switch.patterns_after(client, pattern, 2) == patterns[number + 1 : number + 3]
    # Behind one that has gone meanwhile, too.
    assert harness.switch.patterns_after(client, b"a/a", 1) == [b"a/b"]
    assert harness.switch.patterns_after(client, None, 0) == []
    with pytest.raises(KeyError):
        harness.switch.patterns_after(client + 1, None, 1)


def test_recipients_are_named_without_sending(harness: SwitchHarness) -> None:
    first, _, third = harness.connect(b"a"), harness.connect(b"b"), harness.connect(b"*")
    assert harness.switch.recipients(b"a") == [first, third]
    assert harness.switch.recipients(b"c/d") == []
    assert harness.switch.recipients(b"!/bus/error") == []
    assert harness.switch.counters().deliveries == 0


def test_an_unknown_number_is_a_key_error(harness: SwitchHarness) -> None:
    for ask in (harness.switch.patterns, harness.switch.connection_counters, harness.switch.disconnect):
        with pytest.raises(KeyError):
            ask(77)


def test_counters_of_a_connection_match_its_packets(harness: SwitchHarness) -> None:
    client = harness.connect(b"a")
    packets = [message(b"a", b"1234"), message(b"b"), message(b"!/no")]
    for packet in packets:
        harness.send(client, packet)
    harness.run()
    sent = [b"SUB a", *packets]
    reported = [packets[0], refused(Refusal.RESERVED, b"!/no")]
    assert harness.switch.connection_counters(client) == ConnectionCounters(
        received_packets=4,
        received_bytes=sum(map(len, sent)),
        delivered_packets=2,
        delivered_bytes=sum(map(len, reported)),
        queued_packets=0,
        queued_bytes=0,
        lost_packets=0,
        refused_packets=1,
        replaced_packets=0,
    )
    assert harness.receive(client) == reported


def test_a_sink_may_send_to_a_connection_that_is_ending(harness: SwitchHarness) -> None:
    client, other = harness.connect(b"a"), harness.connect(b"a")
    harness.switch.disconnect(client, b"last words")
    harness.switch.send(client, b"too late")
    harness.switch.disconnect(client, b"twice")
    harness.send(other, message(b"a", b"x"))
    harness.run()
    assert harness.receive(client) == [b"last words", b""]
    assert harness.receive(other) == [message(b"a", b"x")]
