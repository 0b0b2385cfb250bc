"""The checks of the endpoint for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sbusd.ctl.checks import CheckResult, metrics
from sbusd.ctl.checks.metrics import check_metrics
from sbusd.metrics.exposition import MissingLibraryError

LOADED = {"LoadState": "loaded", "UnitFileState": "disabled", "ActiveState": "active"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The rights that were checked."""
    found: list[set[str]] = []

    def check(service: str, scope: str, effects: Mapping[str, str]) -> list[object]:
        assert (service, scope) == ("sbus-metrics", "system")
        found.append(set(effects))
        return []

    monkeypatch.setattr(metrics, "check_rights", check)
    return found


def test_nothing_is_checked_where_it_is_not_used(tmp_path: Path) -> None:
    assert check_metrics({}, tmp_path / "metrics.toml") == []
    assert check_metrics(LOADED | {"ActiveState": "inactive"}, tmp_path / "metrics.toml") == []


def test_the_rights_that_the_configuration_needs(tmp_path: Path, asked: list[set[str]]) -> None:
    file = tmp_path / "metrics.toml"
    assert [each.result for each in check_metrics(LOADED, file)] == [CheckResult.OK]
    file.write_text('prefixes = ["net/"]\n')
    assert [each.result for each in check_metrics(LOADED, file)] == [CheckResult.OK]
    assert asked == [{"stats"}, {"stats", "tap"}]


def test_a_faulty_configuration(tmp_path: Path) -> None:
    file = tmp_path / "metrics.toml"
    file.write_text("max_users = -1\n")
    (finding,) = check_metrics(LOADED, file)
    assert (finding.result, finding.advice) == (CheckResult.FAIL, f"correct {file}")
    assert "max_users" in finding.reason


def test_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingLibraryError

    monkeypatch.setattr(metrics, "check_library", missing)
    (finding,) = check_metrics(LOADED, tmp_path / "metrics.toml")
    assert finding.result is CheckResult.FAIL
    assert "python3-prometheus-client" in finding.reason
