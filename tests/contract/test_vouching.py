"""Messages in the name of others: routed as the client's own, and shown as what they are. Reports of losses: in their place, once."""

from __future__ import annotations

import json
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.protocol import controls
from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import MAX_PACKET_BYTES, join_batch, parse_batch
from sbus.protocol.vouching import parse_vouched, vouched_packet
from sbus_programs.config.rules import PolicyRule, RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings, LimitSettings
from sbusd.dataplane.contract import PublishRule, Refusal
from tests.support.examples import examples
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.switch_harness import LONG_TIMEOUTS, REFUSALS, MakeHarness, SwitchHarness, refused, send_all
from tests.support.wire import error_code, message

SERVICE, ALICE, BOB = 990, 1_000, 1_001
ORIGIN = b"!/host/alpha/!/cred/1000/1000/19211"
CRED = b"!/cred/9/990/55"
RIGHTS = RightsSettings(vouch=Subjects(users=(SERVICE,)), presence=Subjects(users=(SERVICE,)))
LOST = b"CMSG !/bus/lost\0%d"


def voucher(harness: SwitchHarness, *patterns: bytes) -> int:
    """Add a client that may vouch."""
    number = harness.connect(*patterns)
    harness.set_party(number, SERVICE, cred=CRED, may_vouch=True)
    return number


def shown(sender: int, packet: bytes, origin: bytes = ORIGIN) -> bytes:
    """Return a message as recipients that want senders get it."""
    return b"CMSG !/from/%d/%b/%b\0%b" % (sender, CRED, origin, packet)


def curious(harness: SwitchHarness, *patterns: bytes) -> int:
    """Add a client that wants senders."""
    number = harness.connect(*patterns)
    harness.configure(number, sender=True)
    return number


def service(make_bus: MakeBus, *rules: PolicyRule) -> tuple[InProcessBus, BusClient]:
    """Return a bus, and a client of the service."""
    bus = make_bus(DaemonSettings(rights=RIGHTS, policy=rules))
    return bus, bus.client(uid=SERVICE, gid=9, pid=55)


# Messages


def test_it_is_delivered_as_if_the_client_had_published_it(harness: SwitchHarness) -> None:
    plain, wanting, sender = harness.connect(b"a"), curious(harness, b"a"), voucher(harness)
    own, others = message(b"a", b"own"), message(b"a", b"of others")
    send_all(harness, sender, own, vouched_packet(ORIGIN, others), own)
    assert harness.receive(plain) == [own, others, own]
    plainly = b"CMSG !/from/%d/%b\0%b" % (sender, CRED, own)
    assert harness.receive(wanting) == [plainly, shown(sender, others), plainly]
    assert harness.events == []
    assert harness.switch.counters().messages == 3


def test_each_message_of_a_batch_keeps_its_own_origin(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(turn_time=10.0))  # all in one turn, however slow this machine is
    plain, wanting, sender = harness.connect(b""), curious(harness, b""), voucher(harness, b"a")
    origins = [b"h%d/!/cred/1/2/%d" % (number, number) for number in range(30)]
    sent = [message(b"a", b"%d" % number) for number in range(30)]
    batch = join_batch([each for origin, packet in zip(origins, sent, strict=True) for each in (vouched_packet(origin, packet), packet)])
    for number in (plain, wanting):
        harness.configure(number, batch=True)
    send_all(harness, sender, batch)
    expected = [packet for packet in sent for _ in range(2)]
    assert [packet for each in harness.receive(plain) for packet in parse_batch(each)] == expected
    assert [packet for each in harness.receive(wanting) for packet in parse_batch(each)] == [
        each
        for origin, packet in zip(origins, sent, strict=True)
        for each in (shown(sender, packet, origin), b"CMSG !/from/%d/%b\0%b" % (sender, CRED, packet))
    ]
    assert harness.receive(sender) == expected, "its echo"


def test_queued_messages_keep_their_origin_across_a_handover(harness: SwitchHarness) -> None:
    slow, sender = harness.connect(b"a", send_buffer=20_000), voucher(harness)
    harness.configure(slow, sender=True)
    packets = [message(b"a", b"%d " % number + bytes(2_000)) for number in range(40)]
    origins = [b"h%d/!/cred/1/2/3" % number for number in range(40)]
    for number in range(40):
        send_all(harness, sender, vouched_packet(origins[number], packets[number]))
        if number == 20:
            harness.hand_over()
    assert harness.switch.connection_counters(slow).queued_packets > 20
    harness.hand_over()
    assert harness.drain(slow) == [shown(sender, packets[number], origins[number]) for number in range(40)]


def test_a_handover_within_a_batch_keeps_the_origin_of_what_is_not_handled(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(batch_packets=2))
    wanting, sender = curious(harness, b"a"), voucher(harness)
    packets = [message(b"a", b"%d" % number) for number in range(9)]
    harness.send(sender, join_batch([vouched_packet(ORIGIN, packet) for packet in packets]))
    harness.switch.turn(0)
    assert len(harness.receive(wanting)) == 2
    harness.hand_over()
    harness.run()
    assert harness.receive(wanting) == [shown(sender, packet) for packet in packets[2:]]


TURN_TIME = 0.00001


class Deciding(SwitchHarness):
    """A switch whose sink records its decisions, each of which takes longer than the ``turn_time`` of these tests."""

    def may_know_recipients(self, connection: int, key: bytes) -> bool:
        self.events.append(("decided", connection))
        time.sleep(0.001)
        return super().may_know_recipients(connection, key)


def test_a_message_that_must_wait_for_a_decision_is_never_the_clients_own(make_harness: MakeHarness) -> None:
    """The decision about its receipt takes longer than a turn, so it is put back."""
    harness = make_harness(LimitSettings(turn_time=TURN_TIME), of=Deciding)
    key = b"!/cred//1000//x"
    wanting, sender = curious(harness, key), voucher(harness)
    packets = [message(key, b"%d" % number) for number in range(20)]
    for withheld in (True, False):
        harness.unprivileged = {sender} if withheld else set()
        asks = [each for packet in packets for each in (b"CMSG receipt/always\0t", vouched_packet(ORIGIN, packet))]
        send_all(harness, sender, join_batch(asks))
        assert harness.receive(wanting) == [shown(sender, packet) for packet in packets]
        assert harness.receive(sender) == [b"CMSG !/bus/receipt\0t\0" + (b"-" if withheld else b"1")] * 20


def test_a_decision_about_a_receipt_ends_with_the_right(make_harness: MakeHarness) -> None:
    """A message whose receipt was decided on is refused if its publisher loses the right. The next one must be decided on again."""
    harness = make_harness(LimitSettings(turn_time=TURN_TIME), of=Deciding)
    key = b"!/cred//1000//x"
    harness.connect(key)
    sender = voucher(harness)
    packet = vouched_packet(ORIGIN, message(key))
    for each in (b"CMSG receipt/always\0t", packet):
        harness.send(sender, each)
    while not harness.events:
        harness.switch.turn(0)
    # The decision took longer than a turn, so the message is put back.
    assert harness.receive(sender) == []
    harness.set_party(sender, SERVICE, cred=CRED, may_vouch=False)
    harness.unprivileged = {sender}
    send_all(harness, sender, message(key))
    assert harness.receive(sender) == [packet, b"CMSG !/bus/receipt\0t\0-"], "the sink of the harness got it, as a control message"
    assert harness.events == [("decided", sender)] * 2


def test_receipts_are_those_of_the_message(harness: SwitchHarness) -> None:
    harness.connect(b"a")
    sender = voucher(harness)
    too_long = b"CMSG !/from/" + ORIGIN + b"\0" + message(b"a", bytes(MAX_PACKET_BYTES))
    expected = [b"1", b"0", b"0"]
    refusals = [[], [refused(Refusal.RESERVED, b"!/bus/x")], [REFUSALS[Refusal.TRUNCATED]]]
    for packet, recipients, before in zip(
        (vouched_packet(ORIGIN, message(b"a")), vouched_packet(ORIGIN, message(b"!/bus/x")), too_long), expected, refusals, strict=True
    ):
        send_all(harness, sender, b"CMSG receipt/always\0t", packet)
        assert harness.receive(sender) == [*before, b"CMSG !/bus/receipt\0t\0" + recipients]


def test_rules_about_the_client_apply(harness: SwitchHarness) -> None:
    listener, sender = harness.connect(b"", b"!/cred//1//x"), voucher(harness)
    address = harness.connect(b"!/conn/3/")
    harness.set_publish_rules((PublishRule(b"host/", True), PublishRule(b"!/c", True), PublishRule(b"", False)))
    harness.set_party(sender, SERVICE, cred=CRED, may_vouch=True, rules=7)
    keys = [b"host/x", b"lab/x", b"!/cred//1//x", b"!/cred/1", b"!/conn/3/host/x", b"!/conn/3/lab/x", b"!/event/connect/1", b"k" * 5_000]
    send_all(harness, sender, *(vouched_packet(ORIGIN, message(key)) for key in keys))
    assert harness.receive(listener) == [message(b"host/x"), message(b"!/cred//1//x")]
    assert harness.receive(address) == [message(b"!/conn/3/host/x")]
    assert harness.receive(sender) == [
        refused(Refusal.POLICY, b"lab/x"),
        refused(Refusal.RESERVED, b"!/cred/1"),
        refused(Refusal.POLICY, b"!/conn/3/lab/x"),
        refused(Refusal.RESERVED, b"!/event/connect/1"),
        refused(Refusal.KEY_TOO_LONG, b"k" * 5_000),
    ]
    assert harness.refusals(sender) == {
        Refusal.POLICY: (b"lab/x", 2),
        Refusal.RESERVED: (b"!/cred/1", 2),
        Refusal.KEY_TOO_LONG: (b"k" * 5_000, 1),
    }


def test_a_tap_gets_the_origin_beside_the_credentials(harness: SwitchHarness) -> None:
    tap, sender = harness.connect(), voucher(harness)
    harness.switch.set_tap(tap, b"")
    send_all(harness, sender, vouched_packet(ORIGIN, message(b"a", b"1")), message(b"a", b"2"))
    lines = [json.loads(packet.partition(b"\0")[2].partition(b"\n")[0]) for packet in harness.receive(tap)]
    assert [(line["id"], line["cred"], line.get("vouched")) for line in lines] == [
        (sender, CRED.decode(), ORIGIN.decode()),
        (sender, CRED.decode(), None),
    ]


def test_a_paced_publisher_waits_with_messages_of_others_too(make_harness: MakeHarness) -> None:
    harness = make_harness(LONG_TIMEOUTS)
    slow, sender = harness.connect(b"a", send_buffer=20_000), voucher(harness)
    harness.set_party(slow, SERVICE)
    harness.switch.set_user_limits(SERVICE, 1 << 30, 200_000)
    harness.configure(sender, pace=True)
    packets = [message(b"a", b"%d " % number + bytes(2_000)) for number in range(150)]
    waiting = list(packets)
    received: list[bytes] = []
    while waiting or len(received) < len(packets):
        while waiting and harness.send(sender, vouched_packet(ORIGIN, waiting[0])):
            waiting.pop(0)
        harness.run()
        received += harness.receive(slow)
    assert received == packets
    assert harness.switch.counters().blocks > 0


# Refusals


def test_without_the_right_nobody_can_vouch_not_even_an_owner(make_bus: MakeBus) -> None:
    bus, _ = service(make_bus)
    hearer, owner, alice = bus.client(uid=BOB), bus.client(), bus.client(uid=ALICE)
    hearer.subscribe(b"")
    for client in (owner, alice):
        client.send(vouched_packet(ORIGIN, message(b"a")))
        client.send(join_batch([vouched_packet(ORIGIN, message(b"a")), b"CMSG !/from/\0"]))
        client.control(controls.LOST_FOR, b"1\0")
        assert [error_code(packet) for packet in client.receive_all()] == ["EPERM"] * 4
    assert hearer.receive_all() == []
    names = [record.message.name for record in bus.recorded()]
    assert set(names) == {"vouch-refused"}


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (b"CMSG !/from/", "EINVAL"),
        (b"CMSG !/from/" + ORIGIN, "EINVAL"),
        (b"CMSG !/from/" + ORIGIN + b"\0", "EINVAL"),
        (b"CMSG !/from/" + ORIGIN + b"\0MSG a", "EINVAL"),
        (b"CMSG !/from/" + ORIGIN + b"\0SUB a", "EINVAL"),
        (b"CMSG !/from/" + ORIGIN + b"\0" + vouched_packet(ORIGIN, message(b"a")), "EINVAL"),
        (b"CMSG !/from/" + ORIGIN + b"\0" + join_batch([message(b"a")]), "EINVAL"),
        (b"CMSG !/from/!/cred/0/0/1\0" + message(b"a"), "EINVAL"),
        (b"CMSG !/from/!/cred/9/990/55/!/cred/0/0/1\0" + message(b"a"), "EINVAL"),
        (b"CMSG !/from/" + b"x" * 600 + b"/!/cred/0/0/1\0" + message(b"a"), "EMSGSIZE"),
        (b"MSG !/from/" + ORIGIN + b"\0" + message(b"a"), "EPERM"),
    ],
)
def test_what_is_malformed_is_refused_and_the_connection_stays(make_bus: MakeBus, packet: bytes, code: str) -> None:
    bus, client = service(make_bus)
    hearer = bus.client(uid=BOB)
    hearer.subscribe(b"")
    client.send(packet)
    client.send(join_batch([packet, vouched_packet(ORIGIN, message(b"b"))]))
    assert [error_code(each) for each in client.receive_all()] == [code] * 2
    assert hearer.receive_all() == [message(b"b")]


PIECES = st.sampled_from(
    [b"!/cred/", b"/!/cred/1/2/3", b"/", b"1", b"x", b"!", b'"', b"\\", b"\0", b"\0MSG a\0", b"\xff", b" ", b"x" * 490]
)


@settings(max_examples=examples(300))
@given(st.lists(PIECES, max_size=8).map(b"".join))
def test_the_switch_and_the_reference_agree(rest: bytes) -> None:
    harness = SwitchHarness()
    try:
        wanting, sender = curious(harness, b""), voucher(harness)
        packet = b"CMSG !/from/" + rest
        send_all(harness, sender, packet)
        try:
            origin, inner = parse_vouched(packet)
        except ProtocolError:
            assert harness.receive(sender) == [packet], "the sink of the harness got it"
            assert harness.receive(wanting) == []
        else:
            assert harness.receive(wanting) == [shown(sender, inner, origin)]
    finally:
        harness.close()


# Losses


def test_a_loss_is_reported_in_its_place_once_to_each_holder(make_bus: MakeBus) -> None:
    bus, client = service(make_bus)
    twice, other, wild = bus.client(uid=ALICE), bus.client(uid=BOB), bus.client(uid=BOB)
    for pattern in (b"a/b", b"a/*", b"a/*"):
        twice.subscribe(pattern)
    other.subscribe(b"a/c")
    wild.subscribe(b"")
    for each in (twice, other, wild):
        assert each.receive_all() == []
    for packet in (message(b"a/b", b"1"), b"CMSG lost/for\x005\0a/b\0a/*\0a/c/", message(b"a/b", b"2")):
        client.send(packet)
    assert client.receive_all() == []
    assert twice.receive_all() == [message(b"a/b", b"1"), LOST % 5, message(b"a/b", b"2")]
    assert other.receive_all() == []
    assert wild.receive_all() == [message(b"a/b", b"1"), message(b"a/b", b"2")]
    assert bus.client().ask_json(controls.STATS)["control"]["reported_losses"] == 1  # type: ignore[index]


def test_a_loss_within_a_batch_has_its_place(make_bus: MakeBus) -> None:
    bus, client = service(make_bus)
    reader = bus.client(uid=ALICE)
    reader.subscribe(b"a")
    packets = [vouched_packet(ORIGIN, message(b"a", b"1")), b"CMSG lost/for\x000\0a", vouched_packet(ORIGIN, message(b"a", b"2"))]
    assert reader.receive_all() == []
    client.send(join_batch(packets))
    assert reader.receive_all() == [message(b"a", b"1"), LOST % 0, message(b"a", b"2")]


@pytest.mark.parametrize(
    ("stored", "reported"),
    [
        ([b"a*", b"b/c*", b"b/d**", b""], [b"a**", b"b/c**", b"b/d*", b"*"]),
        ([b"a*x"], [b"a*x"]),
        ([b"a/b/c", b"a/b"], [b"a", b"a/", b"a/b/", b"a/b/c/", b"a/b/*", b"x"]),
    ],
)
def test_only_the_very_pattern_counts(make_bus: MakeBus, stored: list[bytes], reported: list[bytes]) -> None:
    bus, client = service(make_bus)
    reader = bus.client(uid=ALICE)
    for pattern in stored:
        reader.subscribe(pattern)
    assert reader.receive_all() == []
    client.control(controls.LOST_FOR, b"1\0" + b"\0".join(reported))
    assert client.receive_all() == reader.receive_all() == []


@pytest.mark.parametrize("pattern", [b"", b"a", b"a/", b"a*", b"a**", b"*/b/", b"a/b/c/d", b"a//", b"!/cred//1000//x", b"!/conn/2/x"])
def test_each_form_of_pattern_is_found(make_bus: MakeBus, pattern: bytes) -> None:
    bus, client = service(make_bus)
    reader = bus.client(uid=ALICE)
    for other in (b"a/b", b"a/b/c", b"*", b"b", b"a*/", pattern, b"a/b/c/e"):
        reader.subscribe(other)
    assert reader.receive_all() == []
    client.control(controls.LOST_FOR, b"7\0" + pattern)
    assert client.receive_all() == []
    assert reader.receive_all() == [LOST % 7]
    reader.unsubscribe(pattern)
    assert reader.receive_all() == []
    client.control(controls.LOST_FOR, b"7\0" + pattern)
    assert client.receive_all() == reader.receive_all() == []


@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_a_notice_that_does_not_fit_is_counted_in_the_next_one(make_harness: MakeHarness, count: int) -> None:
    harness = make_harness(LimitSettings(queue_bytes=65_536))
    slow, sender = harness.connect(b"a", send_buffer=5_000), voucher(harness)
    for size in (1_000, 0):
        losses = harness.switch.connection_counters(slow).lost_packets
        while harness.switch.connection_counters(slow).lost_packets == losses:
            send_all(harness, sender, message(b"a", bytes(size)))
    before = harness.switch.connection_counters(slow).lost_packets
    send_all(harness, sender, b"CMSG lost/for\0%d\0a" % count)
    expected = before + max(count, 1)
    assert harness.switch.connection_counters(slow).lost_packets == expected
    harness.check_balance()
    noticed = [int(packet.partition(b"\0")[2]) for packet in harness.drain(slow) if packet.startswith(b"CMSG")]
    assert sum(noticed) == expected
    assert noticed[-1] > count, "it counts a message of before too"
    harness.check_balance()


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "EINVAL"),
        (b"1", "EINVAL"),
        (b"-1\0a", "EINVAL"),
        (b"1" * 16 + b"\0a", "EINVAL"),
        (b"1" + b"\0a" * 65, "EINVAL"),
        (b"1\0a\0" + b"k" * 5_000, "EMSGSIZE"),
        (b"1\0a\0!/event/", "EPERM"),
        (b"1\0a\0!/bus/lost", "EPERM"),
        (b"1\0a\0!/conn/2/!/event/", "EPERM"),
        (b"1\0a\0!/conn/2/!/conn/2/", "EPERM"),
        (b"1\0a\0lab/oven", "EPERM"),
        (b"1\0a\0!/conn/2/lab/oven", "EPERM"),
    ],
)
def test_a_refused_report_reaches_nobody(make_bus: MakeBus, payload: bytes, code: str) -> None:
    bus, client = service(make_bus, PolicyRule("lab/", publish="deny"))
    reader = bus.client(uid=ALICE)
    reader.subscribe(b"a")
    assert reader.receive_all() == []
    client.control(controls.LOST_FOR, payload)
    assert [error_code(packet) for packet in client.receive_all()] == [code]
    assert reader.receive_all() == []


def test_a_report_is_allowed_if_any_matching_key_is(make_bus: MakeBus) -> None:
    bus, client = service(make_bus, PolicyRule("host/", publish="allow"), PolicyRule("", publish="deny"))
    reader = bus.client(uid=ALICE)
    for pattern in (b"", b"host/", b"*/oven", b"lab/"):
        reader.subscribe(pattern)
    assert reader.receive_all() == []
    for pattern, codes in ((b"", []), (b"host/", []), (b"*/oven", []), (b"lab/", ["EPERM"])):
        client.control(controls.LOST_FOR, b"1\0" + pattern)
        assert [error_code(packet) for packet in client.receive_all()] == codes
    assert reader.receive_all() == [LOST % 1] * 3


def test_a_loss_of_a_private_key_tells_the_reporter_nothing(make_bus: MakeBus) -> None:
    bus, client = service(make_bus)
    reader = bus.client(uid=ALICE)
    reader.subscribe(b"!/cred//1000//x")
    assert reader.receive_all() == []
    for uid in (ALICE, BOB):
        client.control(controls.LOST_FOR, b"1\0!/cred//%d//x" % uid)
        assert client.receive_all() == []
    assert reader.receive_all() == [LOST % 1]


def test_features_and_explanations_name_the_right(make_bus: MakeBus) -> None:
    _, client = service(make_bus)
    assert b"vouch" in client.ask(controls.FEATURES).split(b"\n")
    for uid, may in ((b"990", True), (b"", False)):
        assert client.ask_json(controls.EXPLAIN, uid + b"\0publish\0a")["may_vouch"] is may


def test_the_length_before_a_message_in_a_batch_is_written_over_the_origin_only(harness: SwitchHarness) -> None:
    """The switch writes lengths in front of packets, where they were received. What follows must not suffer."""
    both = [harness.connect(b"") for _ in range(2)]
    for number in both:
        harness.configure(number, batch=True)
    sender = voucher(harness)
    packets = [vouched_packet(b"x/!/cred/1/2/3", message(b"a", struct.pack("<I", number))) for number in range(10)]
    send_all(harness, sender, join_batch(packets), *packets)
    for number in both:
        received = [packet for each in harness.receive(number) for packet in (parse_batch(each) if each[:5] == b"CMSG " else [each])]
        assert received == [message(b"a", struct.pack("<I", each)) for each in range(10)] * 2
