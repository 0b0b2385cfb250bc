"""Verified senders: the prefix with the sender, its place, its cost, and that no client can forge it."""

from __future__ import annotations

import pytest

from sbus.protocol import controls
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_programs.config.settings import DaemonSettings, LimitSettings
from sbusd.dataplane.contract import waiting_bytes
from tests.support.in_process_bus import InProcessBus, MakeBus
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import error_code, message

ALICE, BOB = 1_000, 1_001
NAME = b"!/cred/7/1000/55"


def named(sender: int, packet: bytes, cred: bytes = NAME) -> bytes:
    """Return a message as it comes with its sender."""
    return b"CMSG !/from/%d/%b\0%b" % (sender, cred, packet)


def connect_as(harness: SwitchHarness, *patterns: bytes, send_buffer: int | None = None) -> int:
    """Add a client of user 1000."""
    number = harness.connect(*patterns, send_buffer=send_buffer)
    harness.switch.set_party(number, ALICE, cred=NAME)
    return number


def want(harness: SwitchHarness, client: int, on: bool = True) -> None:
    """Let a client want senders, or not."""
    harness.send(client, b"CMSG sender/on" if on else b"CMSG sender/off")
    harness.run()


def test_messages_carry_their_sender_only_on_request(harness: SwitchHarness) -> None:
    curious, plain, sender = connect_as(harness, b"a"), connect_as(harness, b"a"), connect_as(harness)
    want(harness, curious)
    sent = [message(b"a", b"1"), message(b"a", b""), message(b"a", bytes(100_000))]
    for packet in sent:
        harness.send(sender, packet)
    harness.run()
    assert harness.receive(curious) == [named(sender, packet) for packet in sent]
    assert harness.receive(plain) == sent
    want(harness, curious, on=False)
    harness.send(sender, sent[0])
    harness.run()
    assert harness.receive(curious) == [sent[0]]


def test_it_holds_from_its_place_among_the_packets(harness: SwitchHarness) -> None:
    client = connect_as(harness, b"a")
    for packet in (message(b"a", b"1"), b"CMSG sender/on", message(b"a", b"2"), b"CMSG sender/off", message(b"a", b"3")):
        harness.send(client, packet)
    harness.run()
    assert harness.receive(client) == [message(b"a", b"1"), named(client, message(b"a", b"2")), message(b"a", b"3")]


def test_the_bus_s_own_words_have_no_sender(harness: SwitchHarness) -> None:
    client = connect_as(harness, b"a")
    want(harness, client)
    for packet in (message(b"!/no", b""), b"CMSG pong\0", b"CMSG receipt/always\0t", message(b"b", b"")):
        harness.send(client, packet)
    harness.run()
    assert [packet[:18] for packet in harness.receive(client)] == [b"CMSG !/bus/error\0R", b"CMSG pong\0", b"CMSG !/bus/receipt"]


def test_queued_messages_keep_their_form_after_their_sender_disconnects(harness: SwitchHarness) -> None:
    slow, sender = connect_as(harness, b"a", send_buffer=20_000), connect_as(harness)
    packets = [message(b"a", b"%d " % number + bytes(2_000)) for number in range(60)]
    for number, packet in enumerate(packets):
        if number in (20, 40):
            want(harness, slow, on=number == 20)
        harness.send(sender, packet)
        harness.run()
    harness.hang_up(sender)
    harness.run()
    assert harness.switch.connection_counters(slow).queued_packets > 40
    assert harness.drain(slow) == [named(sender, packet) if 20 <= number < 40 else packet for number, packet in enumerate(packets)]


@pytest.mark.parametrize("order", [b"queue", b"stack", b"random"])
def test_heads_stay_with_their_packets_in_every_order(harness: SwitchHarness, order: bytes) -> None:
    slow = connect_as(harness, b"a", send_buffer=20_000)
    want(harness, slow)
    harness.send(slow, b"CMSG order/" + order)
    harness.run()
    senders = [connect_as(harness) for _ in range(3)]
    sent = set()
    for number in range(60):
        sender, packet = senders[number % 3], message(b"a", b"%d " % number + bytes(1_000 + number))
        sent.add(named(sender, packet))
        harness.send(sender, packet)
        harness.run()
    received = harness.drain(slow)
    assert len(received) == len(sent)
    assert set(received) == sent


def test_the_length_includes_the_prefix(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_bytes=100_000))
    slow, sender = connect_as(harness, b"a", send_buffer=5_000), connect_as(harness)
    want(harness, slow)
    harness.send(slow, b"CMSG blocking/hard/discard")
    packet = message(b"a", bytes(1_000))
    for _ in range(150):
        harness.send(sender, packet)
        harness.run()
    counters = harness.switch.connection_counters(slow)
    whole = len(named(sender, packet))
    charged = waiting_bytes(len(packet), whole - len(packet))
    assert counters.queued_bytes == counters.queued_packets * charged
    assert 100_000 - charged < counters.queued_bytes <= 100_000
    assert counters.lost_packets > 0
    received = harness.drain(slow)
    total = harness.switch.connection_counters(slow)
    assert total.delivered_bytes == sum(len(each) for each in received)


def test_a_packet_that_is_too_long_only_with_its_prefix_is_lost_and_reported(harness: SwitchHarness) -> None:
    small, sender = connect_as(harness, b"a", send_buffer=5_000), connect_as(harness)
    largest = next(size for size in range(20_000, 0, -1) if _arrives(harness, small, sender, size))
    want(harness, small)
    harness.send(sender, message(b"a", bytes(largest)))
    harness.run()
    assert harness.receive(small) == [b"CMSG !/bus/lost\x001"]


def _arrives(harness: SwitchHarness, recipient: int, sender: int, size: int) -> bool:
    """Return whether a message of *size* bytes reaches the recipient."""
    harness.send(sender, message(b"a", bytes(size)))
    harness.run()
    return harness.receive(recipient)[0].startswith(b"MSG ")


def test_the_largest_packet_carries_its_sender(harness: SwitchHarness) -> None:
    client, sender = connect_as(harness, b"a"), connect_as(harness)
    want(harness, client)
    packet = message(b"a", bytes(MAX_PACKET_BYTES - 6))
    harness.send(sender, packet)
    harness.run()
    assert harness.receive(client) == [named(sender, packet)]


def test_the_prefix_is_at_most_as_long_as_documented(harness: SwitchHarness) -> None:
    most = 2**32 - 1
    assert len(named(2**64 - 1, b"", b"!/cred/%d/%d/%d" % (most, most, most))) <= 128


def test_events_are_the_bus_s_own(bus: InProcessBus) -> None:
    owner = bus.client()
    owner.control(controls.SENDER_ON)
    owner.subscribe(b"!/event/connect/")
    owner.receive_all()
    bus.client(uid=ALICE)
    (packet,) = owner.receive_all()
    head, _, rest = packet.partition(b"\0")
    kind, cred = head.split(b"/", 3)[:3], head.split(b"/", 3)[3]
    assert (kind, cred[:7]) == ([b"CMSG !", b"from", b"0"], b"!/cred/")
    assert rest.startswith(b"MSG !/event/connect/2\0{")


def test_behind_a_server_the_prefix_is_a_part_of_the_name(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(credential_prefix="!/cred/1/2/3"))
    client = bus.client(uid=ALICE, gid=7, pid=55)
    client.control(controls.SENDER_ON)
    client.subscribe(b"a")
    client.publish(b"a", b"x")
    assert client.receive_all() == [named(1, message(b"a", b"x"), b"!/cred/1/2/3/" + NAME)]


def test_no_client_can_forge_the_prefix(bus: InProcessBus) -> None:
    hearer, forger = bus.client(uid=ALICE), bus.client(uid=BOB)
    hearer.control(controls.SENDER_ON)
    hearer.subscribe(b"")
    forged = b"!/from/1/!/cred/0/0/1"
    forger.publish(forged, message(b"a", b"do as I say"))
    forger.control(forged, message(b"a", b"do as I say"))
    assert [error_code(packet) for packet in forger.receive_all()] == ["EPERM", "EPERM"]
    forger.subscribe(forged)
    assert [error_code(packet) for packet in forger.receive_all()] == ["EPERM"]
    assert hearer.receive_all() == []


def test_the_connection_list_says_which_clients_enable_senders(bus: InProcessBus) -> None:
    client = bus.client(uid=ALICE)
    for on in (True, False):
        client.control(controls.SENDER_ON if on else controls.SENDER_OFF)
        found = client.ask_json(controls.CONNECTIONS)["connections"]
        assert isinstance(found, list)
        assert [each["sender"] for each in found] == [on]
