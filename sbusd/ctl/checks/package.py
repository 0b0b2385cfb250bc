"""Was this Python package built, or is it a bare tree?"""

from __future__ import annotations

from sbusd.client import message_batch
from sbusd.ctl.checks.finding import Finding, Result


def check_package() -> Finding:
    """Return whether the Python client has its compiled part, without which it works and is slow."""
    if message_batch.IS_COMPILED:
        return Finding("client", Result.OK, "the Python client uses its compiled extension")
    return Finding(
        "client",
        Result.WARN,
        "the compiled extension of the Python client is missing: receiving is several times slower",
        "reinstall the package, or build the source tree: make build",
    )
