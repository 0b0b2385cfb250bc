"""The order of the hosts, and the numbers of each."""

from __future__ import annotations

from dataclasses import replace

from sbus_archive.report.aggregation import OTHERS
from sbus_archive.report.coverage import coverage_of
from sbus_archive.report.hosts import MOST_HOST_ROWS, MOST_HOSTS, HostActivity, distinguished, failed_calls, host_activities, hosts_json
from sbus_archive.tables.storage import TableSnapshot
from tests.support.fleet_tables import fleet_hosts, fleet_snapshot
from tests.unit.sbus_archive.tables.test_hours import ENTRY


def activities(snapshot: TableSnapshot) -> list[HostActivity]:
    """Return the hosts of *snapshot*."""
    return host_activities(snapshot.tables, coverage_of(snapshot.manifests.values()))


def test_the_numbers_of_a_host_are_those_of_its_rows() -> None:
    snapshot = fleet_snapshot(fleet_hosts(3), ENTRY, trouble=4)
    for each in activities(snapshot):
        rows = {name: [row for row in table.to_pylist() if row["host"] == each.host] for name, table in snapshot.tables.items()}
        assert each.messages == sum(row["messages"] for row in rows["traffic"])
        assert each.calls == sum(row["calls"] for row in rows["calls"])
        assert each.failed == sum(row["errors"] + row["timeouts"] + row["unanswered"] for row in rows["calls"])
        assert each.lost == sum(row["count"] for row in rows["losses"])
        assert each.refused == sum(row["events"] for row in rows["security"])
        assert each.records == sum(entry.rows for made in snapshot.manifests.values() for entry in made.segments if entry.host == each.host)


def test_hosts_that_stopped_are_first_and_then_those_with_most_problems() -> None:
    found = activities(fleet_snapshot(fleet_hosts(40), ENTRY, trouble=3))
    assert (found[0].host, found[0].silent) == ("node-039", 12)
    assert [each.problems for each in found[1:]] == sorted((each.problems for each in found[1:]), reverse=True)


def test_a_host_without_rows_is_listed_but_not_a_filter() -> None:
    snapshot = fleet_snapshot(fleet_hosts(2), ENTRY, hours=2)
    manifests = {hour: replace(made, silent={"gone": 30}) for hour, made in snapshot.manifests.items()}
    found = activities(TableSnapshot(manifests, snapshot.tables))
    assert (found[0].host, found[0].last, found[0].silent, found[0].messages) == ("gone", None, 30, 0)
    assert set(distinguished(found).labels) == {"node-000", "node-001", OTHERS}
    assert hosts_json(found, distinguished(found))["rows"][0]["number"] == 2


def test_a_fleet_is_bounded_and_the_rest_is_counted() -> None:
    found = activities(fleet_snapshot(fleet_hosts(130), ENTRY, hours=2, trouble=5))
    numbers = distinguished(found)
    data = hosts_json(found, numbers)
    assert (len(numbers.labels), numbers.labels[-1]) == (MOST_HOSTS + 1, OTHERS)
    assert (len(data["rows"]), data["more"]) == (MOST_HOST_ROWS, 30)
    assert data["moreProblems"] == sum(each.problems for each in found[MOST_HOST_ROWS:])
    assert sorted(row["number"] for row in data["rows"])[: MOST_HOSTS + 2] == [*range(MOST_HOSTS), MOST_HOSTS, MOST_HOSTS]
    # The first row is the host that stopped.
    assert all(numbers.labels[row["number"]] == row["host"] for row in data["rows"][1 : MOST_HOSTS + 1])


def test_silent_hosts_do_not_displace_those_with_problems() -> None:
    gone = [HostActivity(f"gone-{number}", records=1, messages=2, silent=9) for number in range(MOST_HOSTS)]
    busy = [HostActivity("failing", records=1, failed=3), HostActivity("busy", records=1, messages=500)]
    labels = distinguished([*gone, *busy]).labels
    assert {"failing", "busy"} < set(labels)
    assert len(labels) == MOST_HOSTS + 1


def test_the_call_that_closed_the_record_has_not_failed() -> None:
    assert failed_calls(["recorder/close", "echo", None], [0, 1, 0], [0, 2, 0], [1, 4, 8]) == 15
