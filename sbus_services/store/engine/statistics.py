"""The figures of the store for people and programs."""

from __future__ import annotations

from collections.abc import Mapping

from sbus_services.store.engine.checksums import Checksums
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, QueueFigures, StreamFigures
from sbus_services.store.engine.messages import NO_UID, QueueStatistics, StoreStatistics, StreamStatistics, UserStatistics
from sbus_services.store.engine.reading import Readers, Reading
from sbus_services.store.engine.stream import Stream
from sbus_services.store.engine.unpublished import Unpublished

_OPEN_GAPS = """
SELECT count(*), total(gap), total(gap = 0)
FROM (SELECT gap, uid FROM message WHERE stream = ? AND gap IS NOT NULL ORDER BY id DESC LIMIT 1000)
WHERE uid IS NULL
"""


def store_statistics(
    database: Database,
    figures: AllFigures,
    *,
    reading: Reading,
    readers: Readers,
    streams: Mapping[str, Stream],
    unpublished: Unpublished,
    checksums: Checksums,
    max_users: int,
) -> StoreStatistics:
    """Return all figures; see Engine.statistics."""
    reported = [database.execute(_OPEN_GAPS, (each.id,)).fetchone() for each in figures.streams.values() if each.gaps]
    configured = {each.queue.figures.id for each in streams.values() if each.queue is not None}
    names = {each.id: each.name for each in figures.streams.values()}
    return StoreStatistics(
        [
            StreamStatistics(
                each.name,
                each.name in streams,
                each.messages,
                each.bytes,
                each.keys,
                reading.first_seq(each),
                each.last_seq,
                each.gaps,
                readers.count_of_stream(each),
                each.removed,
                _users(figures, each, max_users),
            )
            for each in sorted(figures.streams.values(), key=lambda stream: stream.name)
        ],
        [_queue(each, names[each.stream], each.id in configured) for each in sorted(figures.queues.values(), key=lambda queue: queue.name)],
        {uid: count for uid, count in figures.leases.items() if count},
        database.size(),
        sum(count for count, _, _ in reported),
        sum(int(missing) for _, missing, _ in reported),
        sum(int(unknown) for _, _, unknown in reported),
        unpublished.count(),
        unpublished.never,
        *checksums.counts(),
    )


def _users(figures: AllFigures, stream: StreamFigures, most: int) -> list[UserStatistics]:
    """Return the figures of the users with the most bytes."""
    hosts = figures.hosts()
    usage = sorted(figures.usage[stream.id].values(), key=lambda each: -each.bytes)[:most]
    return [
        UserStatistics(max(each.account, NO_UID), hosts.get(each.account, ""), each.messages, each.bytes, each.keys)
        for each in usage
        if not each.is_empty()
    ]


def _queue(queue: QueueFigures, stream: str, is_configured: bool) -> QueueStatistics:
    """Return the figures of *queue*."""
    ready, delayed = queue.ready + queue.blocked, queue.delayed + queue.retrying + queue.dated
    return QueueStatistics(queue.name, stream, is_configured, ready, queue.leased, delayed, queue.dead, queue.dropped_dead)
