"""Adapting the file to the configuration: new streams and queues, and settings by which more must be known of what is stored.

This takes time only after a change of the configuration: for counting the keys of a stream, or making jobs of its messages.
"""

from __future__ import annotations

from sbus_programs.config.store import QueueSettings, StoreSettings
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, QueueFigures, StreamFigures
from sbus_services.store.engine.schema import BLOCKED, DATED, DELAYED, READY, message_id
from sbus_services.store.engine.stream import JobLines, KeyMatcher, Queue, Stream, id_range, line_of

_COUNT_KEYS = (
    "SELECT account, COUNT(*) FROM message WHERE id IN"
    " (SELECT MAX(id) FROM message WHERE stream = ? AND gap IS NULL GROUP BY key) GROUP BY account"
)
_MESSAGES = "SELECT id, key FROM message WHERE id BETWEEN ? AND ? AND gap IS NULL ORDER BY id"
_ADD_JOB = "INSERT OR IGNORE INTO job (id, queue, state, line) VALUES (?, ?, ?, ?)"
_JOBS = "SELECT job.id, key, state FROM job JOIN message ON message.id = job.id WHERE queue = ? ORDER BY job.id"
_SET_LINE = "UPDATE job SET line = ?, state = ? WHERE id = ?"


class Reconfiguration:
    """Applies settings to the file."""

    def __init__(self, database: Database, figures: AllFigures) -> None:
        self._run = database.execute
        self._figures = figures
        self._lines = JobLines(database)

    def apply(self, settings: StoreSettings) -> dict[str, Stream]:
        """Return the streams of *settings* by name, with their queues."""
        streams: dict[str, Stream] = {}
        for each in settings.streams:
            figures = self._figures.add_stream(each.name)
            streams[each.name] = Stream(each, figures, KeyMatcher(each.patterns))
            if bool(each.last) != bool(figures.is_keyed):
                self._count_keys(figures, is_keyed=bool(each.last))
        used: set[int] = set()
        for queue in settings.queues:
            stream = streams[queue.stream]
            stream.queue = Queue(queue, self._queue(queue, stream.figures))
            used.add(stream.queue.figures.id)
        by_id = {each.id: each for each in self._figures.streams.values()}
        for left in self._figures.queues.values():
            if left.id not in used and left.left_seq is None:
                self._figures.change(left)
                left.left_seq = by_id[left.stream].last_seq
        return streams

    def known(self, settings: StoreSettings) -> dict[str, Stream]:
        """Return those streams of *settings* that the file has, with those queues, and change nothing."""
        figures = self._figures.streams
        streams = {
            each.name: Stream(each, figures[each.name], KeyMatcher(each.patterns)) for each in settings.streams if each.name in figures
        }
        for queue in settings.queues:
            if (stream := streams.get(queue.stream)) is not None:
                for each in self._figures.queues_of(stream.figures):
                    if each.name == queue.name:
                        stream.queue = Queue(queue, each)
        return streams

    def _count_keys(self, stream: StreamFigures, *, is_keyed: bool) -> None:
        """Count the keys of *stream* from scratch, or stop counting them."""
        self._figures.change(stream)
        for account in self._figures.usage[stream.id]:
            self._figures.usage_of(stream, account).keys = 0
        stream.keys, stream.is_keyed = 0, int(is_keyed)
        if is_keyed:
            for account, count in self._run(_COUNT_KEYS, (stream.id,)).fetchall():
                self._figures.usage_of(stream, account).keys = count
                stream.keys += count

    def _queue(self, settings: QueueSettings, stream: StreamFigures) -> QueueFigures:
        """Return the figures of a queue. What was stored while it was not configured becomes jobs."""
        queue = self._figures.add_queue(settings.name, stream)
        is_ordered = settings.in_order == "key"
        if bool(queue.is_ordered) != is_ordered:
            self._reorder(queue, is_ordered=is_ordered)
        if queue.left_seq is not None:
            self._figures.change(queue)
            self._add_jobs(queue, stream, queue.left_seq + 1)
            queue.left_seq = None
        return queue

    def _reorder(self, queue: QueueFigures, *, is_ordered: bool) -> None:
        """Put the jobs of *queue* into lines by key, or dissolve the lines."""
        self._figures.change(queue)
        queue.is_ordered = int(is_ordered)
        under_way: set[int] = set()
        rows = self._run(_JOBS, (queue.id,)).fetchall()
        lines = {number: line_of(key) for number, key, _ in rows} if is_ordered else {}
        under_way.update(lines[number] for number, _, state in rows if is_ordered and state not in {READY, BLOCKED, DELAYED, DATED})
        for number, _, old in rows:
            line, state = lines.get(number), READY if old == BLOCKED else old
            if line is not None and old == READY:
                state = BLOCKED if line in under_way else READY
                under_way.add(line)
            self._run(_SET_LINE, (line, state, number))
            queue.move(old, state)

    def _add_jobs(self, queue: QueueFigures, stream: StreamFigures, first_seq: int) -> None:
        """Make jobs of the messages from *first_seq* on that have none."""
        first, last = id_range(stream, first_seq)
        for number, key in self._run(_MESSAGES, (first, max(last, message_id(stream.id, 0)))).fetchall():
            line = line_of(key) if queue.is_ordered else None
            state = BLOCKED if line is not None and self._lines.is_busy(queue, line) else READY
            if self._run(_ADD_JOB, (number, queue.id, state, line)).rowcount > 0:
                queue.move(None, state)
