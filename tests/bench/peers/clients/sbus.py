"""sbus's ``Bus``: a message at a time, together (coalesced, and taken in lists), and with ``gather``."""

from __future__ import annotations

import time

from sbus import Bus, Message
from tests.bench.peers.clients.run import END, END_SECONDS, Supply, Tally, Trips

KEY = b"bench/load"


def publish(address: str, supply: Supply) -> None:
    """Publish each message by itself."""
    with Bus.connect(address) as bus:
        for payload in supply:
            bus.publish(KEY, payload)
        _end(bus, supply)


def publish_together(address: str, supply: Supply) -> None:
    """Publish within ``coalesce``."""
    with Bus.connect(address) as bus:
        with bus.coalesce():
            for payload in supply:
                bus.publish(KEY, payload)
        _end(bus, supply)


def publish_gather(address: str, supply: Supply) -> None:
    """Publish each message by itself; the client gathers what it writes."""
    with Bus.connect(address, gather=True) as bus:
        for payload in supply:
            bus.publish(KEY, payload)
        _end(bus, supply)


def _end(bus: Bus, supply: Supply) -> None:
    """Say that this was all."""
    supply.finish()
    while True:
        bus.publish(KEY, END)
        time.sleep(END_SECONDS)


def receive(address: str, tally: Tally) -> None:
    """Iterate; a gap is not a message, so its messages count as missing."""
    with Bus.connect(address) as bus, bus.subscribe(KEY) as subscription:
        tally.ready()
        for message in subscription:
            tally.take(message.payload)


def receive_together(address: str, tally: Tally) -> None:
    """Iterate over lists of what is there."""
    with Bus.connect(address) as bus, bus.subscribe(KEY) as subscription:
        tally.ready()
        for items in subscription.batches():
            for item in items:
                if isinstance(item, Message):
                    tally.take(item.payload)


def trip(address: str, trips: Trips) -> None:
    """From one connection to another."""
    with Bus.connect(address) as source:
        _trip(source, address, trips)


def trip_gather(address: str, trips: Trips) -> None:
    """From a connection that gathers to another."""
    with Bus.connect(address, gather=True) as source:
        _trip(source, address, trips)


def _trip(source: Bus, address: str, trips: Trips) -> None:
    """Send from *source* to another connection."""
    with Bus.connect(address) as drain, drain.subscribe(KEY) as subscription:
        for payload in trips:
            source.publish(KEY, payload)
            subscription.receive()
