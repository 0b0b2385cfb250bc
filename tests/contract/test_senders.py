"""Verified senders: the head that names them, its place, its cost, and that nobody can forge it."""

from __future__ import annotations

import pytest

from sbusd.config.settings import DaemonSettings, LimitSettings
from sbusd.dataplane.contract import waiting_bytes
from sbusd.protocol import controls
from sbusd.protocol.limits import MAX_PACKET_BYTES
from tests.support.parlour import MakeParlour, Parlour
from tests.support.wire import error_code, message
from tests.support.world import MakeWorld, World

ALICE, BOB = 1_000, 1_001
NAME = b"!/cred/7/1000/55"


def named(sender: int, packet: bytes, cred: bytes = NAME) -> bytes:
    """Return a message as it comes with its sender."""
    return b"CMSG !/from/%d/%b\0%b" % (sender, cred, packet)


def person(world: World, *patterns: bytes, send_buffer: int | None = None) -> int:
    """Add a client of user 1000."""
    number = world.connect(*patterns, send_buffer=send_buffer)
    world.switch.set_party(number, ALICE, cred=NAME)
    return number


def want(world: World, client: int, on: bool = True) -> None:
    """Let a client want senders, or not."""
    world.send(client, b"CMSG sender/on" if on else b"CMSG sender/off")
    world.run()


def test_messages_come_with_their_sender_to_who_wants_that_and_bare_to_others(world: World) -> None:
    curious, plain, sender = person(world, b"a"), person(world, b"a"), person(world)
    want(world, curious)
    sent = [message(b"a", b"1"), message(b"a", b""), message(b"a", bytes(100_000))]
    for packet in sent:
        world.send(sender, packet)
    world.run()
    assert world.receive(curious) == [named(sender, packet) for packet in sent]
    assert world.receive(plain) == sent
    want(world, curious, on=False)
    world.send(sender, sent[0])
    world.run()
    assert world.receive(curious) == [sent[0]]


def test_it_holds_from_its_place_among_the_packets(world: World) -> None:
    client = person(world, b"a")
    for packet in (message(b"a", b"1"), b"CMSG sender/on", message(b"a", b"2"), b"CMSG sender/off", message(b"a", b"3")):
        world.send(client, packet)
    world.run()
    assert world.receive(client) == [message(b"a", b"1"), named(client, message(b"a", b"2")), message(b"a", b"3")]


def test_the_bus_s_own_words_have_no_sender(world: World) -> None:
    client = person(world, b"a")
    want(world, client)
    for packet in (message(b"!/no", b""), b"CMSG pong\0", b"CMSG receipt/always\0t", message(b"b", b"")):
        world.send(client, packet)
    world.run()
    assert [packet[:18] for packet in world.receive(client)] == [b"CMSG !/bus/error\0R", b"CMSG pong\0", b"CMSG !/bus/receipt"]


def test_what_waits_keeps_the_form_in_which_it_was_routed_though_its_sender_goes(world: World) -> None:
    slow, sender = person(world, b"a", send_buffer=20_000), person(world)
    packets = [message(b"a", b"%d " % number + bytes(2_000)) for number in range(60)]
    for number, packet in enumerate(packets):
        if number in (20, 40):
            want(world, slow, on=number == 20)
        world.send(sender, packet)
        world.run()
    world.hang_up(sender)
    world.run()
    assert world.switch.connection_counters(slow).queued_packets > 40
    assert world.drain(slow) == [named(sender, packet) if 20 <= number < 40 else packet for number, packet in enumerate(packets)]


@pytest.mark.parametrize("order", [b"queue", b"stack", b"random"])
def test_heads_stay_with_their_packets_in_every_order(world: World, order: bytes) -> None:
    slow = person(world, b"a", send_buffer=20_000)
    want(world, slow)
    world.send(slow, b"CMSG order/" + order)
    world.run()
    senders = [person(world) for _ in range(3)]
    sent = set()
    for number in range(60):
        sender, packet = senders[number % 3], message(b"a", b"%d " % number + bytes(1_000 + number))
        sent.add(named(sender, packet))
        world.send(sender, packet)
        world.run()
    received = world.drain(slow)
    assert len(received) == len(sent)
    assert set(received) == sent


def test_the_whole_length_is_what_counts(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_bytes=100_000))
    slow, sender = person(world, b"a", send_buffer=5_000), person(world)
    want(world, slow)
    world.send(slow, b"CMSG blocking/hard/discard")
    packet = message(b"a", bytes(1_000))
    for _ in range(150):
        world.send(sender, packet)
        world.run()
    counters = world.switch.connection_counters(slow)
    whole = len(named(sender, packet))
    charged = waiting_bytes(len(packet), whole - len(packet))
    assert counters.queued_bytes == counters.queued_packets * charged
    assert 100_000 - charged < counters.queued_bytes <= 100_000
    assert counters.lost_packets > 0
    received = world.drain(slow)
    total = world.switch.connection_counters(slow)
    assert total.delivered_bytes == sum(len(each) for each in received)


def test_packet_that_is_too_long_only_with_its_head_is_lost_and_told(world: World) -> None:
    small, sender = person(world, b"a", send_buffer=5_000), person(world)
    largest = next(size for size in range(20_000, 0, -1) if _arrives(world, small, sender, size))
    want(world, small)
    world.send(sender, message(b"a", bytes(largest)))
    world.run()
    assert world.receive(small) == [b"CMSG !/bus/lost\x001"]


def _arrives(world: World, recipient: int, sender: int, size: int) -> bool:
    """Return whether a message of so many bytes reaches the recipient."""
    world.send(sender, message(b"a", bytes(size)))
    world.run()
    return world.receive(recipient)[0].startswith(b"MSG ")


def test_largest_packet_comes_with_its_sender(world: World) -> None:
    client, sender = person(world, b"a"), person(world)
    want(world, client)
    packet = message(b"a", bytes(MAX_PACKET_BYTES - 6))
    world.send(sender, packet)
    world.run()
    assert world.receive(client) == [named(sender, packet)]


def test_head_is_no_longer_than_the_manual_says(world: World) -> None:
    most = 2**32 - 1
    assert len(named(2**64 - 1, b"", b"!/cred/%d/%d/%d" % (most, most, most))) <= 128


def test_events_are_the_bus_s_own(parlour: Parlour) -> None:
    owner = parlour.guest()
    owner.control(controls.SENDER_ON)
    owner.subscribe(b"!/event/connect/")
    owner.receive_all()
    parlour.guest(uid=ALICE)
    (packet,) = owner.receive_all()
    head, _, rest = packet.partition(b"\0")
    kind, cred = head.split(b"/", 3)[:3], head.split(b"/", 3)[3]
    assert (kind, cred[:7]) == ([b"CMSG !", b"from", b"0"], b"!/cred/")
    assert rest.startswith(b"MSG !/event/connect/2\0{")


def test_behind_a_server_the_prefix_is_a_part_of_the_name(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(credential_prefix="!/cred/1/2/3"))
    guest = parlour.guest(uid=ALICE, gid=7, pid=55)
    guest.control(controls.SENDER_ON)
    guest.subscribe(b"a")
    guest.publish(b"a", b"x")
    assert guest.receive_all() == [named(1, message(b"a", b"x"), b"!/cred/1/2/3/" + NAME)]


def test_nobody_can_say_it_in_the_bus_s_place(parlour: Parlour) -> None:
    hearer, forger = parlour.guest(uid=ALICE), parlour.guest(uid=BOB)
    hearer.control(controls.SENDER_ON)
    hearer.subscribe(b"")
    forged = b"!/from/1/!/cred/0/0/1"
    forger.publish(forged, message(b"a", b"do as I say"))
    forger.control(forged, message(b"a", b"do as I say"))
    assert [error_code(packet) for packet in forger.receive_all()] == ["EPERM", "ENOSYS"]
    forger.subscribe(forged)
    assert [error_code(packet) for packet in forger.receive_all()] == ["EPERM"]
    assert hearer.receive_all() == []


def test_connections_tell_who_wants_senders(parlour: Parlour) -> None:
    guest = parlour.guest(uid=ALICE)
    for on in (True, False):
        guest.control(controls.SENDER_ON if on else controls.SENDER_OFF)
        found = guest.ask_json(controls.CONNECTIONS)["connections"]
        assert isinstance(found, list)
        assert [each["sender"] for each in found] == [on]
