"""``sbusctl presence``: prints connects, disconnects and changes of subscriptions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from sbusd.client import Gap, PresenceEvent, PresenceItem
from sbusd.ctl.commands.call import peer_json
from sbusd.ctl.formats import local_time, text_or_base64
from sbusd.ctl.output import JsonStyle, encode, flush, json_text, print_error, visible, write_bytes
from sbusd.ctl.processes import process_of, user_name
from sbusd.ctl.quantities import human_plural
from sbusd.ctl.settings import settings_of


def command(
    context: typer.Context,
    *,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="Exit after this many events.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Exit after this time.")] = None,
) -> None:
    """Print connects, disconnects, subscriptions and unsubscriptions."""
    settings = settings_of(context)
    deadline = None if timeout is None else time.monotonic() + timeout
    with settings.connect() as bus, bus.presence() as presence:
        follow(presence.receive, settings.json, count, deadline)


def follow(
    receive: Callable[[float | None], PresenceItem],
    style: JsonStyle,
    count: int | None,
    deadline: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Print the results of *receive* until *count* events are printed or *clock* reaches *deadline*; flush each."""
    printed = 0
    while count is None or printed < count:
        try:
            item = receive(None if deadline is None else max(0.0, deadline - clock()))
        except TimeoutError:
            return
        if isinstance(item, PresenceEvent):
            printed += 1
            write_bytes(json_text(event_json(item), style).encode("ascii") + b"\n" if style is not JsonStyle.OFF else event_line(item))
        elif style is not JsonStyle.OFF:
            write_bytes(json_text(_news(item), style).encode("ascii") + b"\n")
        flush()
        if not isinstance(item, PresenceEvent):
            print_error(_words(item))


def event_line(event: PresenceEvent) -> bytes:
    """Return an event as one line: time, event, connection, user, pid and command, and the pattern if there is one."""
    peer = event.peer
    cells = [local_time(event.time), event.change.value, str(peer.connection), user_name(peer.uid)]
    cells.append(f"{peer.pid}({process_of(peer.pid, event.time).command})")
    if event.pattern is not None:
        cells.append(visible(event.pattern))
    return encode("\t".join(map(visible, cells)) + "\n")


def event_json(event: PresenceEvent) -> dict[str, object]:
    """Return an event as a JSON object; a pattern that is not UTF-8 is in ``pattern_base64``."""
    pattern = {} if event.pattern is None else text_or_base64("pattern", event.pattern)
    return {"type": event.change.value, "time": event.time, **peer_json(event.peer), **pattern}


def _news(item: PresenceItem) -> dict[str, object]:
    """Return a loss notice as a JSON object."""
    return {"type": "gap", "lost": item.lost} if isinstance(item, Gap) else {"type": "reconnected"}


def _words(item: PresenceItem) -> str:
    """Return a loss notice as text."""
    if isinstance(item, Gap):
        return f"lost {human_plural(item.lost, 'event')}: this subscriber reads too slowly"
    return "reconnected: events in the meantime are lost"
