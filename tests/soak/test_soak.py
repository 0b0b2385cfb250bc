"""A short soak: see ``make soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.run import soak, started

SEED = 20261120
SECONDS = 4
"""Enough for clients of all kinds to come and go some times."""


@pytest.mark.usefixtures("needs_root")
def test_every_message_is_accounted_for_and_no_resources_leak(folder: Path) -> None:
    bus = started(folder)
    try:
        figures = soak(bus, SECONDS, SEED).figures
    finally:
        bus.check()
    assert figures["messages"] > 0
    assert figures["deliveries"] > 0
    assert figures["accounts balanced"] > 0
