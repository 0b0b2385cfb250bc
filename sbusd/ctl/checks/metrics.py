"""Checks the endpoint for metrics: its configuration, its library, and its rights."""

from __future__ import annotations

from pathlib import Path

from sbusd.config.files import ConfigError, default_main_file, load_settings
from sbusd.config.metrics import MetricsSettings
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.rights import check_rights
from sbusd.ctl.checks.units import Unit, is_enabled, is_missing
from sbusd.metrics.exposition import MissingLibraryError, check_library
from sbusd.systemd.service_user import acting_as_user_of

UNIT = "sbus-metrics.socket"

SERVICE = "sbus-metrics"

STATS = {"stats": "a scrape has no metrics of the bus"}
TAP = {"tap": "messages of the prefixes in metrics.toml are not counted"}
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
    return [Finding("metrics", CheckResult.OK, str(file)), *check_rights(SERVICE, "system", STATS | (TAP if settings.prefixes else {}))]
