"""``sbusctl store``: stored messages, last values and jobs of sbus-store(8)."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import typer

from sbus import Bus, Job, QueuedJob, StoreError, StoreGap
from sbus.arguments import LARGEST_COUNT
from sbus.protocol.envelope import MAX_TWIN
from sbus.protocol.errors import SbusError
from sbus.protocol.framed_data import MIN_EXPIRE_SECONDS
from sbus.store.items import StoreItem
from sbus.sync.stored_streams import StoredStreams
from sbusctl.errors import print_error
from sbusctl.executables import find_program
from sbusctl.formatting import NOTHING, Column, compact_bytes, compact_count, human_plural, local_time, table_lines
from sbusctl.keys import one_key, warn_of_patterns
from sbusctl.output import JsonStyle, flush, terminal_width, text_or_base64, visible, write_json, write_lines, write_page
from sbusctl.payloads import one_payload
from sbusctl.settings import MAX_SECONDS, Settings, forbid_json, settings_of

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


TERMINATE_SECONDS = 5.0
"""How long a program may take to end after SIGTERM."""


class NoJobError(SbusError):
    """The timeout expired before there was a job."""


def run_jobs(bus: Bus, queue: str, command: Sequence[str], count: int | None, timeout: float | None) -> None:
    """Run *command* for each job. Raises NoJobError if there was none at all."""
    done = 0
    while count is None or done < count:
        jobs = bus.store.take_many(queue, timeout=timeout)
        if not jobs:
            if not done or count is not None:
                raise NoJobError(f"timed out after {timeout or 0:g} s: ran {human_plural(done, 'job')} of queue {queue!r}")
            return
        with jobs[0] as job:
            status = _run(command, job)
            if status != 0:
                print_error(f"job {job.message.seq}: {command[0]} ended with status {status}; the job is tried again")
                try:
                    job.retry()
                except StoreError:
                    if not job.is_lost:
                        raise
        if job.is_lost:
            print_error(f"job {job.message.seq}: its lease ended before {command[0]} did; the job is tried again")
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
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TERMINATE_SECONDS)
        raise


MAX_PEEKED = 256
"""Messages of one response."""

StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream, with --queue that of the queue.")]
QueueOption = Annotated[bool, typer.Option("--queue", help="NAME is the name of a queue.")]
CountOption = Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="End after this many messages.")]
MatchOption = Annotated[str | None, typer.Option("--match", metavar="PATTERN", help="Only messages whose keys match.")]
TwinOption = Annotated[int | None, typer.Option("--twin", min=1, max=MAX_TWIN, metavar="ID", help="Use the store of this remote host.")]


class JobState(enum.Enum):
    """A state of a job."""

    READY = "ready"
    LEASED = "leased"
    DELAYED = "delayed"
    DEAD = "dead"


def streams_action(context: typer.Context, *, twin: TwinOption = None) -> None:
    """List streams and queues."""
    settings = settings_of(context)
    with settings.connect() as bus:
        show_streams(settings, _readable(bus, twin).streams())


def put_action(
    context: typer.Context,
    *,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the message.")],
    payload: Annotated[
        str | None, typer.Argument(metavar="PAYLOAD", help="Payload, by default empty. Use '-' to read standard input.")
    ] = None,
    ident: Annotated[
        str | None, typer.Option("--id", metavar="TEXT", help="Do not store a second message with this id within an hour.")
    ] = None,
    delay: Annotated[float | None, typer.Option("--delay", min=0, max=MAX_SECONDS, metavar="SECONDS", help="Delay the job.")] = None,
    expire: Annotated[
        float | None,
        typer.Option("--expire", min=MIN_EXPIRE_SECONDS, max=MAX_SECONDS, metavar="SECONDS", help="Remove the message after this time."),
    ] = None,
) -> None:
    """Store a message, and print its number."""
    settings = settings_of(context)
    name = one_key(key)
    data = one_payload(payload, sys.stdin.buffer)
    with settings.connect() as bus:
        outcome = bus.store.put(name, data, id=ident, delay=delay, expire=expire)
    show(settings, [{"seq": outcome.seq, "duplicate": outcome.is_duplicate}], [str(outcome.seq)])


def last_action(
    context: typer.Context,
    *,
    patterns: Annotated[list[str], typer.Argument(metavar="PATTERN", help="Pattern to match keys.")],
    count: CountOption = None,
    twin: TwinOption = None,
) -> None:
    """Print the last value of each key that matches."""
    settings = settings_of(context)
    warn_of_patterns(*patterns)
    with settings.connect() as bus:
        print_items(settings, _readable(bus, twin).last(*patterns), count)


def read_action(
    context: typer.Context,
    *,
    stream: StreamArgument,
    reader: Annotated[str | None, typer.Option("--reader", metavar="NAME", help="Continue where this reader stopped.")] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="NUMBER", help="Begin with this number, first, last or new; a known reader continues.")
    ] = "",
    pattern: MatchOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new messages.")] = False,
    count: CountOption = None,
    twin: TwinOption = None,
) -> None:
    """Print the messages of a stream in order."""
    settings = settings_of(context)
    begin = _start(start)
    warn_of_patterns(pattern)
    with settings.connect() as bus:
        source = _readable(bus, twin)
        with contextlib.closing(source.read(stream, reader=reader, start=begin, pattern=pattern or "", follow=follow)) as items:
            last = print_items(settings, items, count)
        if reader and last is not None:
            # The loop has not asked for the next message, so for the client the last one is not done.
            source.set_position(stream, reader, last.seq + 1)


def peek_action(
    context: typer.Context,
    *,
    name: NameArgument,
    queue: QueueOption = False,
    state: Annotated[
        JobState | None, typer.Option("--state", metavar="STATE", help="With --queue: ready, leased, delayed or dead.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=MAX_PEEKED, metavar="COUNT", help="End after this many messages.")
    ] = MAX_PEEKED,
) -> None:
    """Print messages of a stream or jobs of a queue."""
    if state is not None and not queue:
        raise typer.BadParameter("--state requires --queue: messages of a stream have no state")
    settings = settings_of(context)
    with settings.connect() as bus:
        found = bus.store.peek(
            queue=name if queue else None, stream=None if queue else name, state=None if state is None else state.value, count=count
        )
        print_items(settings, found, count)


def work_action(
    context: typer.Context,
    *,
    queue: QueueArgument,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="Program to run, with its arguments.")],
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="End after this many jobs.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, max=MAX_SECONDS, metavar="SECONDS", help="End if no job comes in this time.")
    ] = None,
) -> None:
    """Run a program for each job of a queue.

    Its standard input is the payload, and status 0 acknowledges the job.
    """
    forbid_json(context, "store work")
    # Before a job is taken, which would use up one of its tries.
    found = find_program(command[0], "COMMAND")
    with settings_of(context).connect() as bus:
        run_jobs(bus, queue, [found, *command[1:]], count, timeout)


def purge_action(
    context: typer.Context,
    *,
    name: NameArgument,
    queue: QueueOption = False,
    before: Annotated[
        int | None, typer.Option("--before", min=1, max=LARGEST_COUNT, metavar="NUMBER", help="Only messages with lower numbers.")
    ] = None,
    pattern: MatchOption = None,
) -> None:
    """Remove messages of a stream, or dead letters of a queue."""
    if queue and (before is not None or pattern is not None):
        raise typer.BadParameter("--before and --match are for streams: with --queue, all dead letters are removed")
    settings = settings_of(context)
    warn_of_patterns(pattern)
    with settings.connect() as bus:
        count = bus.store.purge(queue=name) if queue else bus.store.purge(stream=name, before=before, pattern=pattern)
    show_count(settings, count)


def forget_action(
    context: typer.Context,
    *,
    stream: StreamArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Key of the messages.")],
) -> None:
    """Remove all messages with some keys from a stream."""
    settings = settings_of(context)
    names = [one_key(each) for each in keys]
    with settings.connect() as bus:
        show_count(settings, bus.store.forget(stream, *names))


def revive_action(
    context: typer.Context,
    *,
    queue: QueueArgument,
    numbers: Annotated[list[str], typer.Argument(metavar="NUMBER", help="Number of the dead letter.")],
) -> None:
    """Return dead letters to their queue as jobs."""
    settings = settings_of(context)
    found = [_number(each) for each in numbers]
    with settings.connect() as bus:
        show_count(settings, bus.store.revive(queue, *found))


def acknowledge_action(context: typer.Context) -> None:
    """Acknowledge gaps and damaged messages.

    sbusctl doctor warns of later ones only.
    """
    settings = settings_of(context)
    with settings.connect() as bus:
        number = bus.store.acknowledge()
    show(settings, [{"count": number}], [f"acknowledged: {number}"])


def _readable(bus: Bus, twin: int | None) -> StoredStreams:
    """Return the store of this host, or of the host *twin*."""
    return bus.store if twin is None else bus.store.on(twin)


def _number(word: str, least: int = 1) -> int:
    """Return the number of a message. Raises BadParameter."""
    if not (word.isascii() and word.isdigit() and len(word) <= len(str(LARGEST_COUNT)) and least <= int(word) <= LARGEST_COUNT):
        raise typer.BadParameter(f"invalid number {word!r}: must be the number of a message, {least} to {LARGEST_COUNT}")
    return int(word)


def _start(word: str) -> Any:
    """Return where reading begins. Raises BadParameter."""
    return word if word in {"first", "last", "new"} else _number(word, 0) if word else None
