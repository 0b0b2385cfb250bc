"""A private D-Bus bus for tests, and services on it that answer calls and send signals."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus

Reply = tuple[str, list[Any]]
"""The signature and the values of a reply."""

Handler = Callable[[str, Sequence[Any]], Reply]
"""Answers a call: it gets the path and the arguments. LookupError becomes the error UnknownObject."""

PROPERTIES = "org.freedesktop.DBus.Properties"

_CONFIGURATION = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""


class DBusDaemon:
    """A D-Bus bus of its own, which can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "dbus-socket"
        self._configuration = folder / "dbus.conf"
        self._configuration.write_text(_CONFIGURATION.format(path=self._socket))
        self.address = f"unix:path={self._socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._socket.unlink(missing_ok=True)
        read, write = os.pipe()
        command = ["dbus-daemon", "--nofork", "--nopidfile", f"--config-file={self._configuration}", f"--print-address={write}"]
        self._process = subprocess.Popen(command, pass_fds=[write])
        os.close(write)
        try:
            assert select.select([read], [], [], 60)[0], "dbus-daemon does not start"
            assert os.read(read, 4096), "dbus-daemon has ended"
        finally:
            os.close(read)
        # Other users of the tests connect too.
        self._socket.chmod(0o777)

    def stop(self) -> None:
        """Kill it: clients see the end of their connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def dbus_daemon(folder: Path) -> Iterator[DBusDaemon]:
    """Run a D-Bus bus."""
    daemon = DBusDaemon(folder)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


class DBusService:
    """A connection to a D-Bus bus that owns a name, answers calls, and sends signals."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self.handlers: dict[str, Handler] = {}
        """By the name of the method."""
        self.calls: list[tuple[str, str]] = []
        """The path and the method of each call."""
        bus.add_message_handler(self._answer)

    @classmethod
    async def connect(cls, address: str, name: str = "") -> Self:
        """Connect to the bus at *address*, and own *name*."""
        service = cls(await MessageBus(bus_address=address).connect())
        if name:
            await service.own(name)
        return service

    async def own(self, name: str) -> None:
        """Own a name."""
        await self._bus.request_name(name)

    async def disown(self, name: str) -> None:
        """Give a name back."""
        await self._bus.release_name(name)

    async def ask(self, member: str) -> Any:
        """Return the reply of the bus to a question without arguments."""
        name = "org.freedesktop.DBus"
        reply = await self._bus.call(Message(destination=name, path="/org/freedesktop/DBus", interface=name, member=member))
        assert reply is not None
        return reply.body[0]

    async def flush(self) -> None:
        """Wait until the bus has read all signals. The library disconnects when the socket has no room, so do this after some hundred."""
        await self.ask("GetId")

    @property
    def unique_name(self) -> str:
        """The unique name of the connection."""
        return str(self._bus.unique_name)

    def emit(
        self, path: str, interface: str, member: str, signature: str = "", *body: Any, destination: str | None = None
    ) -> asyncio.Future[Any]:
        """Send a signal, to all or to *destination*. Await the result after a large one: the library sends no other meanwhile."""
        sent: asyncio.Future[Any] = self._bus.send(
            Message(
                message_type=MessageType.SIGNAL,
                destination=destination,
                path=path,
                interface=interface,
                member=member,
                signature=signature,
                body=list(body),
            )
        )
        return sent

    def emit_changed(self, path: str, interface: str, changed: Mapping[str, tuple[str, Any]], *, destination: str | None = None) -> None:
        """Send PropertiesChanged; each value has its signature."""
        variants = {name: Variant(*value) for name, value in changed.items()}
        self.emit(path, PROPERTIES, "PropertiesChanged", "sa{sv}as", interface, variants, [], destination=destination)

    def close(self) -> None:
        """Close the connection."""
        self._bus.disconnect()

    def _answer(self, message: Message) -> Message | bool | None:
        """Answer a call."""
        if message.message_type is not MessageType.METHOD_CALL:
            return None
        self.calls.append((message.path or "", message.member or ""))
        handler = self.handlers.get(message.member or "")
        if handler is None:
            return Message.new_error(message, "org.freedesktop.DBus.Error.UnknownMethod", f"no method {message.member}")
        try:
            signature, body = handler(message.path or "", message.body)
        except LookupError as missing:
            return Message.new_error(message, "org.freedesktop.DBus.Error.UnknownObject", str(missing))
        return Message.new_method_return(message, signature, body)
