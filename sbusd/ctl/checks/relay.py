"""Checks the relay: its certificate, and that its Redis responds: the relay runs without it, and waits."""

from __future__ import annotations

import os
from pathlib import Path

from sbusd.config.files import ConfigError, default_main_file
from sbusd.config.loading import load_settings
from sbusd.config.relay import REDIS, RelaySettings
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.certificates import judge_certificate
from sbusd.ctl.checks.units import Unit, is_missing, without_package
from sbusd.protocol.errors import SbusError
from sbusd.systemd.service_user import acting_as_user_of

UNIT = "sbus-relay.service"


def check_relay(unit: Unit, main_file: Path | None = None) -> list[Finding]:
    """Return the findings for the Redis of the relay, if its *unit* runs, and for its certificate, if its configuration names one."""
    file = main_file or default_main_file("relay.toml")
    is_running = unit.get("ActiveState") in ("active", "reloading")
    try:
        with acting_as_user_of(UNIT, file):
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
        from sbusd.relay.redis.status import read_status  # noqa: PLC0415 - redis-py is an optional package
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
