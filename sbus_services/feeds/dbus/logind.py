"""Follows the sessions, users, seats and shutdowns of systemd-logind. Source: org.freedesktop.login1(5).

A signal says which object has changed, and the feed then reads that object. Not every change has a signal: that of the state of a session
to ``closing``, and that of the scheduled shutdown. So all objects are also read periodically.

Every user can ask logind for the same values. The addresses of remote users are an exception here, because messages are also recorded and
sent to other hosts: they are published only on request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sbus_services.feeds.dbus.changes import ChangeTable
from sbus_services.feeds.dbus.connection import PROPERTIES, Caller, CallError, DBusSignal
from sbus_services.feeds.dbus.state_feed import StateCounters
from sbus_services.feeds.netlink.entries import Attributes, Json, escape

PREFIX = "logind/"

Properties = Mapping[str, Any]
"""The properties of an object: variants by name."""


def session_key(name: str) -> str:
    """Return the key of a session."""
    return f"{PREFIX}session/{escape(name)}"


def user_key(uid: int) -> str:
    """Return the key of a user."""
    return f"{PREFIX}user/{uid}"


def seat_key(name: str) -> str:
    """Return the key of a seat."""
    return f"{PREFIX}seat/{escape(name)}"


def session_attributes(properties: Properties, *, has_addresses: bool) -> Attributes:
    """Return the published attributes of a session. Raises ValueError, TypeError, LookupError or AttributeError for unexpected types."""
    attributes: Attributes = {
        "session": _value(properties, "Id"),
        "uid": int(properties["User"].value[0]),
        "user": _value(properties, "Name"),
        "seat": _name(properties, "Seat"),
        "class": _value(properties, "Class"),
        "type": _value(properties, "Type"),
        "state": _value(properties, "State"),
        "active": _value(properties, "Active"),
        "idle": _value(properties, "IdleHint"),
        "locked": _value(properties, "LockedHint"),
        "remote": _value(properties, "Remote"),
        "service": _value(properties, "Service"),
        "since": seconds(properties["Timestamp"].value) if "Timestamp" in properties else None,
    }
    if has_addresses:
        attributes |= {"remote_host": _value(properties, "RemoteHost"), "remote_user": _value(properties, "RemoteUser")}
    return attributes


def user_attributes(properties: Properties) -> Attributes:
    """Return the published attributes of a user; raises as :func:`session_attributes`."""
    return {
        "uid": int(properties["UID"].value),
        "user": _value(properties, "Name"),
        "state": _value(properties, "State"),
        "sessions": _names(properties, "Sessions"),
        "idle": _value(properties, "IdleHint"),
        "linger": _value(properties, "Linger"),
    }


def seat_attributes(properties: Properties) -> Attributes:
    """Return the published attributes of a seat; raises as :func:`session_attributes`."""
    return {
        "seat": _value(properties, "Id"),
        "active_session": _name(properties, "ActiveSession"),
        "sessions": _names(properties, "Sessions"),
        "idle": _value(properties, "IdleHint"),
    }


def seconds(microseconds: int) -> float | None:
    """Return seconds since 1970, None for 0 and for the largest number, by which logind says that a time is unknown."""
    return round(microseconds / 1e6, 6) if 0 < microseconds < (1 << 64) - 1 else None


def _value(properties: Properties, name: str) -> Json:
    """Return a text, number or boolean; None without the property, or for an empty text."""
    value = properties[name].value if name in properties else None
    if not isinstance(value, str | int | bool | None):
        raise TypeError(f"{name} is {value!r}")
    return None if value == "" else value


def _name(properties: Properties, name: str) -> str | None:
    """Return the name in a pair of name and path; None if it is empty."""
    return str(properties[name].value[0]) or None if name in properties else None


def _names(properties: Properties, name: str) -> list[Json]:
    """Return the names in a list of pairs of name and path, in order."""
    return [str(each[0]) for each in sorted(properties[name].value)] if name in properties else []


NAME = "org.freedesktop.login1"

_PATH = "/org/freedesktop/login1"
_MANAGER = "org.freedesktop.login1.Manager"

PREPARE_SLEEP = f"{PREFIX}prepare/sleep"
PREPARE_SHUTDOWN = f"{PREFIX}prepare/shutdown"
SCHEDULED_SHUTDOWN = f"{PREFIX}scheduled/shutdown"

READ_SECONDS = 10.0
"""Interval at which all objects are read."""

_ROUND_SECONDS = 0.05
"""Shortest interval between two reads of changed objects."""

_MAX_READS = 32
"""Objects that are read at a time."""

_PREPARING = {"PreparingForSleep": PREPARE_SLEEP, "PreparingForShutdown": PREPARE_SHUTDOWN}

_KINDS = {"Session": session_key, "User": user_key, "Seat": seat_key}
_LISTS = {"Session": "ListSessions", "User": "ListUsers", "Seat": "ListSeats"}


class LoginSource:
    """What logind manages, in *table*. With *has_addresses* the host and user of remote sessions are published too."""

    name = NAME
    prefix = PREFIX
    rules = (
        f"type='signal',sender='{NAME}',path='{_PATH}',interface='{_MANAGER}'",
        f"type='signal',sender='{NAME}',interface='{PROPERTIES}',member='PropertiesChanged',path_namespace='{_PATH}'",
    )

    def __init__(self, table: ChangeTable, counters: StateCounters, *, has_addresses: bool = False) -> None:
        self._table = table
        self._counters = counters
        self._has_addresses = has_addresses
        self._objects: dict[str, tuple[str, str]] = {}
        """Kind and key of each object, by path."""
        self._changed: set[str] = set()
        """Paths of objects to read; the path of the manager for the shutdown."""
        self._is_suspect = False
        self._wake = asyncio.Event()

    async def follow(self, caller: Caller, current: Callable[[], None]) -> None:
        """See :meth:`sbus_services.feeds.dbus.state_feed.StateSource.follow`."""
        is_first = True
        while True:
            began = time.monotonic()
            self._is_suspect = False
            await self._read_all(caller, counts=not is_first)
            if is_first:
                current()
                is_first = False
            due = began + max(READ_SECONDS, 10 * (time.monotonic() - began))
            while (now := time.monotonic()) < due and not self._is_suspect:
                await self._wait(due - now)
                changed, self._changed = self._changed, set()
                await self._read(caller, changed)
                await asyncio.sleep(_ROUND_SECONDS)

    def handle(self, signal: DBusSignal) -> None:
        """See :meth:`sbus_services.feeds.dbus.state_feed.StateSource.handle`."""
        match signal.member, signal.body:
            case "PropertiesChanged", [str(), dict(), list()]:
                if signal.path in self._objects or signal.path == _PATH:
                    self._changed.add(signal.path)
            case (("SessionNew" | "UserNew" | "SeatNew"), [(str() | int()) as name, str(path)]):
                self._add(signal.member.removesuffix("New"), name, path)
            case (("SessionRemoved" | "UserRemoved" | "SeatRemoved"), [str() | int(), str(path)]):
                self._remove(path)
            case (("PrepareForSleep" | "PrepareForShutdown"), [bool(is_preparing)]):
                self._table.put(_PREPARING[signal.member.replace("For", "ingFor")], {"preparing": is_preparing}, time.monotonic())
                self._changed.add(_PATH)
            case (("PrepareForShutdownWithMetadata" | "SecureAttentionKey"), _):
                self._changed.add(_PATH)
            case _:
                raise ValueError(f"{signal.path} {signal.signature}")
        if self._changed:
            self._wake.set()

    def suspect(self) -> None:
        """See :meth:`sbus_services.feeds.dbus.state_feed.StateSource.suspect`."""
        self._is_suspect = True
        self._wake.set()

    async def _wait(self, timeout: float) -> None:
        """Wait until an object has changed, at most *timeout* seconds."""
        if self._changed or self._is_suspect:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            return

    def _add(self, kind: str, name: str | int, path: str) -> None:
        """Add an object, to be read."""
        key = user_key(int(name)) if kind == "User" else _KINDS[kind](str(name))  # type: ignore[operator]
        self._objects[path] = kind, key
        self._changed.add(path)

    def _remove(self, path: str) -> None:
        """Remove an object."""
        self._changed.discard(path)
        if path in self._objects:
            _, key = self._objects.pop(path)
            self._table.remove(key, time.monotonic())

    async def _read_all(self, caller: Caller, *, counts: bool) -> None:
        """Read the lists of objects, and all objects."""
        for kind, member in _LISTS.items():
            await caller.call(_PATH, _MANAGER, member, apply=partial(self._set_list, kind, counts=counts))
        await self._read(caller, [*self._objects, _PATH])

    def _set_list(self, kind: str, reply: Sequence[Any], *, counts: bool) -> None:
        """Apply the list of all objects of one kind: name or number first, path last."""
        found = {str(each[-1]): each[0] for each in reply[0]}
        gone = [path for path, (known, _) in self._objects.items() if known == kind and path not in found]
        for path in gone:
            self._remove(path)
        new = found.keys() - self._objects.keys()
        for path in new:
            self._add(kind, found[path], path)
        self._counters.corrected += (len(gone) + len(new)) * counts

    async def _read(self, caller: Caller, paths: Iterable[str]) -> None:
        """Read the objects at *paths*."""
        reads = asyncio.Semaphore(_MAX_READS)
        await asyncio.gather(*(self._read_object(caller, path, reads) for path in paths))

    async def _read_object(self, caller: Caller, path: str, reads: asyncio.Semaphore) -> None:
        """Read one object, or the state of the manager."""
        async with reads:
            if path == _PATH:
                await self._read_manager(caller)
            elif path in self._objects:
                kind, key = self._objects[path]

                def apply(reply: Sequence[Any]) -> None:
                    if path in self._objects:
                        self._table.put(key, self._attributes(kind, reply[0]), time.monotonic())

                try:
                    await caller.call(path, PROPERTIES, "GetAll", "s", f"{NAME}.{kind}", apply=apply)
                except CallError as error:
                    # Usually it was removed meanwhile, and the signal is here already.
                    if path in self._objects and not error.name.endswith((".UnknownObject", ".NoSuchSession", ".NoSuchUser")):
                        raise

    def _attributes(self, kind: str, properties: Properties) -> dict[str, Any]:
        """Return the published attributes of an object."""
        if kind == "Session":
            return session_attributes(properties, has_addresses=self._has_addresses)
        return user_attributes(properties) if kind == "User" else seat_attributes(properties)

    async def _read_manager(self, caller: Caller) -> None:
        """Read whether the machine is about to sleep or to shut down, and when a shutdown is scheduled."""
        for member, key in _PREPARING.items():
            await caller.call(_PATH, PROPERTIES, "Get", "ss", _MANAGER, member, apply=partial(self._set_preparing, key))
        await caller.call(_PATH, PROPERTIES, "Get", "ss", _MANAGER, "ScheduledShutdown", apply=self._set_scheduled)

    def _set_preparing(self, key: str, reply: Sequence[Any]) -> None:
        """Apply whether the machine is about to sleep or to shut down."""
        self._table.put(key, {"preparing": bool(reply[0].value)}, time.monotonic())

    def _set_scheduled(self, reply: Sequence[Any]) -> None:
        """Apply the scheduled shutdown: its type and time."""
        kind, at = reply[0].value
        self._table.put(SCHEDULED_SHUTDOWN, {"type": str(kind) or None, "at": seconds(int(at))}, time.monotonic())
