"""Quotas and bound processes as a client meets them, with clients of made-up users."""

from __future__ import annotations

import errno
import os
import resource
import sys
from dataclasses import asdict, replace
from typing import Any, cast

import pytest

from sbusd.broker import control_messages as answers
from sbusd.broker import process_watch, quotas
from sbusd.broker.admission import BusOwnership
from sbusd.broker.quotas import RESERVED_DESCRIPTORS
from sbusd.broker.usage import PATTERN_BYTES, SEGMENT_BYTES
from sbusd.config.quotas import QuotaOverride, Quotas, QuotaSettings
from sbusd.config.settings import DaemonSettings
from sbusd.dataplane.contract import UserCounters
from sbusd.protocol import controls
from tests.support.parlour import Guest, MakeParlour, Parlour
from tests.support.wire import error_code, message

ALICE, BOB = 1_000, 1_001


def host(make_parlour: MakeParlour, **quotas: int) -> Parlour:
    """Return a bus with these quotas."""
    return make_parlour(DaemonSettings(quotas=replace(QuotaSettings(), **cast(Any, quotas))))


def names(parlour: Parlour) -> list[str]:
    """Return the names of all that was recorded."""
    return [record.message.name for record in parlour.recorded()]


def users(guest: Guest, payload: bytes | None = None) -> tuple[list[dict[str, object]], object, object]:
    """Return what a guest is told of users: the users, what to ask for next, and how many are hidden."""
    answer = guest.ask_json(controls.USERS, payload)
    assert set(answer) == {"users", "next", "hidden"}
    return cast(list[dict[str, object]], answer["users"]), answer["next"], answer["hidden"]


# -- quotas


def test_a_connection_too_many_is_told_and_closed_and_others_come_in(make_parlour: MakeParlour) -> None:
    parlour = host(make_parlour, connections=2)
    first, second = parlour.guest(uid=ALICE, pid=7), parlour.guest(uid=ALICE, pid=8)
    assert parlour.guest(uid=ALICE, pid=9).receive_all() == [
        b"CMSG !/bus/error\0EDQUOT connections: 2 of 2 used by user 1000",
        b"",
    ]
    assert first.barrier() == second.barrier() == parlour.guest(uid=BOB).barrier() == []
    second.close()
    parlour.run()
    assert parlour.guest(uid=ALICE).barrier() == []
    (record,) = parlour.recorded()
    assert (record.message.name, record.uid, record.pid) == ("quota-refused", ALICE, 9)
    assert record.facts["holders"] == "pid 7: 1, pid 8: 1"


def test_no_user_but_an_owner_takes_all_descriptors(make_parlour: MakeParlour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.broker.broker.descriptor_limit", lambda: RESERVED_DESCRIPTORS + 8)
    parlour = make_parlour()
    for uid, half in ((ALICE, 4), (BOB, 2)):
        guests = [parlour.guest(uid=uid) for _ in range(half)]
        assert [guest.barrier() for guest in guests] == [[]] * half
        (told, end) = parlour.guest(uid=uid).receive_all()
        assert b"EDQUOT connections: %d of %d used by user %d, half of the descriptors that" % (half, half, uid) in told
        assert end == b""
    assert [parlour.guest(uid=0).barrier() for _ in range(5)] == [[]] * 5


def test_the_limit_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, expected in ((77, 77), (resource.RLIM_INFINITY, sys.maxsize)):
        monkeypatch.setattr(resource, "getrlimit", lambda _kind, limit=limit: (limit, 99))
        assert quotas.descriptor_limit() == expected


def test_who_is_refused_is_not_the_last_client(make_parlour: MakeParlour) -> None:
    settings = DaemonSettings(quotas=QuotaSettings(connection_rate=1, connection_burst=10))
    parlour = make_parlour(settings, BusOwnership(0, None, frozenset({0}), True))
    stayer = parlour.guest(uid=BOB)
    told = [parlour.guest(uid=ALICE).receive_all() for _ in range(11)]
    assert error_code(told[-1][0]) == "EDQUOT"
    assert not parlour.broker.is_done
    assert stayer.barrier() == []


def test_a_subscription_too_many_is_dropped_and_the_connection_stays(make_parlour: MakeParlour) -> None:
    parlour = host(make_parlour, subscriptions=2)
    guest, other = parlour.guest(uid=ALICE), parlour.guest(uid=BOB)
    for pattern in (b"a", b"b", b"c"):
        guest.subscribe(pattern)
        other.subscribe(b"c")
    assert guest.receive_all() == [b"CMSG !/bus/error\0EDQUOT subscriptions: 2 of 2 used by user 1000"]
    assert [error_code(packet) for packet in other.receive_all()] == ["EDQUOT"]
    assert parlour.switch.patterns(guest.connection) == {b"a": 1, b"b": 1}
    guest.unsubscribe(b"a")
    guest.unsubscribe(b"a")
    guest.subscribe(b"c")
    assert guest.barrier() == []
    assert parlour.switch.patterns(guest.connection) == {b"b": 1, b"c": 1}
    assert names(parlour) == ["quota-refused"] * 2


def test_patterns_of_too_many_bytes_are_dropped(make_parlour: MakeParlour) -> None:
    parlour = host(make_parlour, pattern_bytes=2 * SEGMENT_BYTES)
    guest = parlour.guest(uid=ALICE)
    guest.subscribe(b"abc")
    guest.subscribe(b"def")
    assert guest.receive_all() == [b"CMSG !/bus/error\0EDQUOT pattern_bytes: 406 of 480 used by user 1000"]


def test_what_a_connection_held_comes_back_when_it_ends(make_parlour: MakeParlour) -> None:
    parlour = host(make_parlour, subscriptions=1)
    for _ in range(3):
        guest = parlour.guest(uid=ALICE)
        guest.subscribe(b"a")
        assert guest.barrier() == []
        guest.close()
        parlour.run()


def test_control_packets_too_fast_are_dropped_and_at_last_end_the_connection(
    make_parlour: MakeParlour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbusd.broker.quotas.TOLERATED_PACKETS", 3)
    monkeypatch.setattr("sbusd.broker.quotas.TOLERATED_RATE", 0.000_001)
    parlour = host(make_parlour, control_rate=1, control_burst=10)
    other = parlour.guest(uid=BOB)
    guest = parlour.guest(uid=ALICE)
    # However long this takes, the bucket gains less than these can use up.
    for _ in range(60):
        guest.control(controls.PING, b"x")
    packets = guest.receive_all()
    assert packets[:10] == [b"CMSG !/bus/ping\0x"] * 10
    assert [error_code(packet) for packet in packets if packet.startswith(b"CMSG !/bus/error")] == ["EDQUOT"] * 4
    assert packets[-1] == b""
    assert other.barrier() == []


def test_publishing_is_no_control(make_parlour: MakeParlour) -> None:
    parlour = host(make_parlour, control_rate=1, control_burst=10)
    guest = parlour.guest(uid=ALICE)
    guest.subscribe(b"a")
    for _ in range(50):
        guest.publish(b"a")
    assert guest.barrier() == [message(b"a")] * 50


def test_a_protected_user_who_is_turned_away_for_a_quota_is_critical(make_parlour: MakeParlour) -> None:
    settings = DaemonSettings(quotas=QuotaSettings(connections=1))
    parlour = make_parlour(settings, BusOwnership(0, None, frozenset({0}), protected=frozenset({ALICE})))
    parlour.guest(uid=ALICE)
    parlour.guest(uid=ALICE)
    parlour.run()
    assert names(parlour) == ["quota-refused", "protected-user-ended"]


def test_what_waits_is_bounded_for_all_connections_of_a_user(make_parlour: MakeParlour) -> None:
    parlour = host(make_parlour, queued_packets=4)
    slow = [parlour.guest(uid=ALICE) for _ in range(2)]
    for guest in slow:
        guest.subscribe(b"a")
        guest.barrier()
    talker = parlour.guest(uid=ALICE)
    for _ in range(400):
        talker.publish(b"a", bytes(4_000))
        parlour.run()
    (user,) = users(talker)[0]
    assert user["queued_packets"] == 4
    assert cast(int, user["lost_packets"]) > 0
    assert parlour.switch.user_counters(BOB) == UserCounters(0, 0, 0)


# -- who is there


def test_an_owner_sees_all_users_and_others_themselves(make_parlour: MakeParlour) -> None:
    override = QuotaOverride(users=(BOB,), subscriptions=1)
    parlour = make_parlour(DaemonSettings(quotas=QuotaSettings(overrides=(override,))))
    owner, alice, bob, second_bob = (parlour.guest(uid=uid, gid=uid) for uid in (0, ALICE, BOB, BOB))
    alice.subscribe(b"abc")
    alice.subscribe(b"de")
    bob.subscribe(b"x")
    second_bob.subscribe(b"y")
    assert error_code(second_bob.receive()) == "EDQUOT"
    assert alice.barrier() == []
    found, following, hidden = users(owner)
    assert ([user["uid"] for user in found], following, hidden) == ([0, ALICE, BOB], None, 0)
    assert found[1] == {
        "uid": ALICE,
        "connections": 1,
        "descriptors": 1,
        "subscriptions": 2,
        "pattern_bytes": 2 * (SEGMENT_BYTES + PATTERN_BYTES) + 20,
        "state_bytes": 0,
        "queued_packets": 0,
        "queued_bytes": 0,
        "lost_packets": 0,
        "blocked_ms": 0,
        "blocked_others_ms": 0,
        "limits": {**asdict(Quotas()), "queued_packets": None},
        "refused": {},
    }
    assert (found[2]["connections"], found[2]["refused"]) == (2, {"subscriptions": 1})
    assert cast(dict[str, int], found[2]["limits"])["subscriptions"] == 1
    own, following, hidden = users(bob)
    assert (own, following, hidden) == ([found[2]], None, 2)


def test_users_come_in_pages(parlour: Parlour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PAGE_USERS", 2)
    owner = parlour.guest(uid=0)
    for uid in (5, 3, 4):
        parlour.guest(uid=uid)
    first, following, _ = users(owner)
    assert ([user["uid"] for user in first], following) == ([0, 3], 3)
    rest, end, _ = users(owner, b"3")
    assert ([user["uid"] for user in rest], end) == ([4, 5], None)


def test_a_page_after_no_user_is_an_error(parlour: Parlour) -> None:
    guest = parlour.guest()
    guest.control(controls.USERS, b"alice")
    (told,) = guest.receive_all()
    assert told == b"CMSG !/bus/error\0EINVAL the page to start after must be the number of a user"


def test_other_quotas_hold_from_a_reload_on(make_parlour: MakeParlour) -> None:
    parlour = host(make_parlour, subscriptions=1)
    guest = parlour.guest(uid=ALICE)
    guest.subscribe(b"a")
    assert guest.barrier() == []
    parlour.broker.reconfigure(DaemonSettings(quotas=QuotaSettings(subscriptions=2)), BusOwnership(0, None, frozenset({0})))
    guest.subscribe(b"b")
    guest.subscribe(b"c")
    assert guest.receive_all() == [b"CMSG !/bus/error\0EDQUOT subscriptions: 2 of 2 used by user 1000"]


# -- secrets of a process


def test_a_secret_of_the_process_is_one_descriptor_and_gives_it_back(parlour: Parlour) -> None:
    guest = parlour.guest(uid=ALICE, pid=55)
    patterns = [b"!/cred///55/x", b"!/cred//1000/55/y"]
    before = len(os.listdir("/proc/self/fd"))
    for pattern in (*patterns, *patterns):
        guest.subscribe(pattern)
    assert guest.barrier() == []
    assert (users(guest)[0][0]["descriptors"], len(os.listdir("/proc/self/fd"))) == (2, before + 1)
    guest.publish(patterns[1], b"hi")
    assert guest.barrier() == [message(patterns[1], b"hi")]
    for pattern in (*patterns, *patterns):
        guest.unsubscribe(pattern)
    guest.subscribe(b"!/cred//1000//x")
    assert guest.barrier() == []
    assert (users(guest)[0][0]["descriptors"], len(os.listdir("/proc/self/fd"))) == (1, before)


def test_a_process_to_watch_beyond_the_quota_is_refused_and_charged_nothing(make_parlour: MakeParlour) -> None:
    parlour = host(make_parlour, connections=1)
    guest = parlour.guest(uid=ALICE, pid=55)
    guest.subscribe(b"!/cred///55/x")
    (told,) = guest.receive_all()
    assert told.startswith(b"CMSG !/bus/error\0EDQUOT connections: 1 of 1 used by user 1000; watching a process needs one")
    assert parlour.switch.patterns(guest.connection) == {}
    assert users(guest)[0][0]["subscriptions"] == 0


def test_a_kernel_that_does_not_watch_is_recorded_once(parlour: Parlour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_watch, "pidfd_of", lambda _fd: None)
    guest = parlour.guest(uid=ALICE, pid=55)
    for rest in (b"x", b"y"):
        guest.subscribe(b"!/cred///55/" + rest)
    assert guest.barrier() == []
    assert len(parlour.switch.patterns(guest.connection)) == 2
    assert users(guest)[0][0]["descriptors"] == 1
    assert names(parlour) == ["processes-unwatched"]


def test_no_descriptor_left_to_watch_is_told_and_ends_the_connection(parlour: Parlour, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(process_watch, "pidfd_of", fail)
    guest = parlour.guest(uid=ALICE, pid=55)
    guest.subscribe(b"!/cred///55/x")
    told, end = guest.receive_all()
    assert (told, end) == (b"CMSG !/bus/error\0EMFILE the bus cannot watch process 55: Too many open files", b"")


def test_a_heir_of_the_socket_is_told_and_ended_with_the_process(parlour: Parlour) -> None:
    guest = parlour.guest(uid=ALICE, pid=55)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    # Stand in for the kernel: the process of this guest is the child.
    pidfd = os.pidfd_open(child)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process_watch, "pidfd_of", lambda _fd: pidfd)
            guest.subscribe(b"!/cred///55/x")
            assert guest.barrier() == []
    finally:
        os.close(writer)
        os.waitpid(child, 0)
    assert guest.receive_all() == [
        b"CMSG !/bus/error\0EACCES process 55 has ended, so the subscription !/cred///55/x has ended",
        b"",
    ]
    assert names(parlour) == ["process-ended"]
