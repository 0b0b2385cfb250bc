"""Was this Python package built, or is it a bare tree?"""

from __future__ import annotations

from sbusd.client import message_batch
from sbusd.ctl.checks.finding import Finding, Result


def check_package() -> Finding:
    """Return whether the Python client has its compiled part, without which it works and is slow."""
    if message_batch.IS_COMPILED:
        return Finding("client", Result.OK, "the Python client has its compiled part")
    return Finding(
        "client",
        Result.WARN,
        "the Python client lacks its compiled part, so receiving is several times slower",
        "install the package anew, or build the tree: make build",
    )
