"""Checks the endpoint for metrics: its configuration, its library, its rights, and one scrape."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

from sbusd.config.files import ConfigError, default_main_file
from sbusd.config.loading import load_settings
from sbusd.config.metrics import MetricsSettings
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.rights import check_rights
from sbusd.ctl.checks.units import Unit, is_enabled, is_missing
from sbusd.metrics.exposition import MissingLibraryError, check_library
from sbusd.systemd.service_user import acting_as_user_of

UNIT = "sbus-metrics.socket"

SERVICE = "sbus-metrics"

SOCKET = "/run/sbus-metrics.socket"
"""The Unix socket of the unit."""

SCRAPE_SECONDS = 10.0
"""Time limit for a scrape: that of Prometheus, and longer than the endpoint waits for the bus."""

MAX_BYTES = 16 << 20
"""Most that is read of a response."""

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
    rights = check_rights(SERVICE, "system", STATS | (TAP if settings.prefixes else {}))
    # A socket unit that is not active has a finding of its own.
    scraped = [check_scrape()] if unit.get("ActiveState") == "active" else []
    return [Finding("metrics", CheckResult.OK, str(file)), *rights, *scraped]


def check_scrape(path: str = SOCKET, seconds: float = SCRAPE_SECONDS) -> Finding:
    """Scrape once over the Unix socket at *path*, within *seconds*, and judge the response."""
    advice = "see: journalctl -u sbus-metrics.service"
    try:
        head, _, body = _get(path, seconds).partition(b"\r\n\r\n")
    except TimeoutError:
        return Finding("metrics scrape", CheckResult.FAIL, f"{path}: no complete response within {seconds:g} s", advice)
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
        return Finding("metrics scrape", CheckResult.FAIL, reason, f"systemctl restart {UNIT}; {advice}")
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
        while len(response) < MAX_BYTES:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            scraper.settimeout(remaining)
            part = scraper.recv(1 << 16)
            if not part:
                break
            response += part
    return bytes(response)
