"""Switches and brokers in this process, for every test of this folder."""

from __future__ import annotations

from tests.support.bus_fixtures import make_parlour, make_world, parlour, world

__all__ = ["make_parlour", "make_world", "parlour", "world"]
