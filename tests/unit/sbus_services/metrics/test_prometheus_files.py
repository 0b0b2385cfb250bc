"""The alert rules and the dashboard: Prometheus' own tool reads the rules, and their queries use only metrics and labels that exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbus_services.metrics import definitions
from tests.support import skips
from tools.stage import ROOT

RULES = ROOT / "etc" / "prometheus" / "sbus.rules.yml"
DASHBOARD = ROOT / "etc" / "prometheus" / "sbus.dashboard.json"

METRICS = {metric.name: metric for metric in definitions.METRICS}

_RULE = re.compile(r"^      - alert: (\w+)\n        expr: (.*)$", re.MULTILINE)


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> Iterator[str]:
    """Yield each query of the rules and of the dashboard."""
    yield from (query for _, query in _RULE.findall(RULES.read_text()))
    for panel in panels():
        yield from (target["expr"] for target in panel.get("targets", []))


@pytest.mark.parametrize("query", [*queries()])
def test_queries_use_only_metrics_that_exist(query: str) -> None:
    names = re.findall(r"\bsbus_\w+", query)
    assert names
    assert set(names) <= set(METRICS)
    labels = {label for name in names for label in METRICS[name].labels}
    used = {label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in re.split(r", ?", group)}
    used |= set(re.findall(r"[{,](\w+)=~?\"", query))
    assert used - {"instance", "job"} <= labels
    if "rate(" in query or "increase(" in query:
        counted = re.findall(r"(?:rate|increase)\((\w+)", query)
        assert {METRICS[name].kind for name in counted} == {definitions.MetricType.COUNTER}


@pytest.mark.slow
def test_rules_are_valid() -> None:
    skips.require_program("promtool", "prometheus")
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(_RULE.findall(RULES.read_text()))} rules found" in done.stdout


def test_each_trouble_has_an_alert() -> None:
    alerts = dict(_RULE.findall(RULES.read_text()))
    assert len(alerts) == RULES.read_text().count("- alert:")
    used = " ".join(alerts.values())
    for metric in ("up", "start_time_seconds", "lost_packets_total", "user_blocked_seconds_total", "quota_refusals_total", "prefix_up"):
        assert f"sbus_{metric}" in used


_SERIES = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'sbus_up{{instance="a"}}', values: '0x20'}}
      - {{series: 'sbus_lost_packets_total{{instance="a"}}', values: '0+10x20'}}
      - {{series: 'sbus_quota_refusals_total{{instance="b"}}', values: '0 0 0 5x17'}}
      - {{series: 'sbus_user_blocked_seconds_total{{instance="a",user="bob"}}', values: '0+30x20'}}
      - {{series: 'sbus_user_descriptors{{instance="a",job="s",user="bob"}}', values: '95x20'}}
      - {{series: 'sbus_user_quota{{instance="a",job="s",user="bob",quota="connections"}}', values: '100x20'}}
      - {{series: 'sbus_start_time_seconds{{instance="a"}}', values: '0x5 360x5 720x8'}}
      - {{series: 'sbus_start_time_seconds{{instance="calm"}}', values: '-5000x20'}}
    alert_rule_test:
{alerts}
"""


@pytest.mark.slow
def test_alerts_fire(tmp_path: Path) -> None:
    """With promtool's own tests of rules, after twenty minutes of made-up series."""
    skips.require_program("promtool", "prometheus")
    fires = {
        "SbusDown": "{severity: critical, instance: a}",
        "SbusLosses": "{severity: warning, instance: a}",
        "SbusQuotaRefusals": None,  # the last refusal was more than ten minutes ago
        "SbusPublishersBlocked": "{severity: warning, instance: a, user: bob}",
        "SbusQuotaNearlyUsed": "{severity: warning, instance: a, job: s, user: bob}",
        "SbusRestarted": "{severity: info, instance: a}",
        "SbusMetricsMissing": None,
    }
    text = ""
    for name, labels in fires.items():
        text += f"      - eval_time: 19m\n        alertname: {name}\n"
        text += "" if labels is None else f"        exp_alerts: [{{exp_labels: {labels}, exp_annotations: {{}}}}]\n"
    text += "      - eval_time: 5m\n        alertname: SbusQuotaRefusals\n"
    text += "        exp_alerts: [{exp_labels: {severity: warning, instance: b}, exp_annotations: {}}]\n"
    path = tmp_path / "test.yml"
    path.write_text(_SERIES.format(rules=_without_annotations(tmp_path), alerts=text))
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _without_annotations(folder: Path) -> Path:
    """Return the rules without their texts, which contain numbers that Prometheus extrapolates."""
    path = folder / "rules.yml"
    path.write_text(re.sub(r"^        annotations:\n(?:          .*\n)+", "", RULES.read_text(), flags=re.MULTILINE))
    return path


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert {each["name"] for each in dashboard["templating"]["list"]} == {"datasource", "instance"}
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, f"{panel['title']} covers another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"]
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
            refs = [target["refId"] for target in panel["targets"]]
            assert len(set(refs)) == len(refs)


@pytest.mark.slow
def test_queries_of_the_dashboard_are_read_by_prometheus(tmp_path: Path) -> None:
    """As rules, which promtool can check; Grafana replaces its variables."""
    skips.require_program("promtool", "prometheus")
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for number, query in enumerate(target["expr"] for panel in panels() for target in panel.get("targets", [])):
        plain = query.replace("$__rate_interval", "5m").replace("$instance", ".*")
        lines += [f"      - record: dashboard:{number}", f"        expr: {json.dumps(plain)}"]
    path = tmp_path / "dashboard.yml"
    path.write_text("\n".join(lines) + "\n")
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
