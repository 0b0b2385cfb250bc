"""What each user has done since the bus started: a bounded table, that counts everything somewhere."""

from __future__ import annotations

from typing import Any

import pytest

from sbus.protocol import controls
from sbus_programs.config.rules import RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings, QuotaSettings
from sbus_programs.config.users import SubordinateIds, SubordinateRange
from sbusd.broker import totals
from sbusd.broker.totals import TotalsTable, UserTotals
from sbusd.dataplane.counters import UserTraffic
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus

ALICE, BOB, MONITOR = 1_000, 1_001, 900


def packets(count: int) -> UserTraffic:
    """Return some traffic."""
    return UserTraffic(received_packets=count, delivered_packets=1)


def answer(client: BusClient, payload: bytes | None = None) -> dict[str, Any]:
    """Return a page of totals."""
    return dict(client.ask_json(controls.TOTALS, payload))


def by_uid(client: BusClient) -> dict[int, dict[str, Any]]:
    """Return the totals in the first page."""
    return {user["uid"]: user for user in answer(client)["users"]}


# -- the table


def test_the_user_with_the_fewest_packets_and_refusals_is_forgotten_and_counts_for_others() -> None:
    table = TotalsTable()
    for uid in range(totals.MAX_USERS):
        table.of(uid, {}).add_traffic(packets(5 * uid + 1))
    table.of(0, {}).add_refusals("connections", 3)
    assert table.of(10_000, {}) is table.by_uid[10_000]
    assert 0 not in table.by_uid
    assert (len(table.by_uid), table.forgotten) == (totals.MAX_USERS, 1)
    assert (table.other.traffic, table.other.refused) == (packets(1), {"connections": 3})


def test_a_user_with_nothing_but_refusals_is_not_the_first_to_be_forgotten() -> None:
    table = TotalsTable()
    for uid in range(totals.MAX_USERS):
        table.of(uid, {}).add_traffic(packets(5))
    table.by_uid[0] = UserTotals()
    table.of(0, {}).add_refusals("connection_rate", 1_000)
    table.of(10_000, {})
    assert 0 in table.by_uid


def test_the_ids_of_a_container_do_not_displace_users_with_an_account() -> None:
    table = TotalsTable()
    table.of(ALICE, {}).add_traffic(packets(1))
    ids = range(100_000, 100_000 + 3 * totals.MAX_USERS)
    for uid in ids[: totals.MAX_USERS - 1]:
        table.of(uid, {}).add_traffic(packets(1_000))
    table.subordinates = SubordinateIds([SubordinateRange(ids[0], 65_536, BOB)])
    for uid in ids:
        table.of(uid, {}).add_traffic(packets(1_000))
    assert table.by_uid[ALICE].traffic == packets(1)
    # Users with an account get the place of these ids, and later of each other.
    for uid in range(2_000, 2_000 + totals.MAX_USERS - 1):
        table.of(uid, {}).add_traffic(packets(2))
    assert ALICE in table.by_uid
    assert not table.by_uid.keys() & set(ids)
    table.of(BOB, {})
    assert ALICE not in table.by_uid
    table.subordinates = None
    table.of(ids[0], {})
    assert BOB not in table.by_uid


def test_a_user_with_a_connection_is_not_forgotten() -> None:
    table = TotalsTable()
    present = dict.fromkeys(range(totals.MAX_USERS))
    for uid in present:
        table.of(uid, {})
    assert table.of(10_000, present) is table.other
    assert set(table.by_uid) == set(present)
    del present[5]
    assert table.of(10_000, present) is not table.other
    assert 5 not in table.by_uid


def test_a_restart_adds_what_was_before() -> None:
    table = TotalsTable()
    table.restore(ALICE, packets(4), {"connections": 1})
    table.restore(ALICE, packets(3), {"connections": 1, "subscriptions": 2})
    table.restore(None, packets(9), {})
    assert table.of(ALICE, {}).traffic == UserTraffic(received_packets=7, delivered_packets=2)
    assert table.of(ALICE, {}).refused == {"connections": 2, "subscriptions": 2}
    assert table.other.traffic.received_packets == 9


# -- as clients see it


def test_totals_remain_when_the_connections_of_a_user_end(bus: InProcessBus) -> None:
    owner, alice = bus.client(uid=0), bus.client(uid=ALICE)
    for packet in (b"SUB a", b"MSG a\0one", b"MSG a\0two"):
        alice.send(packet)
    assert len(alice.barrier()) == 2
    live = by_uid(owner)[ALICE]
    alice.close()
    bus.run()
    ended = by_uid(owner)[ALICE]
    assert (ended["received_packets"], ended["delivered_packets"]) == (live["received_packets"], live["delivered_packets"]) == (4, 3)
    again = bus.client(uid=ALICE)
    again.barrier()
    both = by_uid(owner)[ALICE]
    assert (both["received_packets"], both["delivered_packets"]) == (5, 4)


def test_refusals_are_counted_by_quota(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(quotas=QuotaSettings(subscriptions=1)))
    owner, alice = bus.client(uid=0), bus.client(uid=ALICE)
    for packet in (b"SUB a", b"SUB b", b"SUB c"):
        alice.send(packet)
    alice.barrier()
    alice.close()
    bus.run()
    assert by_uid(owner)[ALICE]["quota_refusals"] == {"subscriptions": 2}


def test_other_users_see_only_their_own(bus: InProcessBus) -> None:
    bus.client(uid=BOB).barrier()
    other, alice = bus.client(uid=ALICE), bus.client(uid=ALICE)
    other.barrier()
    other.close()
    found = answer(alice)
    assert [user["uid"] for user in found["users"]] == [ALICE]
    # The owner's view is one request later.
    assert found["users"][0]["received_packets"] == by_uid(bus.client(uid=0))[ALICE]["received_packets"] == 2
    assert (found["other"], found["next"]) == (None, None)
    assert [user["uid"] for user in answer(alice, b"%d" % (BOB - 1))["users"]] == []


def test_the_right_stats_shows_what_an_owner_sees(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(rights=RightsSettings(stats=Subjects(users=(MONITOR,)))))
    bus.client(uid=BOB).barrier()
    monitor, alice = bus.client(uid=MONITOR), bus.client(uid=ALICE)
    assert set(by_uid(monitor)) == {ALICE, BOB, MONITOR}
    assert monitor.ask_json(controls.STATS)["scope"] == "bus"
    assert alice.ask_json(controls.STATS)["scope"] == "connection"
    seen: Any = monitor.ask_json(controls.USERS)
    assert {user["uid"] for user in seen["users"]} == {ALICE, BOB, MONITOR}
    own: Any = alice.ask_json(controls.USERS)
    assert {user["uid"] for user in own["users"]} == {ALICE}


def test_pages(bus: InProcessBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.broker.control_messages.PAGE_TOTALS", 2)
    for uid in (5, 6, 7):
        bus.client(uid=uid).barrier()
    owner = bus.client(uid=0)
    first = answer(owner)
    assert ([user["uid"] for user in first["users"]], first["next"]) == ([0, 5], 5)
    second = answer(owner, b"5")
    assert ([user["uid"] for user in second["users"]], second["next"], second["other"]) == ([6, 7], None, None)
    assert first["other"]["received_packets"] == 0


def test_users_beyond_the_table_are_in_the_sum(bus: InProcessBus) -> None:
    """All rows are taken by users with connections, so a new one counts as another user while it is connected, and afterwards."""
    owner = bus.client(uid=0)
    table = bus.broker.quotas.totals
    for uid in range(50_000, 50_000 + totals.MAX_USERS - len(table.by_uid)):
        bus.client(uid=uid)
    bus.run()
    late = bus.client(uid=ALICE)
    for _ in range(2):
        late.send(b"MSG a\0x")
    late.barrier()
    assert answer(owner)["other"]["received_packets"] == 3
    late.close()
    bus.run()
    assert answer(owner)["other"]["received_packets"] == 3
