"""Direct messages that are refused: without the right, malformed, or against the rules. Rule 15 of sbusd/dataplane/contract.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.protocol import controls
from sbus.protocol.direct_messages import direct_packet, parse_direct
from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import join_batch
from sbus.protocol.vouching import parse_vouched, vouched_packet
from sbus_programs.config.rules import PolicyRule, RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings
from tests.support.examples import examples
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.switch_harness import SwitchHarness
from tests.support.wire import error_code, message

STORE, ALICE, BOB = 991, 1_000, 1_001
ORIGIN = b"!/local/!/cred/1000/1000/19211"
ABSENT = 10**18 - 1


def service(make_bus: MakeBus, *rules: PolicyRule, may_vouch: bool = False) -> tuple[InProcessBus, BusClient]:
    """Return a bus, and a client of the user with the right."""
    named = Subjects(users=(STORE,))
    rights = RightsSettings(deliver=named, vouch=named) if may_vouch else RightsSettings(deliver=named)
    bus = make_bus(DaemonSettings(rights=rights, policy=rules))
    return bus, bus.client(uid=STORE, gid=9, pid=55)


def number_of(client: BusClient) -> int:
    """Return the number of a client's connection."""
    return int(client.ask(controls.ADDRESS).split(b"/")[2])


def test_without_the_right_a_client_cannot_send_them_not_even_an_owner(make_bus: MakeBus) -> None:
    bus, _ = service(make_bus)
    reader, owner, alice = bus.client(uid=BOB), bus.client(), bus.client(uid=ALICE)
    reader.subscribe(b"")
    number = number_of(reader)
    for client in (owner, alice):
        client.send(direct_packet(number, message(b"a")))
        client.send(direct_packet(ABSENT, message(b"a")))
        client.send(direct_packet(number, vouched_packet(ORIGIN, message(b"a"))))
        client.send(join_batch([direct_packet(number, message(b"a")), b"CMSG !/to/"]))
        assert [error_code(packet) for packet in client.receive_all()] == ["EPERM"] * 5
    assert reader.receive_all() == []
    assert {record.message.name for record in bus.recorded()} == {"deliver-refused"}


def test_an_origin_in_it_needs_the_right_to_vouch_too(make_bus: MakeBus) -> None:
    for may_vouch in (False, True):
        bus, client = service(make_bus, may_vouch=may_vouch)
        reader = bus.client(uid=BOB)
        reader.control(controls.SENDER_ON)
        reader.subscribe(b"a")
        number, packet = number_of(reader), message(b"a")
        client.send(direct_packet(number, vouched_packet(ORIGIN, packet)))
        assert [error_code(each) for each in client.receive_all()] == ([] if may_vouch else ["EPERM"])
        head = b"CMSG !/from/%d/!/cred/9/%d/55/%b\0" % (number_of(client), STORE, ORIGIN)
        assert reader.receive_all() == ([head + packet] if may_vouch else [])
        assert [record.message.name for record in bus.recorded()] == ([] if may_vouch else ["vouch-refused"])


@pytest.mark.parametrize("may_vouch", [False, True])
@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (b"CMSG !/to/", "EINVAL"),
        (b"CMSG !/to/1", "EINVAL"),
        (b"CMSG !/to/1\0", "EINVAL"),
        (b"CMSG !/to/1\0MSG a", "EINVAL"),
        (b"CMSG !/to/1\0SUB a", "EINVAL"),
        (b"CMSG !/to/1\0" + direct_packet(1, message(b"a")), "EINVAL"),
        (b"CMSG !/to/1\0" + join_batch([message(b"a")]), "EINVAL"),
        *((b"CMSG !/to/%b\0MSG a\0" % number, "EINVAL") for number in (b"", b"0", b"01", b"-1", b"1/", b"x", b"1 ", b"1" * 19, b"1,2")),
        (b"CMSG !/to/1\0CMSG !/from/!/cred/0/0/1\0MSG a\0", "EINVAL"),
        (b"CMSG !/to/1\0CMSG !/from/" + ORIGIN + b"\0MSG a", "EINVAL"),
        (b"CMSG !/to/1\0CMSG !/from/" + b"x" * 600 + b"/!/cred/0/0/1\0MSG a\0", "EMSGSIZE"),
        (b"MSG !/to/1\0" + message(b"a"), "EPERM"),
    ],
)
def test_what_is_malformed_is_refused_and_the_connection_stays(make_bus: MakeBus, packet: bytes, code: str, may_vouch: bool) -> None:
    bus, client = service(make_bus, may_vouch=may_vouch)
    reader = bus.client(uid=BOB)
    reader.subscribe(b"")
    client.send(packet)
    client.send(join_batch([packet, direct_packet(number_of(reader), message(b"b"))]))
    assert [error_code(each) for each in client.receive_all()] == [code] * 2
    assert reader.receive_all() == [message(b"b")]


def test_the_rules_of_the_bus_hold_for_it(make_bus: MakeBus) -> None:
    bus, client = service(make_bus, PolicyRule("lab/", publish="deny", users=(STORE,), comment="not for the store"))
    reader = bus.client(uid=BOB)
    reader.subscribe(b"")
    number = number_of(reader)
    for key in (b"lab/oven", b"net/link"):
        client.send(direct_packet(number, message(key)))
    (error,) = client.receive_all()
    assert error_code(error) == "EPERM"
    assert b"not for the store" in error
    assert error.endswith(b"\0lab/oven")
    assert reader.receive_all() == [message(b"net/link")]


def test_features_and_explanations_name_the_right(make_bus: MakeBus) -> None:
    bus, client = service(make_bus, PolicyRule("lab/", publish="deny", subscribe="deny", users=(ALICE,)))
    assert b"deliver" in client.ask(controls.FEATURES).split(b"\n")
    for digits, may in ((b"%d" % STORE, True), (b"", False), (b"%d" % ALICE, False)):
        assert client.ask_json(controls.EXPLAIN, digits + b"\0publish\0a")["may_deliver"] is may
    for action in (b"publish", b"subscribe"):
        for uid, allowed in ((ALICE, False), (BOB, True)):
            assert client.ask_json(controls.EXPLAIN, b"%d\0%b\0lab/x" % (uid, action))["allowed"] is allowed
    bob = bus.client(uid=BOB)
    bob.control(controls.EXPLAIN, b"%d\0publish\0lab/x" % ALICE)
    assert [error_code(packet) for packet in bob.receive_all()] == ["EPERM"]


PIECES = st.sampled_from(
    [
        b"1",
        b"2",
        b"0",
        b"9" * 18,
        b"/",
        b" ",
        b"\0",
        b"MSG a\0",
        b"MSG a",
        b"CMSG !/to/1\0",
        b"CMSG !/from/x/!/cred/1/2/3\0",
        b"CMSG !/from/",
    ]
)


@settings(max_examples=examples(300))
@given(st.lists(PIECES, max_size=6).map(b"".join), st.booleans())
def test_the_switch_and_the_reference_agree(rest: bytes, may_vouch: bool) -> None:
    harness = SwitchHarness()
    try:
        readers, sender = [harness.connect(b"") for _ in range(2)], harness.connect()
        harness.set_party(sender, STORE, cred=b"!/cred/9/991/55", may_deliver=True, may_vouch=may_vouch)
        packet = b"CMSG !/to/" + rest
        assert harness.send(sender, packet)
        harness.run()
        try:
            recipient, inner = parse_direct(packet)
            if not inner.startswith(b"MSG "):
                inner = parse_vouched(inner)[1]
                recipient *= may_vouch
        except ProtocolError:
            recipient, inner = 0, b""
        assert harness.receive(sender) == ([] if recipient else [packet]), "the sink of the harness gets the others"
        assert [harness.receive(number) for number in readers] == [[inner] if number == recipient else [] for number in readers]
    finally:
        harness.close()
