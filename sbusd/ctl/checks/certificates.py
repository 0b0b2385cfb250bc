"""Checks how long the certificates of this host are valid, which other hosts verify."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from sbusd.config.certificates import validity_of
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.formatting import human_date

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
