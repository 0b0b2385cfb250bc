"""Runs a feed of D-Bus until a signal ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sbus import Bus, Scope
from sbus_programs.config.feed_dbus import DBusFeedSettings
from sbus_programs.systemd.event_loop import run_until_signal
from sbus_services.feeds.dbus.bus_output import BusOutput
from sbus_services.feeds.dbus.changes import ChangeTable
from sbus_services.feeds.dbus.connection import bus_address, check_library
from sbus_services.feeds.dbus.logind import LoginSource
from sbus_services.feeds.dbus.signal_feed import REQUEST, SignalFeed
from sbus_services.feeds.dbus.state_feed import StateCounters, StateFeed, StateSource
from sbus_services.feeds.dbus.systemd import ServiceManagerSource
from sbus_services.feeds.netlink.stored_values import PublishedKeys, StoredValues

STORED = {
    "systemd": ("systemd/unit/",),
    "logind": ("logind/session/", "logind/user/", "logind/seat/", "logind/prepare/", "logind/scheduled/"),
}
"""Patterns of the keys whose last values are stored, by the name of the feed, which is that of the stream."""


@dataclass(frozen=True, slots=True)
class Buses:
    """The message bus, and the D-Bus bus; *dbus_address* is None for the default."""

    address: str | None
    scope: Scope | None
    dbus_address: str | None = None

    def dbus(self, *, is_user: bool) -> str:
        """Return the address of the D-Bus bus, by default the user's if *is_user*. Raises DBusUnavailableError."""
        return self.dbus_address or bus_address(is_user=is_user)


def run_state_feed(
    name: Literal["systemd", "logind"],
    buses: Buses,
    log: Callable[[str], None],
    ready: Callable[[str], None],
    *,
    rate: int,
    has_addresses: bool = False,
) -> None:
    """Run the feed *name* until SIGTERM or SIGINT, with at most *rate* changes per second.

    Raises:
        MissingLibraryError: dbus-fast is not installed.
        SbusError: a bus is not running.
    """
    check_library()
    table, counters = ChangeTable(), StateCounters()
    request = f"{name}/request"
    # Sessions are those of the machine, also for a user bus.
    dbus = buses.dbus(is_user=name == "systemd" and buses.scope == "user")

    async def feed() -> None:
        source: StateSource = (
            ServiceManagerSource(table, counters) if name == "systemd" else LoginSource(table, counters, has_addresses=has_addresses)
        )
        keys = PublishedKeys(STORED[name])
        output = await BusOutput.connect(buses.address, buses.scope, request, log)
        try:
            with contextlib.closing(_stored_values(name, buses, keys, request, log)):
                await StateFeed(source, table, counters, output, address=dbus, log=log, ready=ready, rate=rate, keys=keys).run()
        finally:
            await output.close()

    run_until_signal(feed())


def run_signal_feed(settings: DBusFeedSettings, buses: Buses, log: Callable[[str], None], ready: Callable[[str], None]) -> None:
    """Run the feed of D-Bus signals until SIGTERM or SIGINT; raises as :func:`run_state_feed`."""
    check_library()
    dbus = buses.dbus(is_user=buses.scope == "user")

    async def feed() -> None:
        output = await BusOutput.connect(buses.address, buses.scope, REQUEST, log)
        try:
            await SignalFeed(settings, output, dbus, log, ready).run()
        finally:
            await output.close()

    run_until_signal(feed())


def _stored_values(name: str, buses: Buses, keys: PublishedKeys, request: str, log: Callable[[str], None]) -> StoredValues:
    """Return what keeps the last values in the store like the state, in a thread of its own."""
    bus = Bus.connect(buses.address, scope=buses.scope, timeout=None, reconnect=True)
    return StoredValues(bus, keys, log, request=request, stream=name, patterns=STORED[name])
