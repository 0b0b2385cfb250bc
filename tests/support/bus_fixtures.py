"""Small buses in this process, for tests of the daemon's modules."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sbus.protocol.keys import KeySpace
from sbus_programs.config.settings import DaemonSettings, LimitSettings
from sbusd.broker.access import BusOwnership
from tests.support.in_process_bus import InProcessBus, MakeBus
from tests.support.switch_harness import MakeHarness, SwitchHarness


@pytest.fixture
def make_harness() -> Iterator[MakeHarness]:
    """Create switch harnesses."""
    open_before = set(os.listdir("/proc/self/fd"))
    harnesses: list[SwitchHarness] = []

    def make(
        limits: LimitSettings | None = None, keyspace: KeySpace | None = None, of: type[SwitchHarness] = SwitchHarness
    ) -> SwitchHarness:
        harnesses.append(of(limits or LimitSettings(), keyspace or KeySpace()))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.check_balance()
        harness.close()
    assert set(os.listdir("/proc/self/fd")) <= open_before


@pytest.fixture
def harness(make_harness: MakeHarness) -> SwitchHarness:
    """A switch with the default limits."""
    return make_harness()


@pytest.fixture
def make_bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeBus]:
    """Create buses."""
    buses: list[InProcessBus] = []

    def make(settings: DaemonSettings | None = None, ownership: BusOwnership | None = None) -> InProcessBus:
        made = InProcessBus(settings, ownership)
        monkeypatch.setattr("sbusd.broker.fast_path.credentials_of", made.credentials_of)
        buses.append(made)
        return made

    yield make
    for bus in buses:
        bus.close()


@pytest.fixture
def bus(make_bus: MakeBus) -> InProcessBus:
    """A bus with the default settings."""
    return make_bus()
