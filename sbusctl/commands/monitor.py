"""Prints what happens on the bus: ``sbusctl monitor`` all traffic, ``sbusctl presence`` connections and subscriptions."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import typer

from sbus import Gap, PresenceEvent, PresenceItem, Reconnected, TapItem, TapRecord
from sbus.protocol.keys import bytes_of
from sbus_programs.systemd.processes import Process, process_of
from sbusctl.commands.call import peer_json
from sbusctl.errors import print_error
from sbusctl.formatting import human_plural, local_time
from sbusctl.output import JsonStyle, encode, flush, follow, json_text, text_or_base64, visible, write_bytes
from sbusctl.processes import user_id, user_name
from sbusctl.responses import connection_info, connections
from sbusctl.settings import MAX_SECONDS, settings_of

_KNOWN_PROCESSES = 4_096
"""Size of the cache of processes by connection. It is cleared when it is full, because not every pattern includes disconnects."""

_EVENT_FIELDS = ("to", "recipients", "queued", "discarded", "count", "error", "reason", "packet")


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects records about a connection of ``uid``, process ``pid`` or ``unit``; None: any."""

    uid: int | None = None
    pid: int | None = None
    unit: str | None = None

    def takes(self, record: TapRecord, process: Process) -> bool:
        """Return whether *record*, which is about *process*, is printed."""
        peer = record.peer
        if self.uid is not None and (peer is None or peer.uid != self.uid):
            return False
        if self.pid is not None and (peer is None or peer.pid != self.pid):
            return False
        return self.unit is None or (peer is not None and process.unit == self.unit)


@dataclass(slots=True)
class RecordPrinter:
    """Prints records. It caches the processes of connections, because they may exit before their last record arrives."""

    style: JsonStyle
    filter: Filter
    since: Mapping[int, float] = field(default_factory=dict)
    """Times of connections that are older than the tap, in seconds since 1970.

    Other connections with a number up to the highest of them are older too. Their process is unknown, because the pid may have been reused.
    """
    printed: int = 0
    _processes: dict[int, Process] = field(default_factory=dict)

    def write(self, item: TapItem) -> None:
        """Write one record, or a loss notice."""
        if not isinstance(item, TapRecord):
            _write_notice(item, self.style, "record", "this reader is too slow")
            return
        process = self._process_of(item)
        if not self.filter.takes(item, process):
            return
        self.printed += 1
        if self.style is JsonStyle.OFF:
            write_bytes(encode(record_line(item, process) + "\n"))
        else:
            write_bytes(json_text(record_json(item, process), self.style).encode("ascii") + b"\n")

    def _process_of(self, record: TapRecord) -> Process:
        """Return the process of a record."""
        if record.peer is None:
            return Process()
        number = record.peer.connection
        known = self._processes.get(number)
        if known is None:
            if len(self._processes) >= _KNOWN_PROCESSES:
                self._processes.clear()
            known = self._processes[number] = process_of(record.peer.pid, self._since(record))
        if record.kind == "disconnect":
            del self._processes[number]
        return known

    def _since(self, record: TapRecord) -> float | None:
        """Return when the connection of *record* was made, or a time soon after; None if unknown."""
        number = record.peer.connection if record.peer else 0
        if record.kind == "connect" or number > max(self.since, default=0):
            return record.time
        return self.since.get(number)


@dataclass(slots=True)
class EventPrinter:
    """Prints presence events."""

    style: JsonStyle
    printed: int = 0

    def write(self, item: PresenceItem) -> None:
        """Write one event, or a loss notice."""
        if not isinstance(item, PresenceEvent):
            _write_notice(item, self.style, "event", "this subscriber reads too slowly")
            return
        self.printed += 1
        if self.style is JsonStyle.OFF:
            write_bytes(event_line(item))
        else:
            write_bytes(json_text(event_json(item), self.style).encode("ascii") + b"\n")


def monitor_command(
    context: typer.Context,
    *,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Pattern to match keys, including reserved keys; '' matches all.")] = "",
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="Exit after this many records.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, max=MAX_SECONDS, metavar="SECONDS", help="Exit after this time.")
    ] = None,
    user: Annotated[str | None, typer.Option("--filter-user", metavar="USER", help="Print only records about this user.")] = None,
    pid: Annotated[int | None, typer.Option("--filter-pid", min=1, metavar="PID", help="Print only records about this process.")] = None,
    unit: Annotated[str | None, typer.Option("--filter-unit", metavar="UNIT", help="Print only records about this systemd unit.")] = None,
) -> None:
    """Print all traffic on the bus as it happens.

    Records: messages, connects, disconnects, subscriptions, refusals and losses. For owners of the bus, and users who have the "tap" right.
    """
    settings = settings_of(context)
    uid = None
    if user is not None:
        uid = user_id(user)
        if uid is None:
            raise typer.BadParameter(f"unknown user {user!r}", param_hint="--filter-user")
    deadline = None if timeout is None else time.monotonic() + timeout
    with settings.connect() as bus, bus.tap(os.fsencode(pattern)) as tap:
        found = [connection_info(each) for each in connections(bus).items["connections"]]
        since = {each.id: each.since for each in found if each.id is not None and each.since is not None}
        printer = RecordPrinter(settings.json, Filter(uid, pid, unit), since)
        try:
            follow(tap.receive, printer, count, deadline)
        finally:
            flush()


def record_line(record: TapRecord, process: Process) -> str:
    """Return a record as one line: time, kind, peer, key, other fields, and the payload of a message."""
    peer = record.peer
    who = "-" if peer is None else f"{peer.connection}/{user_name(peer.uid)}/{peer.pid}({process.command})"
    fields = " ".join(f"{name}={record.fields[name]}" for name in _EVENT_FIELDS if name in record.fields)
    cells = [local_time(record.time), record.kind, who, "" if record.key_bytes is None else visible(record.key_bytes), fields]
    if record.message is not None:
        cells.append(visible(record.message.payload))
    return "\t".join(visible(cell) for cell in cells)


def record_json(record: TapRecord, process: Process) -> dict[str, object]:
    """Return a record as a JSON object, with its fields and its peer."""
    about: dict[str, object] = {}
    if record.peer is not None:
        about = {"peer": {**peer_json(record.peer), "command": process.command, "unit": process.unit}}
    key = {} if record.key_bytes is None else text_or_base64("key", record.key_bytes)
    payload = {} if record.message is None else text_or_base64("payload", record.message.payload)
    fields = {name: record.fields[name] for name in _EVENT_FIELDS if name in record.fields}
    return {"type": record.kind, "time": record.time, **about, **key, **fields, **payload}


def presence_command(
    context: typer.Context,
    *,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="Exit after this many events.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, max=MAX_SECONDS, metavar="SECONDS", help="Exit after this time.")
    ] = None,
) -> None:
    """Print connects, disconnects, subscriptions and unsubscriptions."""
    settings = settings_of(context)
    deadline = None if timeout is None else time.monotonic() + timeout
    with settings.connect() as bus, bus.presence() as presence:
        try:
            follow(presence.receive, EventPrinter(settings.json), count, deadline)
        finally:
            flush()


def event_line(event: PresenceEvent) -> bytes:
    """Return an event as one line: time, event, connection, user, pid and command, and the pattern if there is one."""
    peer = event.peer
    cells = [local_time(event.time), event.change.value, str(peer.connection), user_name(peer.uid)]
    cells.append(f"{peer.pid}({process_of(peer.pid, event.time).command})")
    if event.pattern is not None:
        cells.append(visible(bytes_of(event.pattern)))
    return encode("\t".join(map(visible, cells)) + "\n")


def event_json(event: PresenceEvent) -> dict[str, object]:
    """Return an event as a JSON object; a pattern that is not UTF-8 is in ``pattern_base64``."""
    pattern = {} if event.pattern is None else text_or_base64("pattern", bytes_of(event.pattern))
    return {"type": event.change.value, "time": event.time, **peer_json(event.peer), **pattern}


def _write_notice(item: Gap | Reconnected, style: JsonStyle, noun: str, reason: str) -> None:
    """Report that items, each a *noun*, are missing, in order with those printed; *reason* is why they were lost."""
    if style is not JsonStyle.OFF:
        notice: dict[str, object] = {"type": "gap", "lost": item.lost} if isinstance(item, Gap) else {"type": "reconnected"}
        write_bytes(json_text(notice, style).encode("ascii") + b"\n")
    flush()
    if isinstance(item, Gap):
        print_error(f"lost {human_plural(item.lost, noun)}: {reason}")
    else:
        print_error(f"reconnected: {noun}s in the meantime are lost")
