"""dbus-fast: signals with an array of bytes."""

from __future__ import annotations

import asyncio
from typing import Any

from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus

from tests.bench.peers.clients.run import END, END_SECONDS, Supply, Tally, Trips

_INTERFACE = "bench.Load"


async def _connect(address: str, *, subscribe: bool = False) -> Any:
    """Connect."""
    bus = await MessageBus(bus_address=f"unix:path={address}").connect()
    if subscribe:
        await bus.call(_call("org.freedesktop.DBus", "AddMatch", "s", [f"type='signal',interface='{_INTERFACE}'"]))
    return bus


def _call(interface: str, member: str, signature: str = "", body: Any = ()) -> Any:
    """Return a call of the daemon's own."""
    return Message(
        destination="org.freedesktop.DBus",
        path="/org/freedesktop/DBus",
        interface=interface,
        member=member,
        signature=signature,
        body=list(body),
    )


def _signal(payload: bytes) -> Any:
    """Return a message."""
    return Message(
        message_type=MessageType.SIGNAL, path="/bench/Load", interface=_INTERFACE, member="Message", signature="ay", body=[payload]
    )


async def publish(address: str, supply: Supply) -> None:
    """Hand the library 64 messages at a time, and wait until the daemon has read them: on a full socket the library ends the connection."""
    bus = await _connect(address)
    for group in supply.groups():
        for payload in group:
            bus.send(_signal(payload))
        await bus.call(_call("org.freedesktop.DBus.Peer", "Ping"))
    supply.finish()
    while True:
        await bus.send(_signal(END))
        await asyncio.sleep(END_SECONDS)


async def receive(address: str, tally: Tally) -> None:
    """Take messages in a handler."""
    bus = await _connect(address, subscribe=True)

    def take(message: Any) -> None:
        if message.interface == _INTERFACE:
            tally.take(message.body[0])

    bus.add_message_handler(take)
    tally.ready()
    await asyncio.Event().wait()


async def trip(address: str, trips: Trips) -> None:
    """From one connection to another."""
    source, drain = await _connect(address), await _connect(address, subscribe=True)
    queue: asyncio.Queue[Any] = asyncio.Queue()

    def take(message: Any) -> None:
        if message.interface == _INTERFACE:
            queue.put_nowait(message)

    drain.add_message_handler(take)
    for payload in trips:
        await source.send(_signal(payload))
        await queue.get()
