"""The options of ``top``, and its reports; what it prints is tested on a real bus."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sbusd.ctl.application import application
from sbusd.ctl.commands.top import Watch
from sbusd.ctl.top.samples import Sampler
from sbusd.protocol import controls


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sort", "bogus"], "--sort: no column 'bogus' in this table: use id, user, pid,"),
        (["--sort", "id", "--by-uid"], "--sort: no column 'id' in this table: use user, connections,"),
        (["--once", "-n", "2"], "top: --once prints one report; omit it or --count"),
        (["-n", "0"], "for --count:"),
        (["-i", "0"], "for --interval:"),
        (["-i", "nan"], "for --interval:"),
        (["-i", "1e9"], "for --interval:"),
    ],
)
def test_invalid_options_are_reported_before_connecting(monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("no bus is needed to tell this")

    monkeypatch.setattr("sbusd.ctl.settings.Settings.connect", connect)
    result = CliRunner().invoke(application(), ["top", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr


class FakeBus:
    """A bus on which connection 1 does nothing, and connection 2 gets ten packets between any two looks."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._delivered = 0

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        if key == controls.FEATURES:
            return b"stats"
        if key == controls.STATS:
            return json.dumps({"scope": self._scope}).encode()
        self._delivered += 10
        items = [
            {"id": 1, "uid": 0, "delivered_packets": 0, "queued_bytes": 0},
            {"id": 2, "uid": 7, "delivered_packets": self._delivered, "queued_bytes": 0},
        ]
        return json.dumps({"connections": items, "next": None, "hidden": 0}).encode()


def _watch(*, by_user: bool, scope: str = "bus") -> Watch:
    sampler = Sampler(FakeBus(scope), with_users=by_user, sockets=dict)
    return Watch(sampler, by_user=by_user, sort="queued-bytes", source="queued_bytes")


def test_the_second_report_is_about_the_time_between() -> None:
    watch = _watch(by_user=False)
    first, second = watch.report(), watch.report()
    assert first.seconds is None
    assert second.seconds is not None
    assert [row["id"] for row in first.rows] == [1, 2]
    # The busiest of equals first.
    assert [row["id"] for row in second.rows] == [2, 1]
    assert second.rows[0]["delivered_packets_per_second"] == 10 / second.seconds
    assert second.totals["delivered_packets_per_second"] == 10 / second.seconds
    assert (second.scope, second.by_user, second.sorted_by) == ("bus", False, "queued-bytes")


def test_by_user() -> None:
    watch = _watch(by_user=True, scope="connection")
    watch.report()
    report = watch.report()
    assert [row["uid"] for row in report.rows] == [7, 0]
    assert (report.scope, report.totals["connections"]) == ("connections", 2)
