"""``sbusctl store``: stored messages, last values and jobs of sbus-store(8)."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer

from sbusd.client import Bus, Job, QueuedJob, StoreGap
from sbusd.client.store.items import StoreItem
from sbusd.config.relay import MAX_TWIN
from sbusd.ctl.errors import print_error
from sbusd.ctl.formatting import NOTHING, compact_bytes, compact_count, human_plural, local_time
from sbusd.ctl.output import JsonStyle, flush, terminal_width, text_or_base64, visible, write_json, write_lines, write_page
from sbusd.ctl.settings import Settings, settings_of
from sbusd.ctl.tables import Column, table_lines
from sbusd.protocol.errors import SbusError

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

TERMINATE_SECONDS = 5.0
"""How long a program of ``work`` may take to end after SIGTERM."""


class StoreAction(enum.Enum):
    """What ``sbusctl store`` does."""

    STREAMS = "streams"
    PUT = "put"
    LAST = "last"
    READ = "read"
    PEEK = "peek"
    WORK = "work"
    PURGE = "purge"
    FORGET = "forget"
    REVIVE = "revive"


REMOTE_ACTIONS = (StoreAction.STREAMS, StoreAction.LAST, StoreAction.READ)
"""Those for which another host can be named."""


class NoJobError(SbusError):
    """The timeout expired before there was a job."""


def store_command(
    context: typer.Context,
    *,
    action: Annotated[
        StoreAction,
        typer.Argument(metavar="ACTION", help="One of streams, put, last, read, peek, work, purge, forget, revive.", show_default=False),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT...", help="Arguments of the action: see sbusctl(1).", show_default=False)
    ] = None,
    ident: Annotated[str, typer.Option("--id", metavar="TEXT", help="With put: ignore a second message with this id within an hour.")] = "",
    delay: Annotated[float | None, typer.Option("--delay", min=0, metavar="SECONDS", help="With put: delay the job.")] = None,
    expire: Annotated[
        float | None, typer.Option("--expire", min=0, metavar="SECONDS", help="With put: remove the message after this time.")
    ] = None,
    reader: Annotated[str, typer.Option("--reader", metavar="NAME", help="With read: continue where this reader stopped.")] = "",
    start: Annotated[str, typer.Option("--from", metavar="NUMBER", help="With read: begin with this number, first, last or new.")] = "",
    pattern: Annotated[str, typer.Option("--match", metavar="PATTERN", help="With read and purge: only messages whose keys match.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="With read: wait for new messages.")] = False,
    queue: Annotated[bool, typer.Option("--queue", help="With peek and purge: the name is that of a queue.")] = False,
    state: Annotated[str, typer.Option("--state", metavar="STATE", help="With peek: ready, leased, delayed or dead.")] = "",
    before: Annotated[int | None, typer.Option("--before", min=1, metavar="NUMBER", help="With purge: only lower numbers.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="End after this many.")] = None,
    twin: Annotated[
        int | None,
        typer.Option("--twin", min=1, max=MAX_TWIN, metavar="ID", help="With streams, last and read: the store of a remote host."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="With work: end if no job comes in this time.")
    ] = None,
) -> None:
    """Show and change what sbus-store has stored.

    With work, run a program for each job of a queue: its standard input is the payload, and status 0 acknowledges the job.
    """
    settings = settings_of(context)
    words = arguments or []
    if twin is not None and action not in REMOTE_ACTIONS:
        raise typer.BadParameter(f"{action.value} is for the store of this host; --twin is for streams, last and read")
    with settings.connect() as bus:
        readable = bus.store if twin is None else bus.store.on(twin)
        match action:
            case StoreAction.STREAMS:
                _expect(words, 0, 0, "no argument")
                _show_streams(settings, readable.streams())
            case StoreAction.PUT:
                key, *payload = _expect(words, 1, 2, "KEY [PAYLOAD]")
                data = payload[0].encode("utf-8", "surrogateescape") if payload else sys.stdin.buffer.read()
                outcome = bus.store.put(key, data, id=ident, delay=delay, expire=expire)
                _show(settings, [{"seq": outcome.seq, "duplicate": outcome.is_duplicate}], [str(outcome.seq)])
            case StoreAction.LAST:
                _print_items(settings, readable.last(*_expect(words, 1, 16, "PATTERN...")), count)
            case StoreAction.READ:
                (stream,) = _expect(words, 1, 1, "STREAM")
                with contextlib.closing(readable.read(stream, reader=reader, start=_start(start), pattern=pattern, follow=follow)) as items:
                    _print_items(settings, items, count)
            case StoreAction.PEEK:
                (name,) = _expect(words, 1, 1, "STREAM, or QUEUE with --queue")
                found = bus.store.peek(queue=name if queue else "", stream="" if queue else name, state=state, count=min(count or 256, 256))
                _print_items(settings, found, count)
            case StoreAction.WORK:
                name, *command = _expect(words, 2, 4_096, "QUEUE COMMAND...")
                _work(bus, name, command, count, timeout)
            case StoreAction.PURGE:
                (name,) = _expect(words, 1, 1, "STREAM, or QUEUE with --queue")
                _removed(
                    settings, bus.store.purge(stream="" if queue else name, queue=name if queue else "", before=before, pattern=pattern)
                )
            case StoreAction.FORGET:
                stream, *keys = _expect(words, 2, 256, "STREAM KEY...")
                _removed(settings, bus.store.forget(stream, *keys))
            case StoreAction.REVIVE:
                name, *numbers = _expect(words, 2, 256, "QUEUE NUMBER...")
                _removed(settings, bus.store.revive(name, *map(_number, numbers)))


def _expect(words: Sequence[str], least: int, most: int, what: str) -> Sequence[str]:
    """Return *words*. Raises BadParameter if they are too few or too many."""
    if not least <= len(words) <= most:
        raise typer.BadParameter(f"{len(words)} arguments after the action: it takes {what}")
    return words


def _number(word: str) -> int:
    """Return the number of a message. Raises BadParameter."""
    if not (word.isascii() and word.isdigit()):
        raise typer.BadParameter(f"invalid number {word!r}: must be the number of a message")
    return int(word)


def _start(word: str) -> Any:
    """Return where reading begins. Raises BadParameter."""
    return word if word in {"first", "last", "new"} else _number(word) if word else None


def _show(settings: Settings, values: Iterable[dict[str, object]], lines: list[str]) -> None:
    """Print *lines*, or *values* as JSON."""
    if settings.json is JsonStyle.OFF:
        write_lines(lines)
    else:
        for value in values:
            write_json(value, settings.json)


def _removed(settings: Settings, number: int) -> None:
    """Print the number of messages that an action has changed."""
    _show(settings, [{"count": number}], [human_plural(number, "message")])


def _show_streams(settings: Settings, found: dict[str, Any]) -> None:
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


def _print_items(settings: Settings, items: Iterable[StoreItem | QueuedJob], count: int | None) -> None:
    """Print *items* as they come, at most *count*."""
    for number, item in enumerate(items, 1):
        _show(settings, [_value_of(item)], [_line_of(item)])
        flush()
        if number == count:
            return


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
        return f"{item.seq}\t{local_time(item.time)}\tlost {lost} of {visible(item.pattern)!r}: {visible(item.reason)}"
    message = item.message if isinstance(item, QueuedJob) else item
    line = f"{message.seq}\t{local_time(message.time)}\t{visible(message.key_bytes)}\t{visible(message.payload)}"
    if isinstance(item, QueuedJob):
        line += f"\t{item.state}, {human_plural(item.tries, 'try').replace('trys', 'tries')}"
        line += f": {visible(item.reason)}" if item.reason else ""
    return line


def _work(bus: Bus, queue: str, command: Sequence[str], count: int | None, timeout: float | None) -> None:
    """Run *command* for each job. Raises NoJobError if there was none at all."""
    done = 0
    while count is None or done < count:
        jobs = bus.store.take_many(queue, timeout=timeout)
        if not jobs:
            if not done or count is not None:
                raise NoJobError(f"timed out after {timeout or 0:g} s: ran {done} jobs of queue {queue!r}")
            return
        with jobs[0] as job:
            status = _run(command, job)
            if status == 0:
                job.ack()
            else:
                print_error(f"job {job.message.seq}: {command[0]} ended with status {status}; the job is tried again")
                job.retry()
        done += 1


def _run(command: Sequence[str], job: Job) -> int:
    """Run *command* with the payload of *job*, and return its status. Raises SbusError if it cannot be run."""
    surroundings = os.environ | {
        "SBUS_KEY": job.key,
        "SBUS_QUEUE": job.queue,
        "SBUS_SEQ": str(job.message.seq),
        "SBUS_TRIES": str(job.tries),
        "SBUS_UID": str(job.message.uid),
    }
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=surroundings)
    except OSError as error:
        raise SbusError(f"cannot run {command[0]!r}: {error.strerror}") from None
    with _ended(process):
        process.communicate(job.payload)
    return process.returncode


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate *process* if this program is interrupted."""
    try:
        yield
    except BaseException:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
