"""A short soak: see ``make soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.run import soak, started

SEED = 20261120


@pytest.mark.usefixtures("needs_root")
def test_every_message_is_accounted_for_and_no_resources_leak(folder: Path) -> None:
    bus = started(folder)
    try:
        figures = soak(bus, 20, SEED).figures
    finally:
        bus.check()
    assert figures["messages"] > 0
    assert figures["deliveries"] > 0
    assert figures["accounts balanced"] > 0
