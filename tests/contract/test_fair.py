"""The order ``fair``: the users whose messages are in a queue take turns. Spec: sbus-protocol(7) §7."""

from __future__ import annotations

import pytest

from sbus.protocol.packets import is_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import FAIR_PACKETS, Order, Sight
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message

LOST = b"CMSG !/bus/lost\0"
SMALL_BUFFER = 20_000
PAYLOAD = bytes(500)
USERS = (2, 3, 4)


def reader_of(harness: SwitchHarness, order: Order = Order.FAIR) -> int:
    """Return a client of user 1 that takes turns, and reads nothing."""
    reader = harness.connect(b"", send_buffer=SMALL_BUFFER)
    harness.set_party(reader, 1)
    harness.configure(reader, order=order)
    return reader


def sender_of(harness: SwitchHarness, uid: int, charged: int | None = None) -> int:
    """Return a client of user *uid*; the user *charged* is charged for it."""
    sender = harness.connect()
    harness.set_party(sender, uid, charged=uid if charged is None else charged)
    return sender


def publish(harness: SwitchHarness, sender: int, uid: int, first: int, count: int) -> None:
    """Publish messages of user *uid*, numbered from *first*."""
    for number in range(first, first + count):
        assert harness.send(sender, message(b"%d" % uid, b"%d " % number + PAYLOAD))
        harness.run()


def words(packets: list[bytes]) -> list[str]:
    """Return what the packets are: the user and the number of a message, or the count of a notice."""
    return [
        f"lost {int(packet.removeprefix(LOST))}"
        if packet.startswith(LOST)
        else packet.partition(b"\0")[0].decode().removeprefix("MSG ") + ":" + packet.partition(b"\0")[2].split(b" ")[0].decode()
        for packet in packets
    ]


def test_an_event_about_a_client_follows_the_messages_of_that_client(harness: SwitchHarness) -> None:
    """Otherwise a caller that serves others learns of the end of a service before the response that it has sent."""
    reader, leaving, other = reader_of(harness), sender_of(harness, 2), sender_of(harness, 3)
    publish(harness, other, 3, 0, 300)
    publish(harness, leaving, 2, 0, 300)
    harness.switch.announce(b"MSG e\x002 gone", sight=Sight.ALL, uid=1, payer=2)
    received = words(harness.drain(reader))
    assert received[-1] == "e:2"
    assert [each for each in received if each.startswith("2:")] == [f"2:{number}" for number in range(300)]


def test_a_message_waits_for_few_of_another_user(harness: SwitchHarness) -> None:
    reader, flooder, quiet = reader_of(harness), sender_of(harness, 2), sender_of(harness, 3)
    publish(harness, flooder, 2, 0, 1_000)
    direct = 1_000 - harness.switch.connection_counters(reader).queued_packets
    publish(harness, quiet, 3, 0, 2)
    received = words(harness.drain(reader))
    assert received.index("3:0") <= direct + FAIR_PACKETS + 1
    assert received.index("3:1") - received.index("3:0") == 2
    assert [each for each in received if each.startswith("2:")] == [f"2:{number}" for number in range(1_000)]


def test_ids_that_are_charged_to_one_user_have_its_turns(harness: SwitchHarness) -> None:
    """One of 20 ids costs another user as much as all of them do."""
    reader, quiet = reader_of(harness), sender_of(harness, 3)
    flooders = [sender_of(harness, 200 + number, charged=2) for number in range(20)]
    for round_ in range(50):
        for number, flooder in enumerate(flooders):
            publish(harness, flooder, 200 + number, round_, 1)
    direct = 1_000 - harness.switch.connection_counters(reader).queued_packets
    publish(harness, quiet, 3, 0, 2)
    received = words(harness.drain(reader))
    assert received.index("3:0") <= direct + FAIR_PACKETS + 1
    assert received.index("3:1") - received.index("3:0") == 2
    for number in range(20):
        assert [each for each in received if each.startswith(f"{200 + number}:")] == [f"{200 + number}:{each}" for each in range(50)]


def test_no_batches_fill_the_socket(harness: SwitchHarness) -> None:
    reader, sender = reader_of(harness), sender_of(harness, 2)
    harness.configure(reader, batch=True)
    publish(harness, sender, 2, 0, 200)
    assert not any(map(is_batch, harness.drain(reader)))
    harness.configure(reader, order=Order.QUEUE)
    publish(harness, sender, 2, 0, 200)
    assert any(map(is_batch, harness.drain(reader)))


@pytest.mark.parametrize("hands_over", [False, True])
def test_a_loss_notice_is_in_the_place_of_the_gap_of_its_user(make_harness: MakeHarness, *, hands_over: bool) -> None:
    harness = make_harness(LimitSettings(queue_packets=100))
    reader, flooder, quiet = reader_of(harness), sender_of(harness, 2), sender_of(harness, 3)
    publish(harness, flooder, 2, 0, 200)
    lost = harness.switch.connection_counters(reader).lost_packets
    last = 199 - lost
    publish(harness, quiet, 3, 0, 2)
    publish(harness, flooder, 2, 200, 5)
    if hands_over:
        harness.hand_over()
    received = words(harness.receive(reader, 400))
    harness.run()
    publish(harness, flooder, 2, 300, 1)
    received += words(harness.drain(reader))
    assert [each for each in received if each.startswith("3:")] == ["3:0", "3:1"]
    own = [each for each in received if not each.startswith("3:")]
    assert own[last + 1 :] == [f"lost {lost + 5}", "2:300"], "one notice, after the last message before the gap, before the first after it"
    assert received.index("3:1") < received.index(f"lost {lost + 5}")
    harness.check_balance()


def test_what_waits_when_the_order_changes_goes_first(harness: SwitchHarness) -> None:
    reader, flooder, quiet = reader_of(harness, Order.QUEUE), sender_of(harness, 2), sender_of(harness, 3)
    publish(harness, flooder, 2, 0, 200)
    harness.configure(reader, order=Order.FAIR)
    publish(harness, flooder, 2, 200, 100)
    publish(harness, quiet, 3, 0, 1)
    harness.configure(reader, order=Order.QUEUE)
    publish(harness, flooder, 2, 300, 1)
    harness.switch.send(reader, b"CMSG note\0last")
    publish(harness, quiet, 3, 1, 1)
    harness.hand_over()
    received = words([packet for packet in harness.drain(reader) if packet != b"CMSG note\0last"])
    assert received[:200] == [f"2:{number}" for number in range(200)]
    assert received.index("3:0") == 201, "one turn after those that waited"
    assert received[-2:] == ["2:300", "3:1"]
    harness.check_balance()


def test_messages_of_a_member_that_has_ended_take_turns_with_others(harness: SwitchHarness) -> None:
    member, heir = reader_of(harness), reader_of(harness)
    flooder, quiet = sender_of(harness, 2), sender_of(harness, 3)
    for each in (member, heir):
        harness.switch.unsubscribe(each, b"")
    harness.switch.subscribe(member, b"\0workers")
    publish(harness, flooder, 2, 0, 400)
    harness.switch.subscribe(heir, b"\0workers")
    harness.hang_up(member)
    harness.run()
    publish(harness, quiet, 3, 0, 1)
    received = [packet.partition(b"\0")[2] for packet in harness.drain(heir)]
    assert len(received) > FAIR_PACKETS * 2
    place = next(place for place, packet in enumerate(received) if packet.startswith(b"MSG 3"))
    assert place < len(received) - FAIR_PACKETS
    harness.check_balance()
