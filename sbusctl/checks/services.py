"""Checks services: the rights, the files, and what is special to blobs, metrics and the trigger."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from sbus.protocol.blobs import blob_address
from sbus_programs.config import ConfigError, check_daemon_settings, default_main_file
from sbus_programs.config.loading import load_settings
from sbus_programs.config.metrics import MetricsSettings
from sbus_programs.config.trigger import TriggerRule, TriggerSettings
from sbus_programs.systemd.service_user import acting_as_user_of
from sbus_services.metrics.exposition import MissingLibraryError, check_library
from sbusctl.checks import CheckResult, Finding
from sbusctl.checks.units import (
    Scope,
    Unit,
    failure_of,
    is_enabled,
    is_missing,
    repair_of,
    shown_units,
    systemctl_of,
    without_package,
)
from sbusctl.formatting import human_plural


def check_rights(
    service: str, scope: Literal["system", "user"], effects: Mapping[str, str], main_file: Path | None = None, user: str = ""
) -> list[Finding]:
    """Return the findings for the rights of *service*: *effects* has for each right what fails without it.

    On the system bus the service has the *user* of its own name by default. On the user bus it runs as this user, an owner, with the
    right presence by default.
    """
    check = f"{service} rights"
    needed = [name for name in effects if not (scope == "user" and name == "presence")]
    if not needed:
        return []
    try:
        account = pwd.getpwuid(os.geteuid()) if scope == "user" else pwd.getpwnam(user or service)
    except KeyError:
        return [Finding(check, CheckResult.WARN, f"the user {user or service} does not exist", f"install the package {service}")]
    file = main_file or default_main_file(user_bus=scope == "user")
    try:
        with acting_as_user_of("sbus.service", file):
            rights = check_daemon_settings(file).settings.rights
    except (ConfigError, OSError) as error:
        return [Finding(check, CheckResult.SKIP, f"the configuration of the bus cannot be read: {error}")]
    groups = {account.pw_gid, *os.getgrouplist(account.pw_name, account.pw_gid)}
    missing = []
    for name in needed:
        subjects = getattr(rights, name)
        if account.pw_uid not in subjects.users and not groups & set(subjects.groups):
            missing.append(name)
    if not missing:
        return [Finding(check, CheckResult.OK, f"{account.pw_name} has: {' '.join(needed)}")]
    return [
        Finding(
            check,
            CheckResult.FAIL,
            f"user {account.pw_name} does not have the right {name}: {effects[name]}",
            f'add to [rights] in {file}: {name} = {{ users = ["{account.pw_name}"] }}, and reload the bus',
        )
        for name in missing
    ]


BLOB_SOCKET = "sbus-blob.socket"

BLOB_EFFECTS = {"presence": "blobs cannot be given to a single connection"}
"""What fails without a right."""


def check_blobs(unit: Unit, bus: str, scope: Literal["system", "user"]) -> list[Finding]:
    """Return the findings for the socket next to the bus at *bus*; an empty list without a socket and if its *unit* is not enabled."""
    address = blob_address(bus)
    try:
        is_socket = stat.S_ISSOCK(os.stat(address).st_mode)
    except OSError:
        is_socket = False
    if is_missing(unit) or (not is_enabled(unit) and not is_socket):
        return []
    return [judge_blob_socket(unit, address, scope, is_socket=is_socket), *check_rights("sbus-blob", scope, BLOB_EFFECTS)]


def judge_blob_socket(unit: Unit, address: str, scope: Literal["system", "user"], *, is_socket: bool) -> Finding:
    """Judge the socket at *address*."""
    systemctl = systemctl_of(scope)
    if not is_socket:
        state = unit.get("ActiveState") or "unknown"
        reason = f"{BLOB_SOCKET} is enabled, but the socket {address} does not exist ({state}): large messages fail"
        return Finding("blob socket", CheckResult.FAIL, reason, f"{systemctl} restart {BLOB_SOCKET}")
    if unit.get("LoadState") == "loaded" and unit.get("ActiveState") != "active":
        reason = f"{address} exists, but {BLOB_SOCKET} is {unit.get('ActiveState') or 'unknown'}: nothing may listen"
        return Finding("blob socket", CheckResult.WARN, reason, f"{systemctl} restart {BLOB_SOCKET}")
    return Finding("blob socket", CheckResult.OK, address)


METRICS_UNIT = "sbus-metrics.socket"

METRICS_SERVICE = "sbus-metrics"

METRICS_SOCKET = "/run/sbus-metrics.socket"
"""The Unix socket of the unit."""

SCRAPE_SECONDS = 10.0
"""Time limit for a scrape: that of Prometheus, and longer than the endpoint waits for the bus."""

MAX_SCRAPE_BYTES = 16 << 20
"""Most that is read of a response."""

METRICS_RIGHT = {"stats": "a scrape has no metrics of the bus"}
PREFIXES_RIGHT = {"tap": "messages of the prefixes in metrics.toml are not counted"}
"""What fails without a right."""


def check_metrics(unit: Unit, main_file: Path | None = None) -> list[Finding]:
    """Return the findings for the endpoint of the system bus; an empty list if its *unit* is not enabled, active or failed."""
    if is_missing(unit) or (not is_enabled(unit) and unit.get("ActiveState") not in ("active", "failed")):
        return []
    try:
        check_library()
    except MissingLibraryError as error:
        return [Finding("metrics", CheckResult.FAIL, str(error))]
    file = main_file or default_main_file("metrics.toml")
    try:
        with acting_as_user_of("sbus-metrics.service", file):
            settings = load_settings(file, MetricsSettings)
    except ConfigError as error:
        return [Finding("metrics", CheckResult.FAIL, str(error), f"correct {file}")]
    rights = check_rights(METRICS_SERVICE, "system", METRICS_RIGHT | (PREFIXES_RIGHT if settings.prefixes else {}))
    # A socket unit that is not active has a finding of its own.
    scraped = [check_scrape()] if unit.get("ActiveState") == "active" else []
    return [Finding("metrics", CheckResult.OK, str(file)), *rights, *scraped]


def check_scrape(path: str = METRICS_SOCKET, seconds: float = SCRAPE_SECONDS) -> Finding:
    """Scrape once over the Unix socket at *path*, within *seconds*, and judge the response."""
    advice = "see: journalctl -u sbus-metrics.service"
    try:
        head, _, body = _get(path, seconds).partition(b"\r\n\r\n")
    except TimeoutError:
        return Finding("metrics scrape", CheckResult.FAIL, f"{path}: no complete response within {seconds:g} s", advice)
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
        return Finding("metrics scrape", CheckResult.FAIL, reason, f"systemctl restart {METRICS_UNIT}; {advice}")
    status = head.partition(b"\r\n")[0].decode("ascii", "replace").partition(" ")[2]
    if status.startswith("403"):
        return Finding("metrics scrape", CheckResult.SKIP, "this user may not scrape: run sbusctl doctor as root")
    if not status.startswith("200"):
        return Finding("metrics scrape", CheckResult.FAIL, f"{path}: {status or 'no response of HTTP'}", advice)
    if b"\nsbus_up 1" not in body:
        return Finding("metrics scrape", CheckResult.FAIL, "the response has no metrics of the bus", advice)
    return Finding("metrics scrape", CheckResult.OK, f"{path}: {len(body)} bytes")


def _get(path: str, seconds: float) -> bytes:
    """Return the response to a request for the metrics. Raises OSError; TimeoutError after *seconds*."""
    until = time.monotonic() + seconds
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as scraper:
        scraper.settimeout(seconds)
        scraper.connect(path)
        scraper.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        response = bytearray()
        while len(response) < MAX_SCRAPE_BYTES:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            scraper.settimeout(remaining)
            part = scraper.recv(1 << 16)
            if not part:
                break
            response += part
    return bytes(response)


_STARTERS = {"sbus-blob.service": "sbus-blob.socket"}
"""The unit that is enabled, if it is not the service."""


def check_files(scope: Scope, folder: Path | None = None) -> list[Finding]:
    """Return a finding for each service of *scope* that is on and whose configuration, in *folder* or the default one, is not usable.

    Root reads the files of the machine as the user of the service.
    """
    kinds = _kinds(scope)
    shown = shown_units(scope, *kinds, *_STARTERS.values())
    if isinstance(shown, Finding):
        return []
    found = []
    for service, (name, kind) in kinds.items():
        unit = shown.get(service, {})
        if is_missing(unit) or not (_is_on(unit) or _is_on(shown.get(_STARTERS.get(service, ""), {}))):
            continue
        file = default_main_file(name, user_bus=scope == "user") if folder is None else folder / name
        with acting_as_user_of(service, file) as reader:
            try:
                load_settings(file, kind)
            except ConfigError as error:
                found.append(_judge(name, error, reader))
    return found


def _kinds(scope: Scope) -> dict[str, tuple[str, type]]:
    """Return the name of the main file and the type of the settings of each service."""
    from sbus_programs.config.blob import BlobSettings  # noqa: PLC0415 - settings need pydantic, which is slow
    from sbus_programs.config.feed_dbus import DBusFeedSettings  # noqa: PLC0415
    from sbus_programs.config.live import LiveSettings  # noqa: PLC0415
    from sbus_programs.config.recorder import RecorderSettings  # noqa: PLC0415
    from sbus_programs.config.ship import ShipSettings  # noqa: PLC0415

    both = {"sbus-blob.service": ("blob.toml", BlobSettings), "sbus-feed@dbus.service": ("feed-dbus.toml", DBusFeedSettings)}
    if scope == "user":
        return both
    return both | {
        "sbus-recorder.service": ("recorder.toml", RecorderSettings),
        "sbus-ship.service": ("ship.toml", ShipSettings),
        "sbus-live.service": ("live.toml", LiveSettings),
    }


def _is_on(unit: Unit) -> bool:
    """Return whether *unit* is enabled or runs."""
    return is_enabled(unit) or unit.get("ActiveState") == "active"


def _judge(name: str, error: ConfigError, reader: str) -> Finding:
    """Return the finding for *error* in the file *name*, which was read as the user *reader*, or as the caller if that is empty."""
    is_hidden = os.path.lexists(error.file) and not os.access(error.file, os.R_OK, effective_ids=True)
    if is_hidden and not reader:
        return Finding(name, CheckResult.SKIP, f"{error.file} is not readable by this user")
    advice = f"let the user {reader} read {error.file}" if is_hidden else f"correct {error.file}"
    return Finding(name, CheckResult.FAIL, f"{error}: the next start of its service would fail", advice)


TRIGGER = "sbus-trigger.service"

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
    shown = shown_units(
        scope, TRIGGER, *sorted({shown_unit_of(rule) for rule in rules} | {feed for rule in rules for feed in feeds_of(rule)})
    )
    if isinstance(shown, Finding):
        return invalid or ([Finding("trigger", shown.result, shown.reason, shown.advice)] if rules else [])
    unit = shown.get(TRIGGER, {})
    if is_missing(unit):
        return [without_package("sbus-trigger", unit, file)] if rules or invalid else []
    if invalid:
        return invalid
    if not rules and not is_enabled(unit):
        return []
    systemctl = systemctl_of(scope)
    return [judge_trigger(unit, len(rules), scope), *judge_units(rules, shown), *judge_feeds(rules, shown, systemctl)]


def shown_unit_of(rule: TriggerRule) -> str:
    """Return the unit of *rule*; of a template, which systemd shows only with an instance, the instance ``x``."""
    return rule.unit.replace("@.", "@x.") if rule.is_template else rule.unit


def feeds_of(rule: TriggerRule) -> list[str]:
    """Return the units of the feeds that publish keys of *rule*."""
    if rule.when == "no-service":
        return []
    heads = dict.fromkeys(key.partition("/")[0] for key in rule.keys)
    return [f"sbus-feed@{FEEDS[head]}.service" for head in heads if head in FEEDS]


def judge_trigger(unit: Unit, rules: int, scope: Scope) -> Finding:
    """Judge the service of the trigger; *rules* is the number of its rules."""
    systemctl = systemctl_of(scope)
    state = unit.get("ActiveState") or "unknown"
    if state == "active":
        return Finding("trigger", CheckResult.OK, f"{TRIGGER} runs with {human_plural(rules, 'rule')}")
    if is_enabled(unit):
        why = f": {failure_of(unit, scope)}" if state in ("failed", "activating") else ""
        advice = repair_of(unit, TRIGGER, scope) if why else f"{systemctl} restart {TRIGGER}"
        return Finding("trigger", CheckResult.FAIL, f"{TRIGGER} is enabled, but {state}{why}", advice)
    reason = f"trigger.toml has {human_plural(rules, 'rule')}, but {TRIGGER} is not enabled"
    return Finding("trigger", CheckResult.WARN, reason, f"{systemctl} enable --now {TRIGGER}")


def judge_units(rules: Sequence[TriggerRule], shown: Mapping[str, Unit]) -> list[Finding]:
    """Return a finding for each unit of *rules* that systemd cannot start. A unit with another name is *shown* only with that name."""
    found = []
    for name, naming in {shown_unit_of(rule): rule for rule in rules}.items():
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
