"""The checks of the endpoint for metrics."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from sbusd.ctl.checks import CheckResult, Finding, metrics
from sbusd.ctl.checks.metrics import check_metrics, check_scrape
from sbusd.metrics.exposition import MissingLibraryError

LOADED = {"LoadState": "loaded", "UnitFileState": "disabled", "ActiveState": "active"}
ENABLED = LOADED | {"UnitFileState": "enabled", "ActiveState": "failed"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The rights that were checked."""
    found: list[set[str]] = []

    def check(service: str, scope: str, effects: Mapping[str, str]) -> list[object]:
        assert (service, scope) == ("sbus-metrics", "system")
        found.append(set(effects))
        return []

    monkeypatch.setattr(metrics, "check_rights", check)
    monkeypatch.setattr(metrics, "check_scrape", lambda: Finding("metrics scrape", CheckResult.SKIP, ""))
    return found


def test_nothing_is_checked_where_it_is_not_used(tmp_path: Path) -> None:
    assert check_metrics({}, tmp_path / "metrics.toml") == []
    assert check_metrics(LOADED | {"ActiveState": "inactive"}, tmp_path / "metrics.toml") == []


def test_the_rights_that_the_configuration_needs(tmp_path: Path, asked: list[set[str]]) -> None:
    file = tmp_path / "metrics.toml"
    assert [each.result for each in check_metrics(LOADED, file)] == [CheckResult.OK, CheckResult.SKIP]
    file.write_text('prefixes = ["net/"]\n')
    assert [each.result for each in check_metrics(ENABLED, file)] == [CheckResult.OK], "no scrape without a socket"
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


METRICS = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n# TYPE sbus_up gauge\nsbus_up "


@pytest.mark.parametrize(
    ("response", "result", "words"),
    [
        (METRICS + b"1.0\n", CheckResult.OK, "33 bytes"),
        (METRICS + b"0.0\n", CheckResult.FAIL, "no metrics of the bus"),
        (b"HTTP/1.0 403 Forbidden\r\n\r\nsbus_up 1", CheckResult.SKIP, "as root"),
        (b"HTTP/1.0 500 Internal Server Error\r\n\r\n", CheckResult.FAIL, "500 Internal Server Error"),
        (b"garbage", CheckResult.FAIL, "no response of HTTP"),
        (b"", CheckResult.FAIL, "no response of HTTP"),
    ],
)
def test_the_response_to_a_scrape(folder: Path, response: bytes, result: CheckResult, words: str) -> None:
    path = str(folder / "metrics.socket")
    with socket.create_server(path, family=socket.AF_UNIX) as listener:

        def respond() -> None:
            scraper, _ = listener.accept()
            with scraper:
                assert b"GET /metrics " in scraper.recv(4_096)
                scraper.sendall(response)

        server = threading.Thread(target=respond)
        server.start()
        finding = check_scrape(path)
        server.join()
    assert finding.result is result
    assert words in finding.reason


def test_a_scrape_without_a_response_ends(folder: Path) -> None:
    path = str(folder / "metrics.socket")
    with socket.create_server(path, family=socket.AF_UNIX):
        finding = check_scrape(path, 0.05)
    assert (finding.result, finding.reason) == (CheckResult.FAIL, f"{path}: no complete response within 0.05 s")


def test_a_scrape_of_a_socket_that_does_not_exist(folder: Path) -> None:
    finding = check_scrape(str(folder / "no.socket"))
    assert finding.result is CheckResult.FAIL
    assert "No such file" in finding.reason
    assert "systemctl restart sbus-metrics.socket" in finding.advice
