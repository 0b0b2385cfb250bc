"""Quotas and bound processes as clients see them, with clients of invented users."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict, replace
from typing import Any, cast

import pytest

from sbus.protocol import controls
from sbus_programs.config.settings import DaemonSettings, LogSettings, QuotaOverride, Quotas, QuotaSettings, RateSettings
from sbus_programs.config.users import SubordinateIds, SubordinateRange
from sbusd.broker import control_messages as answers
from sbusd.broker import process_watch
from sbusd.broker.access import BusOwnership
from sbusd.broker.log_messages import SECRET_REFUSED, SUPPRESSED
from sbusd.broker.quota_usage import PATTERN_BYTES, SEGMENT_BYTES
from sbusd.broker.quotas import RESERVED_DESCRIPTORS
from sbusd.dataplane.counters import UserCounters
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.wire import error_code, message

ALICE, BOB = 1_000, 1_001


def host(make_bus: MakeBus, **quotas: int) -> InProcessBus:
    """Return a bus with these quotas."""
    return make_bus(DaemonSettings(quotas=replace(QuotaSettings(), **cast(Any, quotas))))


def names(bus: InProcessBus) -> list[str]:
    """Return the names of all log records."""
    return [record.message.name for record in bus.recorded()]


def users(client: BusClient, payload: bytes | None = None) -> tuple[list[dict[str, object]], object, object]:
    """Return a page of users as a client gets it: the users, the start of the next page, and the number of hidden users."""
    answer = client.ask_json(controls.USERS, payload)
    assert set(answer) == {"users", "next", "hidden"}
    return cast(list[dict[str, object]], answer["users"]), answer["next"], answer["hidden"]


# -- quotas


def test_a_connection_beyond_the_quota_is_rejected_and_other_users_are_admitted(make_bus: MakeBus) -> None:
    bus = host(make_bus, connections=2)
    first, second = bus.client(uid=ALICE, pid=7), bus.client(uid=ALICE, pid=8)
    assert bus.client(uid=ALICE, pid=9).receive_all() == [
        b"CMSG !/bus/error\0EDQUOT connections: 2 of 2 used by user 1000",
        b"",
    ]
    assert first.barrier() == second.barrier() == bus.client(uid=BOB).barrier() == []
    second.close()
    bus.run()
    assert bus.client(uid=ALICE).barrier() == []
    (record,) = bus.recorded()
    assert (record.message.name, record.uid, record.pid) == ("quota-refused", ALICE, 9)
    assert record.facts["holders"] == "pid 7: 1, pid 8: 1"


def test_no_user_but_an_owner_takes_all_descriptors(make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.broker.broker.descriptor_limit", lambda: RESERVED_DESCRIPTORS + 20)  # eight for all but owners
    bus = make_bus()
    for uid, half in ((ALICE, 4), (BOB, 2)):
        clients = [bus.client(uid=uid) for _ in range(half)]
        assert [client.barrier() for client in clients] == [[]] * half
        (reported, end) = bus.client(uid=uid).receive_all()
        assert b"EDQUOT connections: %d of %d used by user %d, half of the descriptors that" % (half, half, uid) in reported
        assert end == b""
    assert [bus.client(uid=0).barrier() for _ in range(5)] == [[]] * 5


def entries(answer: dict[str, object]) -> list[dict[str, Any]]:
    """Return the users in a reply."""
    return cast(list[dict[str, Any]], answer["users"])


def test_the_ids_of_a_container_have_the_log_records_of_one_user(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(log=LogSettings(rate_per_cause_per_user=RateSettings(burst=2, interval=86_400.0))))
    bus.broker.quotas.subordinates = SubordinateIds([SubordinateRange(100_000, 65_536, ALICE)])
    clients = [bus.client(uid=uid, gid=uid) for uid in (ALICE, *range(100_000, 100_010), BOB)]
    for client in clients:
        client.subscribe(b"!/cred//1/")  # a private key of another user
        bus.run()
    records = bus.recorded()
    assert [each.uid for each in records if each.message is SECRET_REFUSED] == [ALICE, 100_000, BOB]
    assert [(each.uid, each.facts["count"]) for each in records if each.message is SUPPRESSED] == [(ALICE, 9)]


def test_what_a_container_does_counts_for_its_own_id(make_bus: MakeBus) -> None:
    bus = make_bus()
    owner = bus.client()
    bus.broker.quotas.subordinates = SubordinateIds([SubordinateRange(100_000, 65_536, ALICE)])
    alice, inside = bus.client(uid=ALICE, gid=100), bus.client(uid=100_007, gid=100_007)
    inside.publish(b"a", b"")
    bus.run()
    (usage,) = entries(inside.ask_json(controls.USERS))
    assert (usage["uid"], usage["connections"]) == (ALICE, 2)
    (own,) = entries(inside.ask_json(controls.TOTALS))
    assert (own["uid"], own["received_packets"]) == (100_007, 3)
    inside.close()
    bus.run()
    totals = {each["uid"]: each["received_packets"] for each in entries(owner.ask_json(controls.TOTALS))}
    assert totals[100_007] == 3
    (own,) = entries(alice.ask_json(controls.TOTALS))
    assert (own["uid"], own["received_packets"]) == (ALICE, 1)


def test_a_rejected_connection_is_not_the_last_client(make_bus: MakeBus) -> None:
    settings = DaemonSettings(quotas=QuotaSettings(connection_rate=1, connection_burst=10))
    bus = make_bus(settings, BusOwnership(0, None, frozenset({0}), True))
    stayer = bus.client(uid=BOB)
    reported: list[bytes] = []
    while not reported:  # one more a second
        reported = bus.client(uid=ALICE).receive_all()
    assert error_code(reported[0]) == "EDQUOT"
    assert not bus.broker.is_done
    assert stayer.barrier() == []


def test_a_subscription_beyond_the_quota_is_refused_and_the_connection_stays(make_bus: MakeBus) -> None:
    bus = host(make_bus, subscriptions=2)
    client, other = bus.client(uid=ALICE), bus.client(uid=BOB)
    for pattern in (b"a", b"b", b"c"):
        client.subscribe(pattern)
        other.subscribe(b"c")
    assert client.receive_all() == [b"CMSG !/bus/error\0EDQUOT subscriptions: 2 of 2 used by user 1000"]
    assert [error_code(packet) for packet in other.receive_all()] == ["EDQUOT"]
    assert bus.switch.patterns(client.connection) == {b"a": 1, b"b": 1}
    client.unsubscribe(b"a")
    client.unsubscribe(b"a")
    client.subscribe(b"c")
    assert client.barrier() == []
    assert bus.switch.patterns(client.connection) == {b"b": 1, b"c": 1}
    assert names(bus) == ["quota-refused"] * 2


def test_patterns_beyond_the_quota_of_bytes_are_refused(make_bus: MakeBus) -> None:
    bus = host(make_bus, pattern_bytes=2 * SEGMENT_BYTES)
    client = bus.client(uid=ALICE)
    client.subscribe(b"abc")
    client.subscribe(b"def")
    assert client.receive_all() == [b"CMSG !/bus/error\0EDQUOT pattern_bytes: 422 of 512 used by user 1000"]


def test_a_disconnect_releases_the_usage_of_the_connection(make_bus: MakeBus) -> None:
    bus = host(make_bus, subscriptions=1)
    for _ in range(3):
        client = bus.client(uid=ALICE)
        client.subscribe(b"a")
        assert client.barrier() == []
        client.close()
        bus.run()


def test_control_packets_beyond_the_rate_are_refused_and_finally_disconnect(make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.broker.quotas.TOLERATED_PACKETS", 3)
    monkeypatch.setattr("sbusd.broker.quotas.TOLERATED_RATE", 0.000_001)
    bus = host(make_bus, control_rate=1, control_burst=10)
    other = bus.client(uid=BOB)
    client = bus.client(uid=ALICE)
    # However slow the test is, the bucket gains fewer tokens than these packets use.
    for _ in range(60):
        client.control(controls.PING, b"x")
    packets = client.receive_all()
    assert packets[:10] == [b"CMSG !/bus/ping\0x"] * 10
    assert [error_code(packet) for packet in packets if packet.startswith(b"CMSG !/bus/error")] == ["EDQUOT"] * 4
    assert packets[-1] == b""
    assert other.barrier() == []


def test_publishing_is_not_charged_as_control(make_bus: MakeBus) -> None:
    bus = host(make_bus, control_rate=1, control_burst=10)
    client = bus.client(uid=ALICE)
    client.subscribe(b"a")
    for _ in range(50):
        client.publish(b"a")
    assert client.barrier() == [message(b"a")] * 50


def test_rejecting_a_protected_user_for_a_quota_is_critical(make_bus: MakeBus) -> None:
    settings = DaemonSettings(quotas=QuotaSettings(connections=1))
    bus = make_bus(settings, BusOwnership(0, None, frozenset({0}), protected=frozenset({ALICE})))
    bus.client(uid=ALICE)
    bus.client(uid=ALICE)
    bus.run()
    assert names(bus) == ["quota-refused", "protected-user-ended"]


@pytest.mark.parametrize("ids", [(ALICE, ALICE), (ALICE, 100_007), (100_007, 100_008)])
def test_pending_packets_of_all_connections_of_a_user_are_bounded(make_bus: MakeBus, ids: tuple[int, int]) -> None:
    """Also those of its subordinate ids."""
    bus = host(make_bus, queued_packets=4)
    bus.broker.quotas.subordinates = SubordinateIds([SubordinateRange(100_000, 65_536, ALICE)])
    slow = [bus.client(uid=uid) for uid in ids]
    for client in slow:
        client.subscribe(b"a")
        client.barrier()
    talker = bus.client(uid=ALICE)
    for _ in range(400):
        talker.publish(b"a", bytes(4_000))
        bus.run()
    (user,) = users(talker)[0]
    assert user["queued_packets"] == 4
    assert cast(int, user["lost_packets"]) > 0
    assert bus.switch.user_counters(BOB) == UserCounters(0, 0, 0)


# -- who is there


def test_owners_see_all_users_and_other_users_only_themselves(make_bus: MakeBus) -> None:
    override = QuotaOverride(users=(BOB,), subscriptions=1)
    bus = make_bus(DaemonSettings(quotas=QuotaSettings(overrides=(override,))))
    owner, alice, bob, second_bob = (bus.client(uid=uid, gid=uid) for uid in (0, ALICE, BOB, BOB))
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
        "half_read_bytes": 0,
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


def test_users_are_listed_in_pages(bus: InProcessBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PAGE_USERS", 2)
    owner = bus.client(uid=0)
    for uid in (5, 3, 4):
        bus.client(uid=uid)
    first, following, _ = users(owner)
    assert ([user["uid"] for user in first], following) == ([0, 3], 3)
    rest, end, _ = users(owner, b"3")
    assert ([user["uid"] for user in rest], end) == ([4, 5], None)


def test_a_page_after_an_invalid_user_is_an_error(bus: InProcessBus) -> None:
    client = bus.client()
    client.control(controls.USERS, b"alice")
    (reported,) = client.receive_all()
    assert reported == b"CMSG !/bus/error\0EINVAL the page to start after must be the number of a user"


def test_a_reload_applies_new_quotas(make_bus: MakeBus) -> None:
    bus = host(make_bus, subscriptions=1)
    client = bus.client(uid=ALICE)
    client.subscribe(b"a")
    assert client.barrier() == []
    bus.broker.reconfigure(DaemonSettings(quotas=QuotaSettings(subscriptions=2)), BusOwnership(0, None, frozenset({0})))
    client.subscribe(b"b")
    client.subscribe(b"c")
    assert client.receive_all() == [b"CMSG !/bus/error\0EDQUOT subscriptions: 2 of 2 used by user 1000"]


# -- secrets of a process


def test_secret_keys_of_a_process_use_one_descriptor_and_release_it(bus: InProcessBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.broker.units.DEFERRED_SECONDS", 3_600.0)  # a thread that reads units has descriptors too
    client = bus.client(uid=ALICE, pid=55)
    patterns = [b"!/cred///55/x", b"!/cred//1000/55/y"]
    before = len(os.listdir("/proc/self/fd"))
    for pattern in (*patterns, *patterns):
        client.subscribe(pattern)
    assert client.barrier() == []
    assert (users(client)[0][0]["descriptors"], len(os.listdir("/proc/self/fd"))) == (2, before + 1)
    client.publish(patterns[1], b"hi")
    assert client.barrier() == [message(patterns[1], b"hi")]
    for pattern in (*patterns, *patterns):
        client.unsubscribe(pattern)
    client.subscribe(b"!/cred//1000//x")
    assert client.barrier() == []
    assert (users(client)[0][0]["descriptors"], len(os.listdir("/proc/self/fd"))) == (1, before)


def test_watching_a_process_beyond_the_quota_is_refused_without_a_charge(make_bus: MakeBus) -> None:
    bus = host(make_bus, connections=1)
    client = bus.client(uid=ALICE, pid=55)
    client.subscribe(b"!/cred///55/x")
    (reported,) = client.receive_all()
    assert reported.startswith(b"CMSG !/bus/error\0EDQUOT connections: 1 of 1 used by user 1000; watching a process needs one")
    assert bus.switch.patterns(client.connection) == {}
    assert users(client)[0][0]["subscriptions"] == 0


def test_a_kernel_without_pidfds_of_peers_is_recorded_once(bus: InProcessBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_watch, "pidfd_of", lambda _fd: None)
    client = bus.client(uid=ALICE, pid=55)
    for rest in (b"x", b"y"):
        client.subscribe(b"!/cred///55/" + rest)
    assert client.barrier() == []
    assert len(bus.switch.patterns(client.connection)) == 2
    assert users(client)[0][0]["descriptors"] == 1
    assert names(bus) == ["processes-unwatched"]


def test_a_lack_of_descriptors_to_watch_with_disconnects_with_an_error(bus: InProcessBus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(process_watch, "pidfd_of", fail)
    client = bus.client(uid=ALICE, pid=55)
    client.subscribe(b"!/cred///55/x")
    reported, end = client.receive_all()
    assert (reported, end) == (b"CMSG !/bus/error\0EMFILE the bus cannot watch process 55: Too many open files", b"")


def test_the_heir_of_a_socket_is_disconnected_with_the_process(bus: InProcessBus) -> None:
    client = bus.client(uid=ALICE, pid=55)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    # Replace the kernel: the process of this client is the child.
    pidfd = os.pidfd_open(child)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process_watch, "pidfd_of", lambda _fd: pidfd)
            client.subscribe(b"!/cred///55/x")
            assert client.barrier() == []
    finally:
        os.close(writer)
        os.waitpid(child, 0)
    assert client.receive_all() == [
        b"CMSG !/bus/error\0EACCES process 55 has ended, so the subscription !/cred///55/x has ended",
        b"",
    ]
    assert names(bus) == ["process-ended"]
