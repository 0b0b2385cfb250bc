"""Small buses in this process, for tests of the daemon's modules."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sbusd.broker.admission import BusOwnership
from sbusd.config.settings import DaemonSettings, LimitSettings
from sbusd.protocol.keys import KeySpace
from tests.support.parlour import MakeParlour, Parlour
from tests.support.world import MakeWorld, World


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    """Make worlds."""
    open_before = set(os.listdir("/proc/self/fd"))
    worlds: list[World] = []

    def make(limits: LimitSettings | None = None, keyspace: KeySpace | None = None, of: type[World] = World) -> World:
        worlds.append(of(limits or LimitSettings(), keyspace or KeySpace()))
        return worlds[-1]

    yield make
    for world in worlds:
        world.check_balance()
        world.close()
    assert set(os.listdir("/proc/self/fd")) <= open_before


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """One world with the default limits."""
    return make_world()


@pytest.fixture
def make_parlour(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeParlour]:
    """Make brokers."""
    parlours: list[Parlour] = []

    def make(settings: DaemonSettings | None = None, ownership: BusOwnership | None = None) -> Parlour:
        made = Parlour(settings, ownership)
        monkeypatch.setattr("sbusd.broker.fast_path.credentials_of", made.credentials_of)
        parlours.append(made)
        return made

    yield make
    for parlour in parlours:
        parlour.close()


@pytest.fixture
def parlour(make_parlour: MakeParlour) -> Parlour:
    """One broker with the default settings."""
    return make_parlour()
