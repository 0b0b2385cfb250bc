"""Checks the programs that connect hosts, if they are configured: the link with its NATS server, and the relay with its Redis."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from sbus.bus_documents import JsonObject
from sbus.protocol.errors import SbusError
from sbus_programs.config import configuration_files
from sbus_programs.config.certificates import validity_of
from sbus_programs.config.files import ConfigError, default_main_file
from sbus_programs.config.loading import load_settings
from sbus_programs.config.relay import REDIS, RelaySettings
from sbus_programs.systemd.service_user import acting_as_user_of
from sbusctl.checks import CheckResult, Finding
from sbusctl.checks.units import Unit, is_missing, repair_of, without_package
from sbusctl.formatting import human_date
from sbusctl.responses import mapping, text

DAY = 86_400.0

WARNING_SECONDS = 14 * DAY
"""A certificate is reported this long before its end."""


def judge_certificate(check: str, program: str, file: Path, clock: Callable[[], float] = time.time) -> Finding:
    """Judge when the certificate in *file* of *program* begins and ends. *check* names the finding; *clock* is for tests."""
    if (validity := validity_of(file)) is None:
        return Finding(check, CheckResult.SKIP, f"cannot read a certificate in {file}", f"run as root: {program} --check")
    (begin, end), now = validity, clock()
    renew = "renew the certificate, or check the clock"
    if now < begin:
        return Finding(
            check, CheckResult.FAIL, f"{file} is not valid yet: it begins in {_days(begin - now)}, on {human_date(begin)}", renew
        )
    if now > end:
        return Finding(check, CheckResult.FAIL, f"{file} ended {_days(now - end)} ago, on {human_date(end)}; other hosts reject it", renew)
    if end - now <= WARNING_SECONDS:
        reason = f"{file} ends in {_days(end - now)}, on {human_date(end)}; other hosts reject it then"
        return Finding(check, CheckResult.WARN, reason, renew)
    return Finding(check, CheckResult.OK, f"{file} ends in {_days(end - now)}, on {human_date(end)}")


def _days(seconds: float) -> str:
    """Return a duration as text."""
    return f"{seconds / DAY:.0f} days" if seconds >= 2 * DAY else f"{seconds / 3600:.1f} h"


RELAY_UNIT = "sbus-relay.service"


def check_relay(unit: Unit, main_file: Path | None = None) -> list[Finding]:
    """Return the findings for the Redis of the relay, if its *unit* runs, and for its certificate, if its configuration names one."""
    file = main_file or default_main_file("relay.toml")
    is_running = unit.get("ActiveState") in ("active", "reloading")
    try:
        with acting_as_user_of(RELAY_UNIT, file):
            settings = load_settings(file, RelaySettings)
            if settings.tls.is_on and is_missing(unit):
                return [without_package("sbus-relay", unit, file)]
            certificate = Path(settings.tls.certificate)
            certified = [judge_certificate("relay certificate", "sbus-relay", certificate)] if settings.tls.is_on else []
    except ConfigError as error:
        if is_missing(unit):
            return [without_package("sbus-relay", unit, file)]
        # A unit that does not run because of it has a finding of its own.
        return [Finding("relay.toml", CheckResult.FAIL, str(error), "see sbus-relay(8)")] if is_running else []
    return (check_redis(settings.redis) if is_running else []) + certified


def check_redis(redis: str) -> list[Finding]:
    """Return the finding for the Redis at *redis*, ``redis`` in relay.toml; an empty list if redis-py is not installed."""
    try:
        from sbus_services.relay.redis.status import read_status  # noqa: PLC0415 - redis-py is an optional package
    except ModuleNotFoundError:
        return []
    if redis == REDIS and os.geteuid():
        return [Finding("relay Redis", CheckResult.SKIP, "only root and the relay's user can use the relay's Redis")]
    try:
        read_status(redis)
    except SbusError as error:
        reason, _, advice = str(error).partition("; ")
        return [Finding("relay Redis", CheckResult.FAIL, f"calls between hosts wait: {reason}", advice)]
    return [Finding("relay Redis", CheckResult.OK, "it responds")]


LINK_UNIT = "sbus-link.service"

RULES = "50-link.toml"
"""The drop-in of the package with rights and rules for the link."""

SAFE_VERSIONS = ((2, 11, 16), (2, 12, 7))
"""The first versions of NATS without published vulnerabilities, of each series: CVE-2026-33218, CVE-2026-29785 and others."""


def is_link_configured(main_file: Path | None = None) -> bool:
    """Return whether this host has a configuration for the link, valid or not."""
    from sbus_programs.config.link import LinkSettings  # noqa: PLC0415 - needs pydantic, which is slow

    try:
        settings = load_settings(main_file or default_main_file("link.toml"), LinkSettings)
    except ConfigError:
        return True
    return bool(settings.realm or settings.host)


def check_link_settings(main_file: Path | None = None, bus_file: Path | None = None) -> list[Finding]:
    """Return the findings for the configuration of the link, and for the rules of the bus about it."""
    from sbus_programs.config.link import LinkSettings  # noqa: PLC0415

    try:
        file = main_file or default_main_file("link.toml")
        with acting_as_user_of(LINK_UNIT, file):
            tls = load_settings(file, LinkSettings).tls
            configured = [Finding("link.toml", CheckResult.OK, "the configuration of the link is valid")]
            if tls.is_on:
                configured.append(judge_certificate("link certificate", "sbus-link", Path(tls.certificate)))
    except ConfigError as error:
        configured = [Finding("link.toml", CheckResult.FAIL, str(error), "see link.toml(5)")]
    try:
        files = configuration_files(bus_file or default_main_file())
    except ConfigError as error:
        return [*configured, Finding("link rules", CheckResult.SKIP, str(error))]
    if any(file.name == RULES for file in files):
        return [*configured, Finding("link rules", CheckResult.OK, f"{RULES} protects the keys of the link")]
    reason = f"the bus does not read {RULES}: every user can forge messages of other hosts"
    advice = f"install the package sbus-link, or copy {RULES} to sbusd.toml.d"
    return [*configured, Finding("link rules", CheckResult.FAIL, reason, advice)]


def no_link(unit: Unit, reason: str) -> list[Finding]:
    """Return the finding if no link serves the bus. *unit* is that of the link."""
    advice = f"start it: systemctl enable --now {LINK_UNIT}"
    if unit.get("ActiveState") in ("failed", "activating"):
        advice = repair_of(unit, LINK_UNIT, "system")
    return [Finding("link", CheckResult.WARN, reason, advice)]


def judge_link(state: JsonObject) -> list[Finding]:
    """Return the findings for the *state* of the link, sbus-link(8)."""
    network = mapping(state, "network")
    if network.get("connected") is not True:
        reason = f"not connected: {text(network, 'last_error') or 'no reason is known'}"
        return [Finding("link", CheckResult.WARN, reason, "check servers or peers in link.toml, and the network")]
    findings = [Finding("link", CheckResult.OK, f"connected by {text(state, 'transport') or 'an unknown transport'}")]
    server, version = text(network, "server") or "", text(network, "server_version") or ""
    if server:
        findings.append(_judge_version(version))
    if network.get("encrypted") is not True and not _is_local(server):
        findings.append(
            Finding("link TLS", CheckResult.WARN, f"the connection to {server} is not encrypted", "set [tls] in link.toml, and use tls://")
        )
    return findings


def _judge_version(version: str) -> Finding:
    """Judge the version of the NATS server."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", version)
    if match is None:
        return Finding("nats-server", CheckResult.SKIP, f"unknown version {version!r}")
    found = (int(match[1]), int(match[2]), int(match[3]))
    least = next((each for each in SAFE_VERSIONS if each[:2] >= found[:2]), SAFE_VERSIONS[-1])
    if found >= least:
        return Finding("nats-server", CheckResult.OK, f"version {version}")
    needed = ".".join(map(str, least))
    reason = f"version {version} has published vulnerabilities, such as CVE-2026-33218"
    return Finding("nats-server", CheckResult.WARN, reason, f"upgrade it to {needed} or later, and let only the hosts reach its port")


def _is_local(server: str) -> bool:
    """Return whether the URL *server* is on this host."""
    host = urlsplit(server).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
