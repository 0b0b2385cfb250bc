"""Checks the trigger: its service, the units that its rules name, and the feeds whose messages they wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from sbusd.config.files import ConfigError, default_main_file
from sbusd.config.loading import load_settings
from sbusd.config.trigger import TriggerRule, TriggerSettings
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.units import Scope, Unit, failure_of, is_enabled, is_missing, repair_of, shown_units, systemctl_of, without_package
from sbusd.ctl.formatting import human_plural

UNIT = "sbus-trigger.service"

FEEDS = {"net": "netlink", "udev": "udev", "journal": "journal", "systemd": "systemd", "logind": "logind", "dbus": "dbus"}
"""The feeds, by the first segment of their keys, sbus-feed(8)."""


def check_trigger(scope: Literal["system", "user"], main_file: Path | None = None) -> list[Finding]:
    """Return the findings for the trigger of *scope*; none if its service is not enabled and its configuration has no rule."""
    file = main_file or default_main_file("trigger.toml", user_bus=scope == "user")
    rules: Sequence[TriggerRule] = ()
    invalid: list[Finding] = []
    try:
        rules = load_settings(file, TriggerSettings).rules
    except ConfigError as error:
        invalid = [Finding("trigger", CheckResult.FAIL, str(error), f"correct {file}; see trigger.toml(5)")]
    shown = shown_units(scope, UNIT, *sorted({unit_of(rule) for rule in rules} | {feed for rule in rules for feed in feeds_of(rule)}))
    if isinstance(shown, Finding):
        return invalid or ([Finding("trigger", shown.result, shown.reason, shown.advice)] if rules else [])
    unit = shown.get(UNIT, {})
    if is_missing(unit):
        return [without_package("sbus-trigger", unit, file)] if rules or invalid else []
    if invalid:
        return invalid
    if not rules and not is_enabled(unit):
        return []
    systemctl = systemctl_of(scope)
    return [judge_service(unit, len(rules), scope), *judge_units(rules, shown), *judge_feeds(rules, shown, systemctl)]


def unit_of(rule: TriggerRule) -> str:
    """Return the unit of *rule*; of a template, which systemd shows only with an instance, the instance ``x``."""
    return rule.unit.replace("@.", "@x.") if rule.is_template else rule.unit


def feeds_of(rule: TriggerRule) -> list[str]:
    """Return the units of the feeds that publish keys of *rule*."""
    if rule.when == "no-service":
        return []
    heads = dict.fromkeys(key.partition("/")[0] for key in rule.keys)
    return [f"sbus-feed@{FEEDS[head]}.service" for head in heads if head in FEEDS]


def judge_service(unit: Unit, rules: int, scope: Scope) -> Finding:
    """Judge the service of the trigger; *rules* is the number of its rules."""
    systemctl = systemctl_of(scope)
    state = unit.get("ActiveState") or "unknown"
    if state == "active":
        return Finding("trigger", CheckResult.OK, f"{UNIT} runs with {human_plural(rules, 'rule')}")
    if is_enabled(unit):
        why = f": {failure_of(unit, scope)}" if state in ("failed", "activating") else ""
        advice = repair_of(unit, UNIT, scope) if why else f"{systemctl} restart {UNIT}"
        return Finding("trigger", CheckResult.FAIL, f"{UNIT} is enabled, but {state}{why}", advice)
    reason = f"trigger.toml has {human_plural(rules, 'rule')}, but {UNIT} is not enabled"
    return Finding("trigger", CheckResult.WARN, reason, f"{systemctl} enable --now {UNIT}")


def judge_units(rules: Sequence[TriggerRule], shown: Mapping[str, Unit]) -> list[Finding]:
    """Return a finding for each unit of *rules* that systemd cannot start. A unit with another name is *shown* only with that name."""
    found = []
    for name, naming in {unit_of(rule): rule for rule in rules}.items():
        state = shown.get(name, {}).get("LoadState", "loaded")
        if state != "loaded":
            reason = f'the rule "{naming.title}" names {naming.unit}, which systemd cannot use: {state}'
            found.append(Finding("trigger unit", CheckResult.WARN, reason, "create the unit, or correct trigger.toml; then reload systemd"))
    return found


def judge_feeds(rules: Sequence[TriggerRule], shown: Mapping[str, Unit], systemctl: str) -> list[Finding]:
    """Return a finding for each feed that is not active though *rules* wait for its messages."""
    found = []
    for feed, waiting in {feed: rule for rule in rules for feed in feeds_of(rule)}.items():
        state = shown.get(feed, {}).get("ActiveState") or "unknown"
        if state not in ("active", "reloading", "activating"):
            reason = f'the rule "{waiting.title}" waits for messages of {feed}, which is {state}'
            advice = f"{systemctl} enable --now {feed}"
            load = shown.get(feed, {}).get("LoadState")
            if load == "masked":
                advice = f"{systemctl} unmask {feed}; {advice}"
            elif load == "not-found":
                advice = "install the package sbusd, which has the feeds"
            elif state == "failed":
                # Its own finding says what to do first.
                advice = f"remove the cause, then: {systemctl} reset-failed {feed}; {systemctl} restart {feed}"
            found.append(Finding("trigger feed", CheckResult.WARN, reason, advice))
    return found
