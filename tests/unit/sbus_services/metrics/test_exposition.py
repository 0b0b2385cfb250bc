"""The text formats, read by the parsers of Prometheus' own library."""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from sbus_services.metrics import definitions
from sbus_services.metrics.exposition import (
    TEXT_TYPE,
    MissingLibraryError,
    TextFileError,
    check_name,
    negotiated,
    openmetrics,
    prometheus_text,
    replace,
)
from sbus_services.metrics.families import Family, bus_families
from sbus_services.metrics.snapshot import ask
from tests.unit.sbus_services.metrics.snapshots import Answers, totals

parse_text: Any = parser.text_string_to_metric_families
parse_openmetrics: Any = openmetrics_parser.text_string_to_metric_families

FORGED = 'x"} 5\nsbus_up{user="alice\\'


def families() -> list[Family]:
    """Return all kinds of metrics, of a user whose name is not harmless."""
    users = {1_000: ({"uid": 1_000, "connections": 4}, totals(1_000, (1 << 53) - 1))}
    return list(bus_families(ask(Answers(users), 100), {1_000: FORGED}, 0.25))


def values(metrics: Iterable[Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return each sample that a parser found."""
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for metric in metrics for sample in metric.samples}


def test_openmetrics_is_read_by_its_parser() -> None:
    found = list(parse_openmetrics(openmetrics(families()).decode()))
    kinds = {metric.name: (metric.type, metric.documentation) for metric in found}
    assert kinds == {each.metric.family: (each.metric.kind.value, each.metric.help) for each in families()}
    samples = values(found)
    assert samples[("sbus_user_received_packets_total", (("user", FORGED),))] == (1 << 53) - 1
    assert samples[("sbus_info", (("dataplane", "compiled"), ("version", "1.2")))] == 1
    assert samples[("sbus_up", ())] == 1


def test_both_formats_have_the_same_samples() -> None:
    assert values(parse_text(prometheus_text(families()).decode())) == values(parse_openmetrics(openmetrics(families()).decode()))


def test_no_type_is_unknown_in_the_older_format() -> None:
    """The parser of node_exporter rejects the whole file otherwise."""
    lines = [line for line in prometheus_text(families()).decode().splitlines() if line.startswith("# TYPE ")]
    assert {line.split()[3] for line in lines} == {"counter", "gauge"}


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=1,*/*;q=0.1", False),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5",
            True,
        ),
        ("text/plain, application/openmetrics-text", True),
        ("application/openmetrics-textual", False),
    ],
)
def test_the_format_is_negotiated(accept: str, is_openmetrics: bool) -> None:
    text, kind = negotiated(accept, families())
    assert text.endswith(b"# EOF\n") == is_openmetrics
    assert kind.startswith("application/openmetrics-text") if is_openmetrics else kind == TEXT_TYPE


def test_without_the_library_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *arguments)

    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingLibraryError, match="install the package python3-prometheus-client"):
        openmetrics(families())


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in definitions.METRICS:
        assert metric.name.startswith("sbus_")
        assert metric.name.endswith("_total") == (metric.kind is definitions.MetricType.COUNTER)
        assert metric.help.endswith(".")
        assert not {"connection", "pid", "key"} & set(metric.labels)


def test_the_file_is_replaced_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "sbus.prom"
    replace(path, b"one\n")
    before = path.stat()
    replace(path, b"two\n")
    assert (path.read_bytes(), path.stat().st_mode & 0o777, os.listdir(tmp_path)) == (b"two\n", 0o644, ["sbus.prom"])
    assert path.stat().st_ino != before.st_ino


def test_after_an_error_the_file_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sbus.prom"
    replace(path, b"one\n")

    def fail(*_: object) -> None:
        assert sorted(os.listdir(tmp_path))[-1] == "sbus.prom"
        assert [name for name in os.listdir(tmp_path) if name.endswith(".prom")] == ["sbus.prom"]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sbus_services.metrics.exposition.os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        replace(path, b"two\n")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"one\n", ["sbus.prom"])


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "no" / "a.prom"))):
        replace(tmp_path / "no" / "a.prom", b"")


def test_node_exporter_would_not_read_another_name() -> None:
    with pytest.raises(TextFileError, match=r"a\.txt: node_exporter reads only files whose names end with \.prom"):
        check_name(Path("a.txt"))
    check_name(Path("/x/a.prom"))
