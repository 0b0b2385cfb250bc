"""``sbusctl top --link``: rates between two states, and what is shown of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sbusctl.top.display import plain_lines, terminal_lines
from sbusctl.top.link import LINK_FIELDS, LinkWatch


def state(messages: int, *, started: bool = True) -> dict[str, Any]:
    """Return a state of a link with two hosts."""
    hosts = [
        {
            "name": "beta",
            "alive": True,
            "silent_seconds": 1.0,
            "messages": messages,
            "bytes": 10 * messages,
            "lost": 1,
            "patterns_there": 2,
        },
        {"name": "gamma", "alive": False, "silent_seconds": 90, "messages": 5},
    ]
    network = {"connected": started, "server": "tls://nats-1", "messages_in": messages, "bytes_in": 0, "messages_out": 2 * messages}
    return {"host": "alpha", "transport": "nats", "network": network, "spooled_bytes": 2048, "hosts": hosts}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    moments: Iterator[float] = iter(range(0, 100, 2))
    monkeypatch.setattr("sbusctl.top.link.time", SimpleNamespace(time=time.time, monotonic=lambda: float(next(moments))))


def watch(*states: dict[str, Any]) -> LinkWatch:
    """Return a watch that reads *states* one after the other."""
    left = iter(states)
    return LinkWatch(lambda: next(left), sort="in", source="messages_per_second")


def test_rates_are_those_between_two_states(clock: None) -> None:
    watched = watch(state(10), state(110))
    first, second = watched.report(), watched.report()
    assert (first.seconds, first.rows[0]["messages_per_second"]) == (None, None)
    assert second.seconds == 2.0
    beta, gamma = second.rows
    assert (beta["name"], beta["messages_per_second"], beta["bytes_per_second"], beta["lost_per_second"]) == ("beta", 50.0, 500.0, 0.0)
    assert (gamma["name"], gamma["state"], gamma["messages_per_second"], gamma["bytes_per_second"]) == ("gamma", "gone", 0.0, None)
    assert second.totals["messages_out_per_second"] == 100.0
    assert second.as_json()["hosts"] == second.rows


def test_counters_that_begin_again_have_no_rate(clock: None) -> None:
    watched = watch(state(10), state(3))
    watched.report()
    assert {row["name"]: row["messages_per_second"] for row in watched.report().rows}["beta"] is None


def test_a_report_fits_a_terminal_and_a_pipe_has_all(clock: None) -> None:
    watched = watch(state(10), state(110, started=False))
    watched.report()
    report = watched.report()
    assert all(len(line) <= 80 for line in terminal_lines(report, legend=True, width=80))
    lines = plain_lines(report, legend=True)
    assert lines[0].endswith("host alpha, not connected, 2 other hosts, 1 alive")
    assert lines[1] == "in 50/s (0B/s), out 100/s (-/s), spooled 2KiB"
    assert lines[3].split() == [field.heading for field in LINK_FIELDS]
    assert lines[4].split() == ["beta", "alive", "1s", "50", "500", "110", "1", "0", "-", "2", "-"]


def test_malformed_states_are_shown(clock: None) -> None:
    report = watch({"hosts": [{"name": "\x1b[2J"}, {}]}).report()
    assert not any("\x1b" in line for line in [*terminal_lines(report, legend=True, width=80), *plain_lines(report, legend=True)])
