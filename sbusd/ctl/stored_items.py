"""What ``sbusctl store`` prints: streams and queues, messages, gaps and jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from sbusd.client import QueuedJob, StoreGap
from sbusd.client.store.items import StoreItem
from sbusd.ctl.formatting import NOTHING, compact_bytes, compact_count, human_plural, local_time
from sbusd.ctl.output import JsonStyle, flush, terminal_width, text_or_base64, visible, write_json, write_lines, write_page
from sbusd.ctl.settings import Settings
from sbusd.ctl.tables import Column, table_lines

ItemT = TypeVar("ItemT", bound=StoreItem | QueuedJob)

_STREAMS = (
    Column("STREAM"),
    Column("MESSAGES", is_number=True),
    Column("SIZE", is_number=True),
    Column("FIRST", is_number=True, rank=2),
    Column("LAST", is_number=True, rank=1),
    Column("READERS", is_number=True),
    Column("CONFIGURED", rank=3),
)

_QUEUES = (
    Column("QUEUE"),
    Column("READY", is_number=True),
    Column("LEASED", is_number=True),
    Column("DELAYED", is_number=True),
    Column("DEAD", is_number=True),
    Column("WAITING", is_number=True),
)


def show(settings: Settings, values: Iterable[dict[str, object]], lines: list[str]) -> None:
    """Print *lines*, or *values* as JSON."""
    if settings.json is JsonStyle.OFF:
        write_lines(lines)
    else:
        for value in values:
            write_json(value, settings.json)


def show_count(settings: Settings, number: int) -> None:
    """Print the number of messages that an action has changed."""
    show(settings, [{"count": number}], [human_plural(number, "message")])


def show_streams(settings: Settings, found: dict[str, Any]) -> None:
    """Print the tables of streams and queues."""
    if settings.json is not JsonStyle.OFF:
        write_json(found, settings.json)
        return
    width = terminal_width()
    streams = [
        [
            visible(str(each.get("name", ""))),
            *(compact_count(each.get("messages", 0)), compact_bytes(each.get("bytes", 0))),
            *(str(each.get("first", NOTHING)), str(each.get("last_seq", NOTHING)), str(each.get("readers", 0))),
            "yes" if each.get("configured") else "no",
        ]
        for each in found["streams"]
    ]
    queues = [
        [
            visible(str(each.get("name", ""))),
            *(compact_count(each.get(name, 0)) for name in ("ready", "leased", "delayed", "dead", "waiting")),
        ]
        for each in found["queues"]
    ]
    page = table_lines(_STREAMS, streams, legend=settings.legend, width=width)
    if queues:
        page += ["", *table_lines(_QUEUES, queues, legend=settings.legend, width=width)]
    write_page(page, pager=settings.pager)


def print_items(settings: Settings, items: Iterable[ItemT], count: int | None) -> ItemT | None:
    """Print *items* as they come, at most *count*. Return the last one if there can be more, and otherwise None."""
    for number, item in enumerate(items, 1):
        show(settings, [_value_of(item)], [_line_of(item)])
        flush()
        if number == count:
            return item
    return None


def _value_of(item: StoreItem | QueuedJob) -> dict[str, object]:
    """Return an item for JSON."""
    if isinstance(item, StoreGap):
        return {"type": "gap", "seq": item.seq, "time": item.time, "pattern": item.pattern, "lost": item.count, "reason": item.reason}
    message = item.message if isinstance(item, QueuedJob) else item
    value: dict[str, object] = {"type": "message", "stream": message.stream, "seq": message.seq, "time": message.time, "uid": message.uid}
    value |= text_or_base64("key", message.key_bytes) | text_or_base64("payload", message.payload)
    if isinstance(item, QueuedJob):
        value |= {"type": "job", "state": item.state, "tries": item.tries, "at": item.at, "holder": item.holder, "reason": item.reason}
    return value


def _line_of(item: StoreItem | QueuedJob) -> str:
    """Return an item as a line of text."""
    if isinstance(item, StoreGap):
        lost = human_plural(item.count, "message") if item.count else "messages"
        keys = f" of {visible(item.pattern)!r}" if item.pattern else ""
        return f"{item.seq}\t{local_time(item.time)}\tlost {lost}{keys}: {visible(item.reason)}"
    message = item.message if isinstance(item, QueuedJob) else item
    line = f"{message.seq}\t{local_time(message.time)}\t{visible(message.key_bytes)}\t{visible(message.payload)}"
    if isinstance(item, QueuedJob):
        line += f"\t{item.state}, {human_plural(item.tries, 'try').replace('trys', 'tries')}"
        line += f": {visible(item.reason)}" if item.reason else ""
    return line
