"""The digest says what the tables say, and stays small."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Row
from sbus_archive.report import digest as module
from sbus_archive.report.aggregation import MOST_CHARACTERS, OTHERS
from sbus_archive.report.coverage import Earlier, earlier_periods
from sbus_archive.report.digest import MOST_KEYS, MOST_PEERS, MOST_ROWS, MOST_USERS, Digest, digest_of, packed
from sbus_archive.report.hosts import CLOSE_COMMAND, MOST_HOSTS, failed_calls
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.schema import percentile
from sbus_archive.tables.storage import TableSnapshot, read_tables
from tests.support.fleet_tables import fleet_hosts, fleet_snapshot
from tests.support.link_states import link_state, other_host
from tests.support.published_tables import publish_record
from tests.support.records import NOON, message
from tests.support.traffic import GrowingRecord
from tests.unit.sbus_archive.tables.test_hours import ENTRY


def digest(folder: Path, record: Mapping[str, Sequence[Row]]) -> Digest:
    """Return the digest of the tables of *record*."""
    return digest_of(read_tables(publish_record(folder, record)), {1000: "alice"}.get, 5)


def test_the_sums_of_everything_are_those_of_the_record(tmp_path: Path) -> None:
    record = {"alpha": GrowingRecord(1).fill(400), "beta": GrowingRecord(2).fill(200)}
    data = digest(tmp_path, record).data
    rows = [row for rows in record.values() for row in rows]
    messages = [row for row in rows if row.kind == "message"]
    assert sum(data["traffic"]["messages"]) == len(messages)
    assert sum(data["traffic"]["bytes"]) == sum(row.payload_bytes or 0 for row in messages)
    assert sum(data["security"]["events"]) == sum(1 if row.lost is None else row.lost for row in rows if row.kind == "denial")
    lost = Counter(dict.fromkeys(data["losses"]["cause"], 0))
    for cause, count in zip(data["losses"]["cause"], data["losses"]["count"], strict=True):
        lost[cause] += count
    assert lost["lost"] == sum(row.lost or 0 for row in rows if row.kind == "loss")
    calls = data["calls"]
    with_reply = sum(calls["answered"]) + sum(calls["timeouts"])
    assert sum(count for histogram in calls["latencies"] for count in histogram[1::2]) == with_reply
    assert sum(calls["calls"]) == with_reply + sum(calls["unanswered"])
    ended = [row for row in rows if row.kind == "disconnect"]
    assert ended
    assert sum(data["disconnects"]["disconnects"]) == len(ended)
    assert sum(data["disconnects"]["abandoned"]) == sum(row.lost or 0 for row in ended)
    assert sum(data["relay"]["attempts"]) == sum(row.kind == "relay" for row in rows)
    assert data["hosts"] == ("alpha", "beta")
    json.dumps(data)


def test_columns_have_one_length(tmp_path: Path) -> None:
    data = digest(tmp_path, {"alpha": GrowingRecord(1).fill(200)}).data
    for name in ("traffic", "units", "flows", "calls", "losses", "security", "disconnects", "relay", "links", "linkTimes"):
        assert len({len(column) for column in data[name].values()}) == 1, name


def test_users_and_keys_have_names(tmp_path: Path) -> None:
    rows = [message(1, "a/b/c"), message(2, "a/b/d"), message(3, "z")._replace(uid=None), message(4, "y")._replace(uid=7)]
    data = digest(tmp_path, {"alpha": rows}).data
    assert data["keys"] == ("a/b", "y", "z", "all others")
    assert data["users"] == ("alice (1000)", "uid 7", "unknown", "all others")


def test_a_user_with_only_rejected_messages_has_a_name(tmp_path: Path) -> None:
    """An attacker of private keys publishes few messages."""
    crowd = [message(number, uid_key(number))._replace(uid=2_000 + number % 50) for number in range(1, 500)]
    refused = message(1_000)._replace(kind="denial", code="EACCES", uid=66)
    data = digest(tmp_path, {"alpha": [*crowd, refused]}).data
    assert "uid 66" in data["users"]


def uid_key(number: int) -> str:
    """Return one of many keys."""
    return f"k{number % 60}/x"


def test_every_list_is_bounded(tmp_path: Path) -> None:
    rows = [
        message(number, f"{number}/x")._replace(uid=number, unit=f"{number}.scope", ts=NOON + number * 10**9, payload_bytes=1)
        for number in range(1, 1_500)
    ]
    rows += [message(number)._replace(kind="denial", key=f"k{number}" * 200, uid=9) for number in range(1_500, 2_500)]
    data = digest(tmp_path, {"alpha": rows}).data
    assert (len(data["keys"]), len(data["users"])) == (MOST_KEYS + 1, MOST_USERS + 1)
    assert all(len(column) <= MOST_ROWS for column in data["units"].values())
    assert data["omitted"]["units"] > 1_000
    # What is beyond the bound is in one row for all others.
    assert (len(data["security"]["what"]), data["security"]["what"][-1], sum(data["security"]["events"])) == (MOST_ROWS + 1, OTHERS, 1_000)
    assert max(len(text) for text in data["security"]["what"] if text) == MOST_CHARACTERS + 1
    assert len(json.dumps(data)) < 200_000


def test_disconnects_with_an_error_are_first_and_the_list_is_bounded(tmp_path: Path) -> None:
    ended = message(1)._replace(kind="disconnect", key=None, payload=None)
    rows = [ended._replace(seq=number, ts=NOON + number, uid=1, unit=f"{number}.scope", lost=0) for number in range(1, MOST_ROWS + 50)]
    failed = ended._replace(seq=1_000, ts=NOON + 1_000, uid=2, unit="slow.service", code="ENOBUFS", lost=7)
    found = digest(tmp_path, {"alpha": [*rows, failed]}).data
    columns = found["disconnects"]
    assert (columns["unit"][0], columns["code"][0], columns["abandoned"][0]) == ("slow.service", "ENOBUFS", 7)
    assert {len(column) for column in columns.values()} == {MOST_ROWS}
    assert found["omitted"]["disconnects"] == 50


def test_time_is_cut_as_coarsely_as_the_period_needs(tmp_path: Path) -> None:
    short, long = [message(1), message(2, ts=NOON + 10**9)], [message(1), message(2, ts=NOON + 100 * HOUR_NS)]
    assert digest(tmp_path / "short", {"alpha": short}).data["binMinutes"] == 1
    found = digest(tmp_path / "long", {"alpha": long}).data
    assert found["binMinutes"] == 60
    assert max(found["traffic"]["bin"]) - min(found["traffic"]["bin"]) == 100


def test_many_points_are_cut_coarser(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MOST_POINTS", 3)
    rows = [message(number, ts=NOON + number * 60 * 10**9) for number in range(1, 30)]
    found = digest(tmp_path, {"alpha": rows}).data
    assert (found["binMinutes"], len(found["traffic"]["bin"])) == (15, 2)


def unpacked(histogram: list[int]) -> list[tuple[int, int]]:
    """Return pairs of bucket and count."""
    return list(zip(accumulate(histogram[::2]), histogram[1::2], strict=True))


@given(st.dictionaries(st.integers(0, 800), st.integers(1)))
def test_a_packed_histogram_has_all_buckets(histogram: dict[int, int]) -> None:
    assert dict(unpacked(packed(sorted(histogram.items())))) == histogram


def test_latencies_are_added_up_over_hours(tmp_path: Path) -> None:
    rows = []
    for number, latency in enumerate([1_000, 2_000, 50_000]):
        ts = NOON + number * HOUR_NS
        call: dict[str, Any] = {"call_id": number, "call_cmd": "echo"}
        rows.append(message(2 * number + 1, "rpc/echo", ts=ts)._replace(call_role="request", **call))
        rows.append(message(2 * number + 2, "r", ts=ts + latency * 1_000)._replace(call_role="reply", **call))
    calls = digest(tmp_path, {"alpha": rows}).data["calls"]
    (histogram,) = calls["latencies"]
    assert calls["calls"] == [3]
    assert 2_000 <= (percentile(unpacked(histogram), 50, 10**9) or 0) <= 2_063


def test_other_hosts_are_bounded_and_the_rest_is_added_up(tmp_path: Path) -> None:
    def row(seq: int, messages: int) -> Row:
        hosts = [other_host(f"host-{number}", messages=messages * number, lost=messages) for number in range(MOST_ROWS + 20)]
        payload = json.dumps(link_state(started=NOON / 1e9, spooled_bytes=9 - seq, hosts=hosts)).encode()
        return message(seq, "link/state", payload)._replace(uid=0)

    data = digest(tmp_path, {"alpha": [row(1, 0), row(2, 2), row(3, 3)]}).data
    links, times = data["links"], data["linkTimes"]
    assert (data["peers"][0], data["peers"][-1], len(data["peers"])) == (f"host-{MOST_ROWS + 19}", "all others", MOST_PEERS + 1)
    assert len(links["peer"]) == MOST_ROWS + 1
    assert (links["peer"][0], links["spooled_max_bytes"][0], links["states"][0], links["messages"][0]) == ("", 8, 3, 0)
    assert sum(times["messages"]) == 3 * sum(range(MOST_ROWS + 20))
    assert sum(times["lost"]) == 3 * (MOST_ROWS + 20)
    assert sorted(times["peer"]) == list(range(MOST_PEERS + 1))


def test_no_records_give_an_empty_digest(tmp_path: Path) -> None:
    TableWriter(tmp_path)
    data = digest_of(read_tables(tmp_path), lambda _: None, 5).data
    assert (data["traffic"]["messages"], data["covers"]["hosts"], data["keys"]) == ([], [], ("all others",))


def test_a_fleet_is_bounded_and_its_sums_are_whole() -> None:
    snapshot = fleet_snapshot(fleet_hosts(120), ENTRY, hours=6, keys=40)
    data = digest_of(snapshot, lambda _: None, 5).data
    assert (len(data["hosts"]), data["hosts"][-1]) == (MOST_HOSTS + 1, OTHERS)
    for name, column, table in (("traffic", "messages", "traffic"), ("calls", "calls", "calls"), ("flows", "deliveries", "flows")):
        assert sum(data[name][column]) == pc.sum(snapshot.tables[table].column(column)).as_py(), name
    assert len(data["traffic"]["bin"]) <= module.MOST_POINTS
    assert max(data["traffic"]["host"]) == MOST_HOSTS


def test_many_flows_are_summed_by_host(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MOST_FLOWS", 3)
    snapshot = fleet_snapshot(fleet_hosts(2), ENTRY, hours=6)
    data = digest_of(snapshot, lambda _: None, 5).data
    assert sum(data["flows"]["deliveries"]) == pc.sum(snapshot.tables["flows"].column("deliveries")).as_py()
    assert len(data["flows"]["from"]) == 5


def test_calls_of_many_users_keep_their_latencies() -> None:
    """Calls of all other users are one row, with the sum of their histograms and the largest of their maxima."""
    snapshot = fleet_snapshot(fleet_hosts(1), ENTRY, hours=1)
    (row,) = snapshot.tables["calls"].to_pylist()
    rows = [
        row | {"caller_uid": uid, "cmd": "echo", "latency_max_us": 100 + uid, "latencies": [{"bucket": uid, "calls": 1}]}
        for uid in range(60)
    ]
    calls = pa.Table.from_pylist(rows, schema=snapshot.tables["calls"].schema)
    found = digest_of(TableSnapshot(snapshot.manifests, snapshot.tables | {"calls": calls}), lambda _: None, 5).data
    assert len(found["calls"]["latencies"]) == len(found["calls"]["cmd"])
    assert (found["calls"]["latency_max_us"], found["calls"]["latencies"]) == ([159], [[0, 1, *[1, 1] * 59]])


def calls_of(snapshot: TableSnapshot, rows: list[dict[str, Any]]) -> TableSnapshot:
    """Return *snapshot* with other calls: *rows* of values that differ from those of one call without a reply."""
    single = {"host": "node-000", "caller_uid": 1000, "calls": 1, "answered": 0, "errors": 0, "timeouts": 0, "unanswered": 1}
    schema = snapshot.tables["calls"].schema
    filled = [{**dict.fromkeys(schema.names), **single, "undelivered": 0, "latencies": [], **row} for row in rows]
    return TableSnapshot(snapshot.manifests, snapshot.tables | {"calls": pa.Table.from_pylist(filled, schema=schema)})


def test_a_named_command_keeps_the_calls_of_all_hosts_and_callers() -> None:
    """Each of 20 hosts calls "rare" less often than any of 60 other commands."""
    hosts = fleet_hosts(20)
    rows = [{"cmd": f"c{number}", "host": host, "calls": 9} for number in range(60) for host in hosts]
    rows += [{"cmd": "rare", "host": host, "caller_uid": uid} for host in hosts for uid in (1000, 1007)]
    data = digest_of(calls_of(fleet_snapshot(hosts, ENTRY, hours=1), rows), lambda _: None, 5).data
    assert Counter(data["calls"]["cmd"]) == {**{f"c{number}": 20 for number in range(60)}, "rare": 40}


def test_calls_are_bounded_and_close_commands_never_fail(monkeypatch: Any) -> None:
    """The failed calls of the page are those of the list of hosts, although the command to close the record is the rarest."""
    monkeypatch.setattr(module, "MOST_CALLS", 8)
    hosts = fleet_hosts(3)
    rows = [{"cmd": f"c{number}", "host": host, "calls": 20 - number} for number in range(10) for host in hosts]
    rows.append({"cmd": CLOSE_COMMAND})
    data = digest_of(calls_of(fleet_snapshot(hosts, ENTRY, hours=2), rows), lambda _: None, 5).data
    calls = data["calls"]
    assert Counter(calls["cmd"]) == {"c0": 3, "c1": 3, CLOSE_COMMAND: 1, None: 3}
    failed = failed_calls(calls["cmd"], calls["errors"], calls["timeouts"], calls["unanswered"])
    assert failed == sum(row["failed"] for row in data["hostList"]["rows"]) == 30


def test_many_commands_are_bounded() -> None:
    rows = [{"cmd": f"c{number}", "calls": 5} for number in range(MOST_ROWS + 50)]
    calls = digest_of(calls_of(fleet_snapshot(fleet_hosts(1), ENTRY, hours=1), rows), lambda _: None, 5).data["calls"]
    assert (len(calls["cmd"]), calls["calls"][calls["cmd"].index(None)], sum(calls["calls"])) == (MOST_ROWS + 1, 250, 5 * (MOST_ROWS + 50))


def test_earlier_periods_name_the_same_commands(monkeypatch: Any) -> None:
    """Otherwise, the page would compare a command with nothing. The bound is that of the period with most rows."""
    monkeypatch.setattr(module, "MOST_CALLS", 4)
    hosts = fleet_hosts(3)
    now = calls_of(fleet_snapshot(hosts, ENTRY, hours=1), [{"cmd": "a", "calls": 5}, {"cmd": "b", "calls": 3}, {"cmd": "c"}])
    (day, _) = earlier_periods(now.manifests)
    rows: list[dict[str, Any]] = [{"cmd": "c", "calls": 9}, {"cmd": "a"}, *({"cmd": "b", "host": host} for host in hosts)]
    then = calls_of(fleet_snapshot(hosts, ENTRY, start=NOON - 24 * HOUR_NS, hours=1), rows)
    data = digest_of(now, lambda _: None, 5, [Earlier(day, then)]).data
    assert data["calls"]["cmd"] == ["a", "b", None]
    assert Counter(data["before"][0]["calls"]["cmd"]) == {"a": 1, "b": 3, None: 1}


def test_only_hours_with_rows_count() -> None:
    """An hour whose segments are all missing has a manifest too."""
    now = fleet_snapshot(fleet_hosts(3), ENTRY, hours=4)
    (day, _) = earlier_periods(now.manifests)
    then = fleet_snapshot(fleet_hosts(2), ENTRY, start=NOON - 24 * HOUR_NS, hours=4)
    last = max(then.manifests)
    emptied = {hour: replace(made, segments=()) if hour == last else made for hour, made in then.manifests.items()}
    data = digest_of(now, lambda _: None, 5, [Earlier(day, TableSnapshot(emptied, then.tables))]).data
    (before,) = data["before"]
    # The second host stopped after two hours, the third did not exist, and the last number is that of all others.
    assert (before["there"], before["hostHours"]) == (3, [3, 2, 0, 0])
    nothing = {hour: replace(made, segments=()) for hour, made in then.manifests.items()}
    (before,) = digest_of(now, lambda _: None, 5, [Earlier(day, TableSnapshot(nothing, then.tables))]).data["before"]
    assert (before["there"], "traffic" in before) == (0, False)


def test_earlier_periods_have_the_same_names() -> None:
    now = fleet_snapshot(fleet_hosts(3), ENTRY)
    day, week = earlier_periods(now.manifests)
    then = fleet_snapshot(fleet_hosts(3), ENTRY, seed=2, start=NOON - 24 * HOUR_NS, hours=20)
    data = digest_of(now, lambda _: None, 5, [Earlier(day, then), Earlier(week, TableSnapshot({}, {}))]).data
    first, second = data["before"]
    assert (first["name"], first["there"], first["to"] - first["from"]) == ("day", 20, 24 * 3_600_000)
    assert first["hostHours"] == [20, 20, 10, 0]
    assert first["from"] == NOON // 10**6 - 24 * 3_600_000
    for name, column in (("traffic", "messages"), ("calls", "calls"), ("losses", "count"), ("security", "events")):
        assert sum(first[name][column]) == pc.sum(then.tables[name].column(column)).as_py(), name
        assert max(first[name]["host"]) < len(data["hosts"])
    assert set(second) == {"name", "from", "to", "there"}
    assert data["hours"] == {"length": 24, "to": NOON // 10**6 + 24 * 3_600_000}
    json.dumps(data)
