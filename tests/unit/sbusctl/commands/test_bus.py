"""The identity of the caller, round trips, and versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sbus import __version__
from sbusctl.application import application
from sbusctl.commands.bus import measure_trips, trip_lines, trip_summary, version_lines


class FakeBus:
    """Knows one thing."""

    def __enter__(self) -> FakeBus:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def whoami(self) -> bytes:
        return b"!/cred/1/2/3"


@pytest.mark.parametrize(("arguments", "said"), [([], "!/cred/1/2/3\n"), (["--json=short"], '{"key":"!/cred/1/2/3"}\n')])
def test_it_prints_the_key(monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    monkeypatch.setattr("sbusctl.settings.Settings.connect", lambda *_: FakeBus())
    result = CliRunner().invoke(application(), ["whoami", *arguments])
    assert (result.exit_code, result.stdout, result.stderr) == (0, said, "")


def test_it_pauses_between_two_and_not_around() -> None:
    done: list[object] = []
    trips: list[float] = []

    def ping() -> float:
        done.append("ping")
        return 0.5

    measure_trips(ping, trips, 3, 0.25, done.append)
    assert done == ["ping", 0.25, "ping", 0.25, "ping"]
    assert trips == [0.5, 0.5, 0.5]
    done.clear()
    measure_trips(ping, trips, 2, 0, done.append)
    assert done == ["ping", "ping"]


def test_results_before_an_interruption_are_kept() -> None:
    trips: list[float] = []
    answers = iter([0.1, 0.2])
    try:
        measure_trips(lambda: next(answers), trips, 5, 0)
    except StopIteration:
        assert trips == [0.1, 0.2]


def test_figures_of_round_trips() -> None:
    assert trip_summary([0.004, 0.001, 0.002, 0.003]) == {"count": 4, "min": 0.001, "p50": 0.002, "p90": 0.004, "p99": 0.004, "max": 0.004}


def test_columns_of_round_trips() -> None:
    figures = trip_summary([0.000063, 0.0001, 12.0])
    assert trip_lines(figures, legend=True) == [
        "COUNT   MIN    P50         P90         P99         MAX",
        "    3  63us  100us  12000000us  12000000us  12000000us",
    ]
    assert trip_lines(figures, legend=False) == trip_lines(figures, legend=True)[1:]


def test_lines_of_versions() -> None:
    assert version_lines({"sbusctl": "1", "bus": "2", "switch": "compiled"}) == ["sbusctl 1", "bus 2 (compiled switch)"]
    assert version_lines({"sbusctl": "1", "bus": "2"}) == ["sbusctl 1", "bus 2"]
    assert version_lines({"sbusctl": "1", "bus": None}) == ["sbusctl 1", "bus version unknown"]
    assert version_lines({"sbusctl": "1", "problem": "no\nbus"}) == ["sbusctl 1", r"bus not reachable: no\nbus"]


def test_a_missing_bus_is_reported_and_not_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(application(), ["--json=short", "-a", f"{tmp_path}/none", "version"])
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["sbusctl"] == __version__
    assert said["problem"].startswith(f"cannot connect to {tmp_path}/none")
