"""The connections of the bus, page by page, with names of users and processes. Spec: sbus-protocol(7) §6, ``!/bus/connections``."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from sbus.asyncio.look_ups import LookUps
from sbus.bus_documents import BadResponseError, JsonObject, parse_document
from sbus.protocol import controls
from sbus_programs.systemd.processes import UNKNOWN, process_of

MAX_CONNECTIONS = 2_000
"""Connections in one response; a response with more would be megabytes long."""

_LOOKS = 5
"""Listings after which the commands are read again."""


class ControlClient(Protocol):
    """The part of a bus that responds to control messages."""

    async def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        """Return the payload of the response to *key*."""


async def ask(bus: ControlClient, key: bytes, payload: bytes | None = None) -> JsonObject:
    """Return the JSON object in the response to *key*.

    Raises:
        BadResponseError: the response is something else.
        SbusError: the bus refused the request, or is gone.
    """
    return parse_document(key, await bus.control(key, payload))


async def list_connections(bus: ControlClient) -> Mapping[str, object]:
    """Return ``connections``, at most MAX_CONNECTIONS; ``hidden``, the number that this user may not see; and whether there are ``more``.

    Raises what :func:`ask` raises.
    """
    found: list[Mapping[str, object]] = []
    hidden = 0
    after: int | None = None
    while True:
        page = await ask(bus, controls.CONNECTIONS, None if after is None else b"%d" % after)
        items, following, unseen = page.get("connections"), page.get("next"), page.get("hidden")
        found += [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        hidden = max(hidden, unseen) if isinstance(unseen, int) else hidden
        if not isinstance(following, int) or len(found) >= MAX_CONNECTIONS:
            more = isinstance(following, int) or len(found) > MAX_CONNECTIONS
            return {"connections": found[:MAX_CONNECTIONS], "hidden": hidden, "more": more}
        if after is not None and following <= after:
            raise BadResponseError(controls.CONNECTIONS, "the pages repeat")
        after = following


class Names:
    """The names of users and commands, read in a thread: a user database on the network may be slow. If it is, there are none."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._commands: dict[int, str | None] = {}
        self._turns = 0
        self._look_ups = LookUps()

    async def add(self, listing: Mapping[str, object]) -> Mapping[str, object]:
        """Return *listing* with ``users``, names by uid as text, and ``command`` in each connection; null if it is unknown."""
        try:
            return await self._look_ups.run(0, partial(self._add, listing))
        except TimeoutError:
            return _named(listing, {}, {})

    def _add(self, listing: Mapping[str, object]) -> Mapping[str, object]:
        """Do the same, and block meanwhile. Sessions share the caches, so these are replaced as a whole."""
        items = _items(listing)
        uids = {uid for item in items if (uid := _whole(item.get("uid"))) is not None}
        users = {uid: self._users[uid] if uid in self._users else _user_name(uid) for uid in uids}
        self._turns += 1
        # From time to time all commands are read again: a process may have started another program, execve(2).
        known = {} if self._turns % _LOOKS == 0 else self._commands
        commands = {number: known[number] if number in known else _command(item) for item in items if (number := _whole(item.get("id")))}
        self._users, self._commands = users, commands
        return _named(listing, users, commands)


def _items(listing: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the connections in *listing*."""
    connections = listing["connections"]
    return [item for item in connections if isinstance(item, dict)] if isinstance(connections, list) else []


def _named(listing: Mapping[str, object], users: Mapping[int, str], commands: Mapping[int, str | None]) -> Mapping[str, object]:
    """Return *listing* with those names that are known."""
    named = [{**item, "command": commands.get(_whole(item.get("id")) or 0)} for item in _items(listing)]
    return {**listing, "connections": named, "users": {str(uid): name for uid, name in sorted(users.items()) if name}}


def _whole(value: object) -> int | None:
    """Return *value* if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _user_name(uid: int) -> str:
    """Return the name of a user, empty if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""


def _command(connection: Mapping[str, object]) -> str | None:
    """Return the command of a connection, None if its process has ended or may not be read."""
    since = connection.get("since")
    found = process_of(_whole(connection.get("pid")), since if isinstance(since, int | float) else None).command
    return None if found == UNKNOWN else found
