"""What the manual lists by name is all that the code has: requests, members, causes, counters, metrics, columns and fields."""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import chain
from typing import Any

import pytest

from sbus_archive.pipeline.source.options import _NAMES
from sbus_archive.record.layout import IndexEntry
from sbus_archive.record.schema import PARTITION_SCHEMA, SCHEMA, RowKind
from sbus_services.blob.requests import _MEMBERS, FATAL, Cause
from sbus_services.feeds.dbus.signal_feed import SignalCounters
from sbus_services.feeds.dbus.state_feed import StateCounters
from sbus_services.feeds.journal.feed import JournalCounters
from sbus_services.feeds.netlink.entries import Address, Entry, Link, Neighbour, Route
from sbus_services.feeds.netlink.feed import NetlinkCounters
from sbus_services.feeds.udev.feed import UdevCounters
from sbus_services.link.rules import NEVER_EXPORTED
from sbus_services.metrics import collector, definitions
from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.redis import names
from sbus_services.web.frames import REQUESTS
from tests.support.manual import items, section, source, words
from tests.unit.sbus_services.link.test_administration import state
from tools.stage import ROOT

TRIGGER_COUNTERS = [
    *("messages", "accepted", "wrong_sender", "unmatched", "repeated", "invalid", "over_burst", "over_burst_of_all", "loop", "suspended"),
    *("overflow", "served", "coalesced", "actions", "succeeded", "failed", "unknown", "abandoned", "gaps", "lost"),
]

_SCRIPTS = [(ROOT / "sbus_services/web/static" / name).read_text() for name in ("main.js", "messages.js")]

HANDLED = set(re.findall(r'case "(\w+)":', "".join(_SCRIPTS)))
"""The notifications that the page of sbus-web handles."""

LISTS = [
    ("sbus-blob.8", "Errors", {each.counter for each in Cause}),
    ("sbus-record.5", "Index", {each.name for each in fields(IndexEntry)}),
    ("sbus-record.5", "Kinds", {kind.value for kind in RowKind}),
    ("sbus-relay.8", "Message format", [field.alias or name for name, field in RelayMessage.model_fields.items()]),
    ("sbus-spark.7", "OPTIONS", set(_NAMES.values())),
    ("sbus-trigger.8", "Counters", set(TRIGGER_COUNTERS)),
    ("sbus-web.8", "Notifications", HANDLED - {"error"}),
    ("sbus-web.8", "Requests", list(REQUESTS)),
]
"""Sections whose items are all of these names; as a list, in this order."""

MENTIONS = [
    ("sbus-link.8", "ON THE BUS", state([])),
    ("sbus-metrics.8", "", [*collector.REASONS, *definitions.LOG_RESULTS]),
    ("sbus-relay.8", "", [*names.QUEUES, names.BACKLOG, names.REFUSED, names.COUNTERS]),
    (
        "sbus-feed.8",
        "Of both feeds",
        ["coalesced", "dropped", *(each.name for each in fields(StateCounters)), "requests", "refused", "reconnects"],
    ),
    ("sbus-feed.8", "Of the D-Bus feed", [each.name for each in fields(SignalCounters)]),
]
"""Sections, or whole pages, that have each of these names as a word."""


@pytest.mark.parametrize(("page", "title", "expected"), LISTS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_list_has_all_names(page: str, title: str, expected: list[str] | set[str]) -> None:
    found = [re.sub("Cm ", "", name) for item in items(section(page, title)) if item.head.startswith("Cm ") for name in item.names]
    assert (found if isinstance(expected, list) else set(found)) == expected


@pytest.mark.parametrize(("page", "title", "expected"), MENTIONS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_section_has_all_names(page: str, title: str, expected: list[str]) -> None:
    text = words(section(page, title) if title else source(page))
    assert [each for each in expected if not re.search(rf"(?<![\w-]){re.escape(each)}(?![\w-])", text)] == []


@pytest.mark.parametrize(("page", "requests"), [("sbus-blob.8", _MEMBERS), ("sbus-web.8", REQUESTS)])
def test_each_request_has_its_members(page: str, requests: dict[str, Any]) -> None:
    text = section(page, "Requests")
    assert [each for each in re.findall(r"^\.It Cm (\w+)$", text, re.MULTILINE) if each in requests] == list(requests)
    for name, members in requests.items():
        described = text.partition(f".It Cm {name}\n")[2]
        assert [each for each in members if not re.search(rf"^\.(It )?Cm {each}\b", described, re.MULTILINE)] == [], name


def test_every_cause_of_the_blob_service_has_its_code() -> None:
    found = dict.fromkeys((each.counter for each in FATAL), "")
    found |= {name: item.text for item in items(section("sbus-blob.8", "Errors")) for name in item.names}
    assert [each for each in Cause if each not in FATAL and not found[each.counter].startswith(f"{each.code}.")] == []


def test_the_keys_that_never_leave_a_host() -> None:
    (listed,) = re.findall(r"Keys under (.*?) never leave", words(source("link.toml.5")))
    assert {each.encode() for each in re.split(r", | and ", listed)} == set(NEVER_EXPORTED)


def test_the_counters_of_the_trigger_are_in_its_code() -> None:
    code = "".join(path.read_text() for path in (ROOT / "sbus_services/trigger").glob("*.py"))
    assert [name for name in TRIGGER_COUNTERS if f'"{name}"' not in code] == []


def test_every_metric_has_its_type_labels_and_help() -> None:
    documented = []
    for item in items(section("sbus-metrics.8", "METRICS")):
        if item.head.startswith("Li sbus_"):
            name, _, labels = item.head.removeprefix("Li ").partition(" Ns Brq ")
            documented.append((name, tuple(labels.split(" , ")) if labels else (), item.text))
    assert documented == [(each.name, each.labels, f"{each.kind.value.capitalize()}. {each.help}") for each in definitions.METRICS]


def test_every_column_of_the_record_is_described_in_its_order() -> None:
    columns = [*SCHEMA, *PARTITION_SCHEMA]
    found = [(*item.head.removeprefix("Cm ").split(" Pq "), item.text) for item in items(section("sbus-record.5", "Columns"))]
    assert found == [(each.name, str(each.type), (each.metadata or {})[b"doc"].decode()) for each in columns]
    never_null = [each.name for each in columns if not each.nullable]
    assert never_null[3:] == [each.name for each in PARTITION_SCHEMA]
    assert f"All columns except {', '.join(never_null[:3])} and those three can be null." in words(section("sbus-record.5", "Columns"))


def test_every_field_of_a_payload_of_a_feed() -> None:
    shown = re.findall(r"^\.(?:It )?(?:Li|Pq) .*|^\.Pq.*", source("sbus-feed.8"), re.MULTILINE)
    entries: list[Entry] = [
        Link(1, b"lo", "up", (), 1, None, None, None),
        Address(1, "inet", "10.0.0.1", None, 24, "global", (), None, None),
        Route("inet", "main", "default", None, 0, 0, "unicast", "global", "boot", 1, None, None, (), ()),
        Neighbour(1, "inet", "10.0.0.2", None, "stale", ()),
    ]
    expected = set(chain.from_iterable(entry.attributes(lambda index: b"lo") for entry in entries))
    for counters in (NetlinkCounters, JournalCounters, UdevCounters):
        expected |= {each.name for each in fields(counters)}
    expected |= {"coalesced", "cut", "omitted", "devices", "waiting", "receive_kib", "reason", "count", "vacuumed", "backlog", "unreadable"}
    expected |= {"refused", "cursor", "generation", "entries", "interrupted", "namespace", "event", "time"}
    assert expected - set(re.findall(r"[a-z_]+", " ".join(shown))) == set()
