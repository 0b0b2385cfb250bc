"""The control plane, with clients of invented users."""

from __future__ import annotations

import contextlib
import errno
import socket

import pytest

from sbusd.broker.admission import BusOwnership
from sbusd.config.rules import Origin, PolicyRule, RightsSettings, Subjects
from sbusd.config.settings import DaemonSettings, LimitSettings, LogSettings
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode
from sbusd.systemd.log_record import Priority
from tests.support.parlour import MakeParlour, Parlour
from tests.support.wire import error_code, message

ALICE, BOB = 1_000, 1_001


def names(parlour: Parlour) -> list[str]:
    """Return the names of all log records."""
    return [record.message.name for record in parlour.recorded()]


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


def test_a_user_that_is_not_admitted_gets_an_error_and_is_disconnected(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(ownership=BusOwnership(0, frozenset({0, ALICE}), frozenset({0})))
    refused, admitted = parlour.guest(uid=BOB), parlour.guest(uid=ALICE)
    told, end = refused.receive_all()
    assert error_code(told) == "EACCES"
    assert b"user 1001" in told
    assert end == b""
    assert admitted.barrier() == []
    assert parlour.switch.connections() == [admitted.connection]
    (record,) = parlour.recorded()
    assert (record.message.name, record.uid) == ("client-refused", BOB)


def test_a_peer_without_credentials_gets_an_error_and_is_disconnected(parlour: Parlour) -> None:
    parlour.arriving = OSError(errno.ENOTCONN, "not connected")
    told, end = parlour.arrive().receive_all()
    assert (error_code(told), end) == ("EACCES", b"")
    assert names(parlour) == ["credentials-unknown"]


def test_a_rejected_user_cannot_publish(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(ownership=BusOwnership(0, frozenset({0}), frozenset({0})))
    listener = parlour.guest()
    listener.subscribe(b"a")
    listener.barrier()
    intruder = parlour.guest(uid=BOB)
    intruder.publish(b"a", b"from outside")
    intruder.subscribe(b"a")
    parlour.run()
    assert listener.barrier() == []
    assert parlour.switch.recipients(b"a") == [listener.connection]


def test_the_bus_stops_with_its_last_client_only_if_configured(make_parlour: MakeParlour) -> None:
    for ends_when_empty in (False, True):
        parlour = make_parlour(ownership=BusOwnership(0, None, frozenset({0}), ends_when_empty))
        first, second = parlour.guest(), parlour.guest()
        first.close()
        parlour.run()
        assert parlour.broker.is_done is False
        second.close()
        parlour.run()
        assert parlour.broker.is_done is ends_when_empty


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
def test_each_denied_pattern_is_refused_with_its_own_code(parlour: Parlour, pattern: bytes, code: str) -> None:
    guest = parlour.guest(uid=ALICE, gid=ALICE, pid=55)
    guest.subscribe(pattern)
    packets = guest.receive_all()
    assert error_code(packets[0]) == code
    assert packets[1:] == ([b""] if ErrorCode[code].disconnects else [])
    assert parlour.switch.counters().subscriptions == 0
    recorded = {"EPERM": "reserved-key-refused", "EACCES": "secret-refused", "EMSGSIZE": "too-long-refused"}
    (record,) = parlour.recorded()
    assert (record.message.name, record.uid, record.pid, record.connection) == (recorded[code], ALICE, 55, guest.connection)
    assert record.key == pattern[:1_024]


@pytest.mark.parametrize("pattern", [b"", b"*", b"a/*/c/", b"!x", b"!", b"!*/", b"*/cred/", b"a\0ignored", b"k" * 4_096])
def test_an_ordinary_pattern_is_stored(parlour: Parlour, pattern: bytes) -> None:
    guest = parlour.guest(uid=ALICE)
    guest.subscribe(pattern)
    assert guest.barrier() == []
    assert parlour.switch.patterns(guest.connection) == {pattern.partition(b"\0")[0]: 1}


def test_two_subscriptions_need_two_unsubscriptions_and_a_third_is_counted(parlour: Parlour) -> None:
    guest = parlour.guest()
    for _ in range(2):
        guest.subscribe(b"a")
    expected = [(1, 0), (0, 0), (0, 1)]
    for left, unknown in expected:
        guest.unsubscribe(b"a\0ignored")
        assert guest.barrier() == []
        control = guest.ask_json(controls.STATS)["control"]
        assert isinstance(control, dict)
        assert control["unknown_unsubscriptions"] == unknown
        assert parlour.switch.patterns(guest.connection) == ({b"a": left} if left else {})


# -- control messages


@pytest.mark.parametrize("key", [b"!/bus/nothing", b"!/", b"!/cred/", b"!/bus/lost", b"!/bus/error", b"!/from/1", b"!/\xff"])
@pytest.mark.parametrize("payload", [None, b"", b"x"])
def test_an_unknown_reserved_control_message_is_only_an_error(parlour: Parlour, key: bytes, payload: bytes | None) -> None:
    guest = parlour.guest()
    guest.control(key, payload)
    (told,) = guest.receive_all()
    assert error_code(told) == "ENOSYS"
    assert guest.barrier() == []


@pytest.mark.parametrize("key", [b"", b"x", b"blocking/soft/queue", b"order/stack", b"!x", b"echo", b"echo/onn"])
def test_an_unknown_ordinary_control_message_is_ignored(parlour: Parlour, key: bytes) -> None:
    guest = parlour.guest()
    guest.control(key, b"x")
    assert guest.barrier() == []


def test_a_control_message_sets_echo(parlour: Parlour) -> None:
    guest = parlour.guest()
    guest.subscribe(b"a")
    guest.control(controls.ECHO_OFF)
    guest.publish(b"a", b"1")
    guest.control(controls.ECHO_ON, b"ignored")
    guest.publish(b"a", b"2")
    assert guest.barrier() == [message(b"a", b"2")]


@pytest.mark.parametrize(
    "packet", [b"", b" ", b"MSG", b"MSG ", b"MSG a", b"msg a\0", b"SUB", b"SUBa", b"UNSUB", b"CMSG", b"\0", b"\xff" * 99]
)
def test_a_malformed_packet_disconnects_with_a_reason(parlour: Parlour, packet: bytes) -> None:
    guest, other = parlour.guest(uid=ALICE, pid=55), parlour.guest()
    guest.send(packet)
    told, end = guest.receive_all()
    assert (error_code(told), end) == ("EPROTO", b"")
    assert other.barrier() == []
    (record,) = parlour.recorded()
    assert (record.message.name, record.uid, record.pid) == ("malformed-packet", ALICE, 55)


# -- refusals and losses that the switch reports


def test_a_refused_message_is_recorded_with_key_and_count(parlour: Parlour) -> None:
    guest = parlour.guest(uid=ALICE)
    for _ in range(3):
        guest.publish(b"!/bus/error", b"forged")
    told = guest.barrier()
    assert [error_code(packet) for packet in told] == ["EPERM"] * 3
    (record,) = parlour.recorded()
    assert (record.message.name, record.key, record.facts["count"]) == ("reserved-key-refused", b"!/bus/error", 3)


def test_a_packet_that_is_too_long_is_refused_and_recorded(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(limits=LimitSettings(key_bytes=16)))
    guest = parlour.guest(uid=ALICE)
    guest.publish(b"k" * 17)
    assert [error_code(packet) for packet in guest.barrier()] == ["EMSGSIZE"]
    (record,) = parlour.recorded()
    assert record.message.name == "too-long-refused"
    assert "key too long" in record.text


def test_a_loss_is_recorded_when_the_client_is_notified(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(limits=LimitSettings(queue_packets=2)))
    slow, fast = parlour.guest(uid=ALICE), parlour.guest(uid=BOB)
    slow.subscribe(b"a")
    parlour.run()
    for _ in range(40):
        fast.publish(b"a", bytes(100_000))
        parlour.run()
    received = slow.receive_all()
    lost = sum(int(packet.rpartition(b"\0")[2]) for packet in received if packet.startswith(b"CMSG !/bus/lost\0"))
    assert lost == 40 - sum(packet.startswith(b"MSG") for packet in received) > 0
    losses = [record for record in parlour.recorded() if record.message.name == "packets-lost"]
    assert sum(int(record.facts["count"]) for record in losses) == lost
    assert {record.uid for record in losses} == {ALICE}


def test_a_failed_accept_is_recorded(parlour: Parlour) -> None:
    parlour.broker.accept_failed(errno.EMFILE)
    (record,) = parlour.recorded()
    assert "Too many open files" in record.text


def test_connects_and_disconnects_are_recorded_at_level_debug(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(log=LogSettings(level="debug")))
    guest = parlour.guest(uid=ALICE)
    guest.barrier()
    guest.close()
    parlour.run()
    assert names(parlour) == ["client-connected", "client-disconnected"]


# -- defects of our own


def test_an_internal_error_disconnects_only_its_client_and_is_recorded(parlour: Parlour, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_data: bytes) -> None:
        raise ZeroDivisionError("made up")

    finder, other = parlour.guest(uid=ALICE), parlour.guest()
    with monkeypatch.context() as patch:
        patch.setattr("sbusd.broker.broker.parse_packet", fail)
        finder.send(b"UNSUB a")
        told, end = finder.receive_all()
    assert (error_code(told), end) == ("EPROTO", b"")
    assert b"ZeroDivisionError" not in told
    assert b"made up" not in told
    control = other.ask_json(controls.STATS)["control"]
    assert isinstance(control, dict)
    assert control["internal_errors"] == 1
    (record,) = parlour.recorded()
    assert record.message.name == "internal-error"
    assert "ZeroDivisionError: made up" in record.trace
    assert "Traceback" not in record.text


def test_stop_ends_the_loop(parlour: Parlour) -> None:
    assert parlour.broker.is_done is False
    parlour.broker.stop()
    assert parlour.broker.is_done is True


# -- rules, and what changes while the bus runs

CLOSED = PolicyRule("lab/", "deny", "deny", groups=(27,), comment="keep out", origin=Origin("f.toml", 1))


def reconfigure(parlour: Parlour, settings: DaemonSettings) -> None:
    """Apply *settings*, and settle."""
    parlour.broker.reconfigure(settings, BusOwnership(0, None, frozenset({0})))
    while not parlour.broker.is_settled:
        parlour.broker.settle()


def test_a_rule_refuses_a_subscription_and_the_connection_stays(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(policy=(CLOSED,)))
    closed_out, other = parlour.guest(uid=ALICE, groups=frozenset({27})), parlour.guest(uid=BOB)
    for pattern in (b"lab/x", b"*/x", b""):
        closed_out.subscribe(pattern)
        other.subscribe(pattern)
    told = closed_out.barrier()
    assert [error_code(packet) for packet in told] == ["EPERM"] * 3
    assert b"refused by rule 1 of f.toml: keep out" in told[0]
    assert parlour.switch.patterns(closed_out.connection) == {}
    assert len(parlour.switch.patterns(other.connection)) == 3
    record = parlour.recorded()[0]
    assert (record.message.name, record.uid, record.key) == ("policy-refused", ALICE, b"lab/x")
    assert record.facts["rule"] == "rule 1 of f.toml: keep out"


def test_a_publication_refused_by_a_rule_is_recorded_with_the_rule(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(policy=(CLOSED,)))
    closed_out, other, listener = parlour.guest(uid=ALICE, groups=frozenset({27})), parlour.guest(uid=BOB), parlour.guest()
    listener.subscribe(b"")
    assert listener.barrier() == []
    closed_out.publish(b"lab/x", b"1")
    closed_out.publish(b"lab", b"2")
    assert [error_code(packet) for packet in closed_out.barrier()] == ["EPERM"]
    other.publish(b"lab/x", b"3")
    assert other.barrier() == []
    assert listener.barrier() == [message(b"lab", b"2"), message(b"lab/x", b"3")]
    (record,) = parlour.recorded()
    assert (record.message.name, record.uid, record.key, record.facts["packet"]) == ("policy-refused", ALICE, b"lab/x", "MSG")
    assert record.facts["rule"] == "rule 1 of f.toml: keep out"


def test_new_rules_apply_to_connected_publishers(make_parlour: MakeParlour) -> None:
    parlour = make_parlour()
    guest, listener = parlour.guest(uid=ALICE, groups=frozenset({27})), parlour.guest()
    listener.subscribe(b"")
    assert listener.barrier() == []
    for settings, gets in ((DaemonSettings(), 1), (DaemonSettings(policy=(CLOSED,)), 0), (DaemonSettings(), 1)):
        parlour.broker.reconfigure(settings, BusOwnership(0, None, frozenset({0})))
        guest.publish(b"lab/x")
        assert len(guest.barrier()) == 1 - gets
        assert len(listener.barrier()) == gets


def test_new_rules_revoke_subscriptions_that_they_do_not_allow(make_parlour: MakeParlour) -> None:
    parlour = make_parlour()
    guest, other = parlour.guest(uid=ALICE, groups=frozenset({27})), parlour.guest(uid=BOB)
    for pattern in (b"lab/x", b"lab/x", b"*/x", b"*", b"!/cred//1000//x"):
        guest.subscribe(pattern)
    other.subscribe(b"lab/x")
    assert (guest.barrier(), other.barrier()) == ([], [])
    reconfigure(parlour, DaemonSettings(policy=(CLOSED,)))
    told = guest.barrier()
    assert sorted(packet.split(b"subscription ")[1].split(b" ")[0] for packet in told) == [b"*/x", b"lab/x"]
    assert {error_code(packet) for packet in told} == {"EPERM"}
    assert parlour.switch.patterns(guest.connection) == {b"*": 1, b"!/cred//1000//x": 1}
    assert parlour.switch.patterns(other.connection) == {b"lab/x": 1}
    described = guest.ask_json(controls.STATS)["connection"]
    assert isinstance(described, dict)
    assert described["subscriptions"] == 2
    (record,) = parlour.recorded()
    assert (record.message.name, record.uid, record.facts["count"]) == ("subscriptions-revoked", ALICE, 3)


def test_revocation_checks_one_pattern_per_step_while_clients_connect_and_disconnect(
    make_parlour: MakeParlour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbusd.broker.broker.MAX_SETTLE_SECONDS", 0.0)
    parlour = make_parlour()
    gone, guest = (parlour.guest(uid=ALICE, groups=frozenset({27})) for _ in range(2))
    for client in (gone, guest):
        for pattern in (b"lab/x", b"lab/y", b"hall"):
            client.subscribe(pattern)
        assert client.barrier() == []
    parlour.broker.reconfigure(DaemonSettings(policy=(CLOSED,)), BusOwnership(0, None, frozenset({0})))
    parlour.broker.settle()
    gone.close()
    guest.unsubscribe(b"lab/y")
    parlour.run()
    steps = 0
    while not parlour.broker.is_settled:
        parlour.broker.settle()
        steps += 1
    # Steps: the first client, which is gone; each pattern of the other; the removed instance; its end; the end of the sweep.
    assert steps == 6
    told = guest.barrier()
    assert [packet.split(b"subscription ")[1].split(b" ")[0] for packet in told] == [b"lab/x"]
    assert parlour.switch.patterns(guest.connection) == {b"hall": 1}


def test_removed_rules_refuse_nothing(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(policy=(CLOSED,)))
    guest = parlour.guest(uid=ALICE, groups=frozenset({27}))
    parlour.broker.reconfigure(DaemonSettings(), BusOwnership(0, None, frozenset({0})))
    guest.subscribe(b"lab/x")
    assert guest.barrier() == []


def test_users_that_are_no_longer_admitted_get_an_error_and_are_disconnected(parlour: Parlour) -> None:
    gone, stays = parlour.guest(uid=ALICE), parlour.guest(uid=BOB)
    parlour.broker.reconfigure(DaemonSettings(), BusOwnership(0, frozenset({0, BOB}), frozenset({0})))
    told, end = gone.receive_all()
    assert (error_code(told), end) == ("EACCES", b"")
    assert b"user 1000 is not admitted" in told
    assert stays.barrier() == []


def test_new_owners_have_their_rights_at_once(parlour: Parlour) -> None:
    guest = parlour.guest(uid=ALICE)
    assert guest.ask_json(controls.STATS)["scope"] == "connection"
    parlour.broker.reconfigure(DaemonSettings(), BusOwnership(0, None, frozenset({0, ALICE})))
    assert guest.ask_json(controls.STATS)["scope"] == "bus"


def test_only_a_disconnect_of_a_protected_user_by_the_bus_is_critical(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(ownership=BusOwnership(0, None, frozenset({0}), protected=frozenset({ALICE})))
    polite, wrong, unprotected = parlour.guest(uid=ALICE), parlour.guest(uid=ALICE, pid=55), parlour.guest(uid=BOB)
    polite.close()
    for guest in (wrong, unprotected):
        guest.send(b"nonsense")
        assert guest.receive_all()[-1] == b""
    (record,) = [record for record in parlour.recorded() if record.message.priority == Priority.CRIT]
    assert (record.message.name, record.uid, record.pid) == ("protected-user-ended", ALICE, 55)
    assert str(record.facts["reason"]).startswith("EPROTO malformed packet")


def test_rejecting_a_protected_user_is_critical(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(ownership=BusOwnership(0, frozenset({0}), frozenset({0}), protected=frozenset({ALICE})))
    parlour.guest(uid=ALICE).receive_all()
    assert names(parlour) == ["client-refused", "protected-user-ended"]


def test_protected_users_are_those_configured() -> None:
    assert BusOwnership.of(DaemonSettings(protected_users=(ALICE,))).protected == {ALICE}


def test_a_disconnect_of_a_protected_user_by_the_switch_is_critical(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(
        DaemonSettings(limits=LimitSettings(queue_packets=2)), BusOwnership(0, None, frozenset({0}), protected=frozenset({ALICE}))
    )
    deaf, loud = parlour.guest(uid=ALICE), parlour.guest(uid=ALICE)
    deaf.control(b"blocking/hard/error")
    deaf.subscribe(b"a")
    parlour.run()
    for _ in range(40):
        loud.publish(b"a", bytes(100_000))
        parlour.run()
    critical = [record for record in parlour.recorded() if record.message.priority == Priority.CRIT]
    assert [(record.message.name, record.uid, record.facts["reason"]) for record in critical] == [
        ("protected-user-ended", ALICE, "queue full")
    ]


@pytest.mark.parametrize("may_block", [False, True])
def test_only_users_with_the_right_block_publishers_of_other_users(make_parlour: MakeParlour, may_block: bool) -> None:
    rights = RightsSettings(block_others=Subjects((ALICE,) if may_block else ()))
    parlour = make_parlour(DaemonSettings(limits=LimitSettings(queue_packets=4), rights=rights))
    slow, fast = parlour.guest(uid=ALICE), parlour.guest(uid=BOB)
    slow.subscribe(b"a")
    slow.control(b"blocking/hard/block")
    parlour.run()
    fast.socket.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        for _ in range(60):
            fast.publish(b"a", bytes(20_000))
            sent += 1
            parlour.run()
    assert (sent < 60) is may_block
    arrived = [packet for packet in slow.receive_all() if packet.startswith(b"MSG")]
    assert (len(arrived) == sent) is may_block


# -- ends


def test_a_client_that_has_shut_down_both_directions_reads_its_packets_and_then_the_end(parlour: Parlour) -> None:
    guest = parlour.guest(uid=ALICE)
    guest.send(b"CMSG !/bus/ping\0x")
    parlour.run()
    guest.socket.shutdown(socket.SHUT_RDWR)
    assert guest.receive_all() == [b"CMSG !/bus/ping\0x", b""]
    assert parlour.switch.counters().connections == 0
    assert parlour.switch.closing() == []


def test_packets_before_a_hangup_are_handled(parlour: Parlour) -> None:
    guest, listener = parlour.guest(uid=ALICE), parlour.guest(uid=BOB)
    listener.subscribe(b"a")
    assert listener.barrier() == []
    guest.publish(b"a", b"1")
    guest.close()
    assert listener.barrier() == [message(b"a", b"1")]
    assert parlour.switch.connections() == [listener.connection]
