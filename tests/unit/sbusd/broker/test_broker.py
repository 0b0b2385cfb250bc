"""The control plane, with clients of invented users."""

from __future__ import annotations

import contextlib
import errno
import socket

import pytest

from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode
from sbus_programs.config.rules import Origin, PolicyRule, RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings, LimitSettings, LogSettings
from sbus_programs.systemd.log_records import Priority
from sbusd.broker.access import BusOwnership
from tests.support.in_process_bus import InProcessBus, MakeBus
from tests.support.wire import error_code, message

ALICE, BOB = 1_000, 1_001


def names(bus: InProcessBus) -> list[str]:
    """Return the names of all log records."""
    return [record.message.name for record in bus.recorded()]


# -- admission


def test_every_user_is_admitted_if_none_is_named() -> None:
    ownership = BusOwnership.of(DaemonSettings())
    assert ownership.allowed is None
    assert ownership.admits(12_345)


def test_users_of_options_and_file_and_the_own_user_are_admitted() -> None:
    ownership = BusOwnership.of(DaemonSettings(allowed_users=(ALICE,), admins=(77,)), (BOB,))
    assert ownership.allowed == frozenset({ALICE, BOB, ownership.own_uid})
    assert [ownership.admits(uid) for uid in (ALICE, BOB, 77)] == [True, True, False]
    assert ownership.owners == {0, ownership.own_uid, 77}


def test_a_user_that_is_not_admitted_gets_an_error_and_is_disconnected(make_bus: MakeBus) -> None:
    bus = make_bus(ownership=BusOwnership(0, frozenset({0, ALICE}), frozenset({0})))
    refused, admitted = bus.client(uid=BOB), bus.client(uid=ALICE)
    reported, end = refused.receive_all()
    assert error_code(reported) == "EACCES"
    assert b"user 1001" in reported
    assert end == b""
    assert admitted.barrier() == []
    assert bus.switch.connections() == [admitted.connection]
    (record,) = bus.recorded()
    assert (record.message.name, record.uid) == ("client-refused", BOB)


def test_a_peer_without_credentials_gets_an_error_and_is_disconnected(bus: InProcessBus) -> None:
    bus.next_credentials = OSError(errno.ENOTCONN, "not connected")
    reported, end = bus.connect_next().receive_all()
    assert (error_code(reported), end) == ("EACCES", b"")
    assert names(bus) == ["credentials-unknown"]


def test_a_rejected_user_cannot_publish(make_bus: MakeBus) -> None:
    bus = make_bus(ownership=BusOwnership(0, frozenset({0}), frozenset({0})))
    listener = bus.client()
    listener.subscribe(b"a")
    listener.barrier()
    intruder = bus.client(uid=BOB)
    intruder.publish(b"a", b"from outside")
    intruder.subscribe(b"a")
    bus.run()
    assert listener.barrier() == []
    assert bus.switch.recipients(b"a") == [listener.connection]


def test_the_bus_stops_with_its_last_client_only_if_configured(make_bus: MakeBus) -> None:
    for ends_when_empty in (False, True):
        bus = make_bus(ownership=BusOwnership(0, None, frozenset({0}), ends_when_empty))
        first, second = bus.client(), bus.client()
        first.close()
        bus.run()
        assert bus.broker.is_done is False
        second.close()
        bus.run()
        assert bus.broker.is_done is ends_when_empty


# -- subscriptions


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        (b"!/bus/error", "EPERM"),
        (b"!/", "EPERM"),
        (b"!/*/", "EPERM"),
        (b"!/conn/2/", "EPERM"),
        (b"!/conn/01/", "EPERM"),
        (b"!/conn/1", "EPERM"),
        (b"!/conn/*/", "EPERM"),
        (b"!/event", "EPERM"),
        (b"!/cred/0/0/0/x", "EACCES"),
        (b"!/cred/*/1000/55/x", "EACCES"),
        (b"!/cred/", "EACCES"),
        (b"!/cred/1000/1000/55", "EACCES"),
        (b"!/cred//1001//x", "EACCES"),
        (b"k" * 4_097, "EMSGSIZE"),
    ],
)
def test_each_denied_pattern_is_refused_with_its_own_code(bus: InProcessBus, pattern: bytes, code: str) -> None:
    client = bus.client(uid=ALICE, gid=ALICE, pid=55)
    client.subscribe(pattern)
    packets = client.receive_all()
    assert error_code(packets[0]) == code
    assert packets[1:] == ([b""] if ErrorCode[code].disconnects else [])
    assert bus.switch.counters().subscriptions == 0
    recorded = {"EPERM": "reserved-key-refused", "EACCES": "secret-refused", "EMSGSIZE": "too-long-refused"}
    (record,) = bus.recorded()
    assert (record.message.name, record.uid, record.pid, record.connection) == (recorded[code], ALICE, 55, client.connection)
    assert record.key == pattern[:1_024]


@pytest.mark.parametrize("pattern", [b"", b"*", b"a/*/c/", b"!x", b"!", b"!*/", b"*/cred/", b"a\0ignored", b"k" * 4_096])
def test_an_ordinary_pattern_is_stored(bus: InProcessBus, pattern: bytes) -> None:
    client = bus.client(uid=ALICE)
    client.subscribe(pattern)
    assert client.barrier() == []
    assert bus.switch.patterns(client.connection) == {pattern.partition(b"\0")[0]: 1}


def test_two_subscriptions_need_two_unsubscriptions_and_a_third_is_counted(bus: InProcessBus) -> None:
    client = bus.client()
    for _ in range(2):
        client.subscribe(b"a")
    expected = [(1, 0), (0, 0), (0, 1)]
    for left, unknown in expected:
        client.unsubscribe(b"a\0ignored")
        assert client.barrier() == []
        control = client.ask_json(controls.STATS)["control"]
        assert isinstance(control, dict)
        assert control["unknown_unsubscriptions"] == unknown
        assert bus.switch.patterns(client.connection) == ({b"a": left} if left else {})


# -- control messages


@pytest.mark.parametrize(
    "key",
    [
        b"!/bus/nothing",
        b"",
        b"x",
        b"!x",
        b"echo",
        b"echo/onn",
        b"order/lastest",
        b"!/",
        b"!/cred/",
        b"!/bus/lost",
        b"!/bus/error",
        b"!/two/1",
        b"!/\xff",
    ],
)
@pytest.mark.parametrize("payload", [None, b"", b"x"])
def test_an_unknown_control_message_is_only_an_error(bus: InProcessBus, key: bytes, payload: bytes | None) -> None:
    client = bus.client()
    client.control(key, payload)
    (reported,) = client.receive_all()
    assert error_code(reported) == "ENOSYS"
    assert client.barrier() == []


@pytest.mark.parametrize("key", [b"blocking/soft/queue", b"blocking/hard/error", b"order/stack", b"order/random"])
def test_a_setting_has_no_response(bus: InProcessBus, key: bytes) -> None:
    client = bus.client()
    client.control(key, b"x")
    assert client.barrier() == []


def test_a_control_message_sets_echo(bus: InProcessBus) -> None:
    client = bus.client()
    client.subscribe(b"a")
    client.control(controls.ECHO_OFF)
    client.publish(b"a", b"1")
    client.control(controls.ECHO_ON, b"ignored")
    client.publish(b"a", b"2")
    assert client.barrier() == [message(b"a", b"2")]


@pytest.mark.parametrize(
    "packet", [b"", b" ", b"MSG", b"MSG ", b"MSG a", b"msg a\0", b"SUB", b"SUBa", b"UNSUB", b"CMSG", b"\0", b"\xff" * 99]
)
def test_a_malformed_packet_disconnects_with_a_reason(bus: InProcessBus, packet: bytes) -> None:
    client, other = bus.client(uid=ALICE, pid=55), bus.client()
    client.send(packet)
    reported, end = client.receive_all()
    assert (error_code(reported), end) == ("EPROTO", b"")
    assert other.barrier() == []
    (record,) = bus.recorded()
    assert (record.message.name, record.uid, record.pid) == ("malformed-packet", ALICE, 55)


# -- refusals and losses that the switch reports


def test_a_refused_message_is_recorded_with_key_and_count(bus: InProcessBus) -> None:
    client = bus.client(uid=ALICE)
    for _ in range(3):
        client.publish(b"!/bus/error", b"forged")
    reported = client.barrier()
    assert [error_code(packet) for packet in reported] == ["EPERM"] * 3
    (record,) = bus.recorded()
    assert (record.message.name, record.key, record.facts["count"]) == ("reserved-key-refused", b"!/bus/error", 3)


def test_a_packet_that_is_too_long_is_refused_and_recorded(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(limits=LimitSettings(key_bytes=16)))
    client = bus.client(uid=ALICE)
    client.publish(b"k" * 17)
    assert [error_code(packet) for packet in client.barrier()] == ["EMSGSIZE"]
    (record,) = bus.recorded()
    assert record.message.name == "too-long-refused"
    assert "key too long" in record.text


def test_a_loss_is_recorded_when_the_client_is_notified(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(limits=LimitSettings(queue_packets=2)))
    slow, fast = bus.client(uid=ALICE), bus.client(uid=BOB)
    slow.subscribe(b"a")
    bus.run()
    for _ in range(40):
        fast.publish(b"a", bytes(100_000))
        bus.run()
    received = slow.receive_all()
    lost = sum(int(packet.rpartition(b"\0")[2]) for packet in received if packet.startswith(b"CMSG !/bus/lost\0"))
    assert lost == 40 - sum(packet.startswith(b"MSG") for packet in received) > 0
    losses = [record for record in bus.recorded() if record.message.name == "packets-lost"]
    assert sum(int(record.facts["count"]) for record in losses) == lost
    assert {record.uid for record in losses} == {ALICE}


def test_a_failed_accept_is_recorded(bus: InProcessBus) -> None:
    bus.broker.accept_failed(errno.EMFILE)
    (record,) = bus.recorded()
    assert "Too many open files" in record.text


def test_connects_and_disconnects_are_recorded_at_level_debug(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(log=LogSettings(level="debug")))
    client = bus.client(uid=ALICE)
    client.barrier()
    client.close()
    bus.run()
    assert names(bus) == ["client-connected", "client-disconnected"]


# -- defects of our own


def test_an_internal_error_disconnects_only_its_client_and_is_recorded(bus: InProcessBus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_data: bytes) -> None:
        raise ZeroDivisionError("made up")

    finder, other = bus.client(uid=ALICE), bus.client()
    with monkeypatch.context() as patch:
        patch.setattr("sbusd.broker.broker.parse_packet", fail)
        finder.send(b"UNSUB a")
        reported, end = finder.receive_all()
    assert (error_code(reported), end) == ("EPROTO", b"")
    assert b"ZeroDivisionError" not in reported
    assert b"made up" not in reported
    control = other.ask_json(controls.STATS)["control"]
    assert isinstance(control, dict)
    assert control["internal_errors"] == 1
    (record,) = bus.recorded()
    assert record.message.name == "internal-error"
    assert "ZeroDivisionError: made up" in record.trace
    assert "Traceback" not in record.text


def test_stop_ends_the_loop(bus: InProcessBus) -> None:
    assert bus.broker.is_done is False
    bus.broker.stop()
    assert bus.broker.is_done is True


# -- rules, and what changes while the bus runs

CLOSED = PolicyRule("lab/", "deny", "deny", groups=(27,), comment="keep out", origin=Origin("f.toml", 1))


def reconfigure(bus: InProcessBus, settings: DaemonSettings) -> None:
    """Apply *settings*, and settle."""
    bus.broker.reconfigure(settings, BusOwnership(0, None, frozenset({0})))
    while not bus.broker.is_settled:
        bus.broker.settle()


def test_a_rule_refuses_a_subscription_and_the_connection_stays(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(policy=(CLOSED,)))
    closed_out, other = bus.client(uid=ALICE, groups=frozenset({27})), bus.client(uid=BOB)
    for pattern in (b"lab/x", b"*/x", b""):
        closed_out.subscribe(pattern)
        other.subscribe(pattern)
    reported = closed_out.barrier()
    assert [error_code(packet) for packet in reported] == ["EPERM"] * 3
    assert b"refused by rule 1 of f.toml: keep out" in reported[0]
    assert bus.switch.patterns(closed_out.connection) == {}
    assert len(bus.switch.patterns(other.connection)) == 3
    record = bus.recorded()[0]
    assert (record.message.name, record.uid, record.key) == ("policy-refused", ALICE, b"lab/x")
    assert record.facts["rule"] == "rule 1 of f.toml: keep out"


def test_a_publication_refused_by_a_rule_is_recorded_with_the_rule(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(policy=(CLOSED,)))
    closed_out, other, listener = bus.client(uid=ALICE, groups=frozenset({27})), bus.client(uid=BOB), bus.client()
    listener.subscribe(b"")
    assert listener.barrier() == []
    closed_out.publish(b"lab/x", b"1")
    closed_out.publish(b"lab", b"2")
    assert [error_code(packet) for packet in closed_out.barrier()] == ["EPERM"]
    other.publish(b"lab/x", b"3")
    assert other.barrier() == []
    assert listener.barrier() == [message(b"lab", b"2"), message(b"lab/x", b"3")]
    (record,) = bus.recorded()
    assert (record.message.name, record.uid, record.key, record.facts["packet"]) == ("policy-refused", ALICE, b"lab/x", "MSG")
    assert record.facts["rule"] == "rule 1 of f.toml: keep out"


def test_new_rules_apply_to_connected_publishers(make_bus: MakeBus) -> None:
    bus = make_bus()
    client, listener = bus.client(uid=ALICE, groups=frozenset({27})), bus.client()
    listener.subscribe(b"")
    assert listener.barrier() == []
    for settings, gets in ((DaemonSettings(), 1), (DaemonSettings(policy=(CLOSED,)), 0), (DaemonSettings(), 1)):
        bus.broker.reconfigure(settings, BusOwnership(0, None, frozenset({0})))
        client.publish(b"lab/x")
        assert len(client.barrier()) == 1 - gets
        assert len(listener.barrier()) == gets


def test_new_rules_revoke_subscriptions_that_they_do_not_allow(make_bus: MakeBus) -> None:
    bus = make_bus()
    client, other = bus.client(uid=ALICE, groups=frozenset({27})), bus.client(uid=BOB)
    for pattern in (b"lab/x", b"lab/x", b"*/x", b"*", b"!/cred//1000//x"):
        client.subscribe(pattern)
    other.subscribe(b"lab/x")
    assert (client.barrier(), other.barrier()) == ([], [])
    reconfigure(bus, DaemonSettings(policy=(CLOSED,)))
    reported = client.barrier()
    assert sorted(packet.split(b"subscription ")[1].split(b" ")[0] for packet in reported) == [b"*/x", b"lab/x"]
    assert {error_code(packet) for packet in reported} == {"EPERM"}
    assert bus.switch.patterns(client.connection) == {b"*": 1, b"!/cred//1000//x": 1}
    assert bus.switch.patterns(other.connection) == {b"lab/x": 1}
    described = client.ask_json(controls.STATS)["connection"]
    assert isinstance(described, dict)
    assert described["subscriptions"] == 2
    (record,) = bus.recorded()
    assert (record.message.name, record.uid, record.facts["count"]) == ("subscriptions-revoked", ALICE, 3)


def test_revocation_checks_one_pattern_per_step_while_clients_connect_and_disconnect(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbusd.broker.broker.MAX_SETTLE_SECONDS", 0.0)
    bus = make_bus()
    gone, client = (bus.client(uid=ALICE, groups=frozenset({27})) for _ in range(2))
    for each in (gone, client):
        for pattern in (b"lab/x", b"lab/y", b"hall"):
            each.subscribe(pattern)
        assert each.barrier() == []
    bus.broker.reconfigure(DaemonSettings(policy=(CLOSED,)), BusOwnership(0, None, frozenset({0})))
    bus.broker.settle()
    gone.close()
    client.unsubscribe(b"lab/y")
    bus.run()
    steps = 0
    while not bus.broker.is_settled:
        bus.broker.settle()
        steps += 1
    # Steps: the first client, which is gone; each pattern of the other; the removed instance; its end; the end of the sweep.
    assert steps == 6
    reported = client.barrier()
    assert [packet.split(b"subscription ")[1].split(b" ")[0] for packet in reported] == [b"lab/x"]
    assert bus.switch.patterns(client.connection) == {b"hall": 1}


def test_removed_rules_refuse_nothing(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(policy=(CLOSED,)))
    client = bus.client(uid=ALICE, groups=frozenset({27}))
    bus.broker.reconfigure(DaemonSettings(), BusOwnership(0, None, frozenset({0})))
    client.subscribe(b"lab/x")
    assert client.barrier() == []


def test_users_that_are_no_longer_admitted_get_an_error_and_are_disconnected(bus: InProcessBus) -> None:
    gone, stays = bus.client(uid=ALICE), bus.client(uid=BOB)
    bus.broker.reconfigure(DaemonSettings(), BusOwnership(0, frozenset({0, BOB}), frozenset({0})))
    reported, end = gone.receive_all()
    assert (error_code(reported), end) == ("EACCES", b"")
    assert b"user 1000 is not admitted" in reported
    assert stays.barrier() == []


def test_new_owners_have_their_rights_at_once(bus: InProcessBus) -> None:
    client = bus.client(uid=ALICE)
    assert client.ask_json(controls.STATS)["scope"] == "connection"
    bus.broker.reconfigure(DaemonSettings(), BusOwnership(0, None, frozenset({0, ALICE})))
    assert client.ask_json(controls.STATS)["scope"] == "bus"


def test_only_a_disconnect_of_a_protected_user_by_the_bus_is_critical(make_bus: MakeBus) -> None:
    bus = make_bus(ownership=BusOwnership(0, None, frozenset({0}), protected=frozenset({ALICE})))
    polite, wrong, unprotected = bus.client(uid=ALICE), bus.client(uid=ALICE, pid=55), bus.client(uid=BOB)
    polite.close()
    for client in (wrong, unprotected):
        client.send(b"nonsense")
        assert client.receive_all()[-1] == b""
    (record,) = [record for record in bus.recorded() if record.message.priority == Priority.CRIT]
    assert (record.message.name, record.uid, record.pid) == ("protected-user-ended", ALICE, 55)
    assert str(record.facts["reason"]).startswith("EPROTO malformed packet")


def test_rejecting_a_protected_user_is_critical(make_bus: MakeBus) -> None:
    bus = make_bus(ownership=BusOwnership(0, frozenset({0}), frozenset({0}), protected=frozenset({ALICE})))
    bus.client(uid=ALICE).receive_all()
    assert names(bus) == ["client-refused", "protected-user-ended"]


def test_protected_users_are_those_configured() -> None:
    assert BusOwnership.of(DaemonSettings(protected_users=(ALICE,))).protected == {ALICE}


def test_a_disconnect_of_a_protected_user_by_the_switch_is_critical(make_bus: MakeBus) -> None:
    bus = make_bus(
        DaemonSettings(limits=LimitSettings(queue_packets=2)), BusOwnership(0, None, frozenset({0}), protected=frozenset({ALICE}))
    )
    deaf, loud = bus.client(uid=ALICE), bus.client(uid=ALICE)
    deaf.control(b"blocking/hard/error")
    deaf.subscribe(b"a")
    bus.run()
    for _ in range(40):
        loud.publish(b"a", bytes(100_000))
        bus.run()
    critical = [record for record in bus.recorded() if record.message.priority == Priority.CRIT]
    assert [(record.message.name, record.uid, record.facts["reason"]) for record in critical] == [
        ("protected-user-ended", ALICE, "queue full")
    ]


@pytest.mark.parametrize("may_block", [False, True])
def test_only_users_with_the_right_block_publishers_of_other_users(make_bus: MakeBus, may_block: bool) -> None:
    rights = RightsSettings(block_others=Subjects((ALICE,) if may_block else ()))
    bus = make_bus(DaemonSettings(limits=LimitSettings(queue_packets=4), rights=rights))
    slow, fast = bus.client(uid=ALICE), bus.client(uid=BOB)
    slow.subscribe(b"a")
    slow.control(b"blocking/hard/block")
    bus.run()
    fast.socket.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        for _ in range(60):
            fast.publish(b"a", bytes(20_000))
            sent += 1
            bus.run()
    assert (sent < 60) is may_block
    arrived = [packet for packet in slow.receive_all() if packet.startswith(b"MSG")]
    assert (len(arrived) == sent) is may_block


# -- ends


def test_a_client_that_has_shut_down_both_directions_reads_its_packets_and_then_the_end(bus: InProcessBus) -> None:
    client = bus.client(uid=ALICE)
    client.send(b"CMSG !/bus/ping\0x")
    bus.run()
    client.socket.shutdown(socket.SHUT_RDWR)
    assert client.receive_all() == [b"CMSG !/bus/ping\0x", b""]
    assert bus.switch.counters().connections == 0
    assert bus.switch.closing() == []


def test_packets_before_a_hangup_are_handled(bus: InProcessBus) -> None:
    client, listener = bus.client(uid=ALICE), bus.client(uid=BOB)
    listener.subscribe(b"a")
    assert listener.barrier() == []
    client.publish(b"a", b"1")
    client.close()
    assert listener.barrier() == [message(b"a", b"1")]
    assert bus.switch.connections() == [listener.connection]
