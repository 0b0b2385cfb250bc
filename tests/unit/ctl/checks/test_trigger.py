"""The checks of the trigger."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sbusd.ctl.checks import CheckResult, Finding, trigger
from sbusd.ctl.checks.trigger import FEEDS, UNIT, check_trigger
from tools.stage import ROOT

RULES = """
[[on]]
keys = ["systemd/unit/", "net/link/", "own/"]
from = ["root"]
name = "watch"
restart = "backup.service"

[[on]]
keys = "rpc/page"
from = ["*"]
start = "page@.service"
when = "no-service"
"""
RUNNING = {"ActiveState": "active", "UnitFileState": "enabled", "LoadState": "loaded"}
ALL = {
    UNIT: RUNNING,
    "backup.service": RUNNING,
    "page@x.service": RUNNING,
    "sbus-feed@systemd.service": RUNNING,
    "sbus-feed@netlink.service": RUNNING,
}

Shown = dict[str, Mapping[str, str]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """The units that systemd knows; a test changes them."""
    units: Shown = dict(ALL)
    monkeypatch.setattr(trigger, "shown_units", lambda scope, *names: {name: units[name] for name in names if name in units})
    return units


@pytest.fixture
def configure(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "trigger.toml"
        file.write_text(text)
        return file

    return write


def test_nothing_is_checked_where_it_is_not_used(shown: Shown, configure: Callable[[str], Path]) -> None:
    shown[UNIT] = {"ActiveState": "inactive", "UnitFileState": "disabled"}
    assert check_trigger("system", configure("")) == []


@pytest.mark.parametrize("state", ["not-found", "masked"])
def test_an_invalid_file_that_a_removed_package_left_is_no_failure(state: str, shown: Shown, configure: Callable[[str], Path]) -> None:
    file = configure("[[on]]\nkeys = 1\n")
    (finding,) = check_trigger("system", file)
    assert (finding.result, finding.advice) == (CheckResult.FAIL, f"correct {file}; see trigger.toml(5)")
    shown[UNIT] = {"LoadState": state}
    (finding,) = check_trigger("system", file)
    assert finding.result is CheckResult.SKIP
    assert "configuration without" in finding.reason


def test_all_is_well(shown: Shown, configure: Callable[[str], Path]) -> None:
    (finding,) = check_trigger("system", configure(RULES))
    assert (finding.result, finding.reason) == (CheckResult.OK, f"{UNIT} runs with 2 rules")


def test_a_feed_that_is_not_active(shown: Shown, configure: Callable[[str], Path]) -> None:
    shown["sbus-feed@systemd.service"] = {"ActiveState": "inactive"}
    shown["sbus-feed@netlink.service"] = {"ActiveState": "inactive", "LoadState": "masked"}
    _, *found = check_trigger("user", configure(RULES))
    assert [each.result for each in found] == [CheckResult.WARN] * 2
    assert {each.advice for each in found} == {
        "systemctl --user enable --now sbus-feed@systemd.service",
        "systemctl --user unmask sbus-feed@netlink.service; systemctl --user enable --now sbus-feed@netlink.service",
    }
    assert all('the rule "watch" waits for messages' in each.reason for each in found)


@pytest.mark.parametrize("name", ["backup.service", "page@x.service"])
def test_a_unit_that_does_not_exist(shown: Shown, configure: Callable[[str], Path], name: str) -> None:
    shown[name] = {"LoadState": "not-found", "ActiveState": "inactive"}
    _, finding = check_trigger("system", configure(RULES))
    assert (finding.check, finding.result) == ("trigger unit", CheckResult.WARN)
    assert f"names {name.replace('@x', '@')}, which systemd cannot use: not-found" in finding.reason


def test_a_unit_with_another_name_exists(shown: Shown, configure: Callable[[str], Path]) -> None:
    """systemctl shows an alias under the name of its unit."""
    shown["real.service"] = shown.pop("backup.service")
    assert len(check_trigger("system", configure(RULES))) == 1


@pytest.mark.parametrize(
    ("unit", "result", "words"),
    [
        ({"ActiveState": "failed", "UnitFileState": "enabled"}, CheckResult.FAIL, "is enabled, but failed"),
        ({"ActiveState": "inactive", "UnitFileState": "disabled"}, CheckResult.WARN, "2 rules, but sbus-trigger.service is not enabled"),
        ({}, CheckResult.WARN, "is not enabled"),
    ],
)
def test_a_service_that_does_not_run(
    shown: Shown, configure: Callable[[str], Path], unit: Mapping[str, str], result: CheckResult, words: str
) -> None:
    shown[UNIT] = unit
    finding, *_ = check_trigger("system", configure(RULES))
    assert finding.result is result
    assert words in finding.reason


def test_a_faulty_configuration(shown: Shown, configure: Callable[[str], Path]) -> None:
    (finding,) = check_trigger("system", configure("[[on]]\nkeys = 1\n"))
    assert finding.result is CheckResult.FAIL
    assert "trigger.toml" in finding.advice


def test_without_systemd(monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], Path]) -> None:
    monkeypatch.setattr(trigger, "shown_units", lambda *names: Finding("units", CheckResult.SKIP, "systemd is not the init system"))
    assert check_trigger("system", configure("")) == []
    (finding,) = check_trigger("system", configure(RULES))
    assert (finding.check, finding.result) == ("trigger", CheckResult.SKIP)


def test_the_feeds_are_those_of_the_program() -> None:
    text = (ROOT / "man/sbus-feed.8").read_text()
    assert set(FEEDS.values()) == set(re.findall(r"^\.Nm\n\.Cm (\w+)", text, re.MULTILINE))
    assert all(f"{head}/" in text for head in FEEDS)
