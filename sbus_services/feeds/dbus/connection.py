"""A connection to a D-Bus bus that passes signals and replies in the order in which the bus sent them, and can be made again.

The order matters: a reply that lists all units is newer than the signals before it, and older than those after it. The library dbus-fast
completes futures later, so replies that change state are applied by a function that is called at once.

The sender of each message is set by the D-Bus bus. Every user of the bus can send any signal to this connection alone, and no match rule
prevents that. So the feeds compare the sender of each signal with the owner of the name; :class:`NameOwner` follows that owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_services.feeds.bus_publisher import LogThrottle

DRIVER = "org.freedesktop.DBus"
"""The name of the D-Bus bus itself, which no client can own."""

DRIVER_PATH = "/org/freedesktop/DBus"

PROPERTIES = "org.freedesktop.DBus.Properties"

CALL_SECONDS = 25.0
"""The timeout of a call, that of sd-bus."""

CONNECT_SECONDS = 25.0

_CLOSE_SECONDS = 1.0

_SYSTEM_ADDRESS = "unix:path=/run/dbus/system_bus_socket"


class MissingLibraryError(SbusError):
    """The package dbus-fast is not installed."""


class DBusUnavailableError(SbusError):
    """The D-Bus bus cannot be reached, or the connection has ended; the text is one line."""


class CallError(SbusError):
    """A call has failed; ``name`` is that of the D-Bus error."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__(f"{printable(name, 255)}: {printable(words)}")
        self.name = name


@dataclass(frozen=True, slots=True)
class DBusSignal:
    """One signal. ``sender`` is the unique name of the connection that sent it; ``body`` are the arguments as dbus-fast decodes them."""

    sender: str
    path: str
    interface: str
    member: str
    signature: str = ""
    body: Sequence[Any] = ()


class Caller(Protocol):
    """The way to the owner of a name."""

    async def call(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        *body: object,
        apply: Callable[[Sequence[Any]], object] | None = None,
    ) -> Sequence[Any]:
        """Return the reply, after *apply* was called with it, in the order of all messages. Raises CallError, DBusUnavailableError."""


def check_library() -> None:
    """Raise MissingLibraryError unless dbus-fast is installed."""
    try:
        import dbus_fast.aio  # noqa: F401, PLC0415 - only to say in one line that it is missing
    except ImportError:
        raise MissingLibraryError(
            "this feed needs the Python package dbus-fast: install python3-dbus-fast, or pip install 'sbusd[dbus]'"
        ) from None


def bus_address(*, is_user: bool) -> str:
    """Return the address of the D-Bus system bus, or of the user's. Source: the D-Bus specification. Raises DBusUnavailableError."""
    if not is_user:
        return os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or _SYSTEM_ADDRESS
    if address := os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return address
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return f"unix:path={runtime}/bus"
    raise DBusUnavailableError("the D-Bus bus of the user is unknown; set DBUS_SESSION_BUS_ADDRESS or XDG_RUNTIME_DIR")


class DBusConnection:
    """A connection, from :meth:`open` to :meth:`close`. *on_signal* is called with each signal; an exception in it ends the connection."""

    def __init__(self, bus: Any, make_message: Callable[..., Any], on_signal: Callable[[DBusSignal], None]) -> None:
        self._bus = bus
        self._make_message = make_message
        self._on_signal = on_signal
        self._calls: dict[int, tuple[str, asyncio.Future[Sequence[Any]], Callable[[Sequence[Any]], object] | None]] = {}
        self._fault: Exception | None = None
        self._sending = asyncio.Lock()
        """One message at a time: the library disconnects if it is to send another one while the socket has no room."""
        self._ended = asyncio.ensure_future(bus.wait_for_disconnect())
        bus.add_message_handler(self._handle)

    @classmethod
    async def open(cls, address: str, on_signal: Callable[[DBusSignal], None]) -> Self:
        """Connect to the bus at *address*.

        Raises:
            DBusUnavailableError: the bus is not running, or it rejects the connection.
        """
        from dbus_fast import Message  # noqa: PLC0415 - only these feeds need it
        from dbus_fast.aio import MessageBus  # noqa: PLC0415

        # The library logs tracebacks. What this class raises has the same facts in one line.
        logging.getLogger("dbus_fast").setLevel(logging.CRITICAL + 1)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                bus = await MessageBus(bus_address=address).connect()
        except TimeoutError:
            raise DBusUnavailableError(f"the D-Bus bus at {printable(address)} does not answer") from None
        except Exception as wrong:  # the library documents no common class
            reason = getattr(wrong, "strerror", None) or f"{wrong}" or type(wrong).__name__
            raise DBusUnavailableError(f"cannot connect to the D-Bus bus at {printable(address)}: {printable(reason)}") from wrong
        return cls(bus, Message, on_signal)

    async def wait_closed(self) -> None:
        """Wait until the connection ends.

        Raises:
            Exception: what *on_signal* has raised.
        """
        await asyncio.wait([self._ended])
        self._end()
        if self._fault is not None:
            raise self._fault

    async def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        *body: object,
        apply: Callable[[Sequence[Any]], object] | None = None,
    ) -> Sequence[Any]:
        """Return the reply of *destination*, a unique name or that of the bus. *apply* is called with it before later messages are handled.

        Raises:
            CallError: the reply is an error, is not what *apply* expects, or did not arrive in time.
            DBusUnavailableError: the connection has ended.
        """
        if not self._bus.connected:
            raise DBusUnavailableError("the D-Bus connection has ended")
        serial = self._bus.next_serial()
        message = self._make_message(
            destination=destination, path=path, interface=interface, member=member, signature=signature, body=list(body), serial=serial
        )
        future: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self._calls[serial] = destination, future, apply
        try:
            async with asyncio.timeout(CALL_SECONDS):
                async with self._sending:
                    sent = self._bus.send(message)
                    sent.add_done_callback(_retrieve)
                    await asyncio.wait([sent, future], return_when=asyncio.FIRST_COMPLETED)
                return await future
        except TimeoutError:
            raise CallError("org.freedesktop.DBus.Error.NoReply", f"no reply to {member} within {CALL_SECONDS:.0f} s") from None
        finally:
            self._calls.pop(serial, None)

    async def add_match(self, rule: str) -> None:
        """Subscribe to the signals that match *rule*. Raises CallError, DBusUnavailableError."""
        await self.call(DRIVER, DRIVER_PATH, DRIVER, "AddMatch", "s", rule)

    async def close(self) -> None:
        """Close the connection."""
        if self._bus.connected:
            self._bus.disconnect()
        await asyncio.wait([self._ended], timeout=_CLOSE_SECONDS)
        self._end()

    def _handle(self, message: Any) -> bool:
        """Handle one message of the bus; True: the library does nothing more with it."""
        kind = message.message_type.name
        try:
            if kind == "SIGNAL":
                self._on_signal(
                    DBusSignal(
                        message.sender or "",
                        message.path or "",
                        message.interface or "",
                        message.member or "",
                        message.signature,
                        message.body,
                    )
                )
            elif kind in ("METHOD_RETURN", "ERROR"):
                return self._handle_reply(message, is_error=kind == "ERROR")
        except Exception as fault:
            self._fault = fault
            self._bus.disconnect()
        # This connection has no objects: calls of others get no reply.
        return True

    def _handle_reply(self, message: Any, *, is_error: bool) -> bool:
        """Complete a call; False for replies to calls of the library itself."""
        waiting = self._calls.get(message.reply_serial)
        if waiting is None:
            return False
        destination, future, apply = waiting
        if future.done() or (message.sender != destination and not (is_error and message.sender == DRIVER)):
            return True
        if is_error:
            words = message.body[0] if message.body and isinstance(message.body[0], str) else ""
            future.set_exception(CallError(message.error_name or "", words))
            return True
        if apply is not None:
            try:
                apply(message.body)
            except (ValueError, TypeError, LookupError, AttributeError) as wrong:
                future.set_exception(CallError("org.freedesktop.DBus.Error.InvalidArgs", f"unexpected reply: {wrong!r}"))
                return True
        future.set_result(message.body)
        return True

    def _end(self) -> None:
        """Let all calls raise DBusUnavailableError."""
        if self._ended.done():
            _retrieve(self._ended)
        for _, future, _ in self._calls.values():
            if not future.done():
                future.set_exception(DBusUnavailableError("the D-Bus connection has ended"))


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Note that an exception of *future* needs no log record."""
    if not future.cancelled():
        future.exception()


class NameOwner:
    """The owner of one well-known name: :attr:`owner` is its unique name, empty without one. It changes in the order of all messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner = ""
        self.changed = asyncio.Event()
        """Set at each change; a task that waits for it clears it."""

    async def follow(self, connection: DBusConnection) -> None:
        """Follow the owner of the name on *connection*, whose signals all go to :meth:`handle` first. Raises CallError."""
        await connection.add_match(f"type='signal',sender='{DRIVER}',interface='{DRIVER}',member='NameOwnerChanged',arg0='{self.name}'")
        try:
            await connection.call(DRIVER, DRIVER_PATH, DRIVER, "GetNameOwner", "s", self.name, apply=lambda reply: self._set(reply[0]))
        except CallError as error:
            if not error.name.endswith(".NameHasNoOwner"):
                raise

    def handle(self, signal: DBusSignal) -> bool:
        """Return whether *signal* is about the owner of this name; then it has been applied."""
        if signal.member != "NameOwnerChanged" or signal.sender != DRIVER or signal.body[0] != self.name:
            return False
        self._set(signal.body[2])
        return True

    def lost(self) -> None:
        """Note that the connection has ended."""
        self._set("")

    def _set(self, owner: str) -> None:
        """Set the owner."""
        if owner != self.owner:
            self.owner = owner
            self.changed.set()


@dataclass(frozen=True, slots=True)
class OwnerCaller:
    """The :class:`Caller` for one owner of a name."""

    connection: DBusConnection
    owner: str

    async def call(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        *body: object,
        apply: Callable[[Sequence[Any]], object] | None = None,
    ) -> Sequence[Any]:
        """See :meth:`Caller.call`."""
        return await self.connection.call(self.owner, path, interface, member, signature, *body, apply=apply)


_RETRY_SECONDS = (0.1, 5.0)
"""Shortest and longest interval between two attempts to connect."""


async def stay_connected(
    address: str,
    on_signal: Callable[[DBusSignal], None],
    serve: Callable[[DBusConnection], Awaitable[None]],
    on_lost: Callable[[], None],
    log: Callable[[str], None],
) -> None:
    """Connect to the D-Bus bus at *address*, *serve* the connection until it ends, call *on_lost*, and begin again.

    Raises:
        SbusError: the first connection cannot be made.
    """
    delay = _RETRY_SECONDS[0]
    errors = LogThrottle()
    connection: DBusConnection | None = await DBusConnection.open(address, on_signal)
    while True:
        if connection is None:
            await asyncio.sleep(delay)
            delay = min(2 * delay, _RETRY_SECONDS[1])
            with contextlib.suppress(DBusUnavailableError):
                connection = await DBusConnection.open(address, on_signal)
            continue
        try:
            await serve(connection)
            delay = _RETRY_SECONDS[0]
        except (DBusUnavailableError, CallError) as error:
            count = errors.count()
            if count is not None:
                log(f"{error} ({count} so far)" if count > 1 else str(error))
        finally:
            await connection.close()
            on_lost()
        connection = None
        log("lost the connection to the D-Bus bus; connecting again")


@contextlib.asynccontextmanager
async def end_of(connection: DBusConnection) -> AsyncIterator[asyncio.Future[None]]:
    """Give a task that is done when *connection* ends."""
    closed = asyncio.ensure_future(connection.wait_closed())
    try:
        yield closed
    finally:
        await cancel(closed)


async def run_together(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run *coroutines* until one of them ends, and raise its exception; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            await cancel(task)


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel *task* and wait for its end; its result does not matter any more."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
