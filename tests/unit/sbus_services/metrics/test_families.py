"""The samples that are made of the answers of a bus."""

from __future__ import annotations

import os
import pwd
from typing import Any

import pytest

from sbus_services.metrics import definitions
from sbus_services.metrics.families import bus_families, down_families, user_labels
from sbus_services.metrics.snapshot import ask
from tests.unit.sbus_services.metrics.snapshots import Answers, totals

USERS = {
    1_000: (
        {"uid": 1_000, "connections": 4, "descriptors": 5, "queued_bytes": 100, "limits": {"connections": 256, "queued_bytes": None}},
        totals(1_000, 11, quota_refusals={"connections": 2}),
    ),
    1_001: (None, totals(1_001, 22)),
    100_000: ({"uid": 100_000, "connections": 2}, totals(100_000, 33, quota_refusals={"connections": 1, "subscriptions": 5})),
}


def samples(max_users: int, **stats: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """Return all samples, by the name of the metric and the labels."""
    found = ask(Answers(USERS, **stats), max_users)
    made = list(bus_families(found, {1_000: "alice", 1_001: "1001", 100_000: "carol"}, 0.25))
    assert len({family.metric.name for family in made}) == len(made)
    return {family.metric.name: dict(family.samples) for family in made}


def test_metrics_of_the_bus() -> None:
    found = samples(100)
    assert found["sbus_up"] == {(): 1}
    assert found["sbus_scrape_duration_seconds"] == {(): 0.25}
    assert found["sbus_info"] == {("1.2", "compiled"): 1}
    assert found["sbus_start_time_seconds"] == {(): 1_795_000_000.5}
    assert found["sbus_messages_total"] == {(): 77}
    assert found["sbus_quota_refusals_total"] == {(): 2}
    assert found["sbus_configuration_faults"] == {(): 1}
    assert found["sbus_log_records_total"] == {("written",): 10, ("suppressed",): 2, ("dropped",): 0}
    assert found["sbus_waiting_log_records"] == {(): 1}
    assert "sbus_turns_total" not in found, "this bus does not report it"


def test_metrics_of_users() -> None:
    found = samples(100)
    assert found["sbus_user_connections"] == {("alice",): 4, ("1001",): 0, ("carol",): 2, ("other",): 3}
    assert found["sbus_user_descriptors"] == {("alice",): 5, ("1001",): 0, ("carol",): 0}
    assert found["sbus_user_received_packets_total"] == {("alice",): 11, ("1001",): 22, ("carol",): 33, ("other",): 1_000}
    assert found["sbus_user_blocked_seconds_total"][("alice",)] == 1.5
    assert found["sbus_user_quota"] == {("alice", "connections"): 256}
    refusals = {("alice", "connections"): 2, ("carol", "connections"): 1, ("carol", "subscriptions"): 5}
    assert found["sbus_user_quota_refusals_total"] == refusals


def test_users_above_the_limit_are_summed() -> None:
    found = samples(1)
    assert found["sbus_user_received_packets_total"] == {("alice",): 11, ("other",): 1_055}
    assert found["sbus_user_connections"] == {("alice",): 4, ("other",): 5}
    assert found["sbus_user_queued_bytes"] == {("alice",): 100, ("other",): 800}
    assert found["sbus_user_quota_refusals_total"] == {
        ("alice", "connections"): 2,
        ("other", "connections"): 1,
        ("other", "subscriptions"): 5,
    }


def test_answers_at_different_times_do_not_make_a_negative_rest() -> None:
    found = samples(100, counters={"connections": 1})
    assert found["sbus_user_connections"][("other",)] == 0


def test_without_a_bus() -> None:
    assert {family.metric.name: family.samples for family in down_families(8.0)} == {
        "sbus_up": (((), 0),),
        "sbus_scrape_duration_seconds": (((), 8.0),),
    }


def test_every_metric_is_defined_once_and_shown() -> None:
    names = [metric.name for metric in definitions.METRICS]
    assert len(set(names)) == len(names)
    everything = {metric.field: 1 for metric in definitions.BUS}, {metric.field: 1 for metric in definitions.CONTROL}
    shown = set(samples(100, counters=everything[0], control=everything[1]))
    assert shown | {metric.name for metric in definitions.ENDPOINT} == set(names)


def entry(name: str, uid: int) -> pwd.struct_passwd:
    """Return an entry of passwd(5)."""
    return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))


def test_a_name_and_a_number() -> None:
    me = pwd.getpwuid(os.geteuid())
    assert user_labels([me.pw_uid, 3_999_999_999]) == {me.pw_uid: me.pw_name, 3_999_999_999: "3999999999"}


@pytest.mark.parametrize("name", ["other", "1001", "two\nlines", ""])
def test_a_name_that_could_mean_another_user(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry(name, uid))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entry(name, 1_000))
    assert user_labels([1_000]) == {1_000: "1000"}


def test_a_name_that_two_users_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry("twin", uid))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entry(name, 1_000))
    assert user_labels([1_000, 1_001]) == {1_000: "twin", 1_001: "1001"}
