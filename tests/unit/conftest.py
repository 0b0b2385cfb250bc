"""Switches and brokers in this process, for every test of this folder."""

from __future__ import annotations

from tests.support.bus_fixtures import bus, harness, make_bus, make_harness

__all__ = ["bus", "harness", "make_bus", "make_harness"]
