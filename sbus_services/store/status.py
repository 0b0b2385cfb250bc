"""The state of a store for people and programs, as ``store/status`` responds it and ``store/state`` publishes it. Spec: sbus-store(8)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping

from sbus_services.store.engine.messages import StoreStatistics

VERSION = 1
"""Version of the object. A reader ignores members that it does not know."""

FRESH_SECONDS = 1.0
"""A state is made at most once in this time."""

COUNTERS = (
    "put",
    "received",
    "published",
    "published_late",
    "publications_refused",
    "lost",
    "not_stored",
    "taken",
    "acked",
    "retried",
    "failed",
    "extended",
    "stale",
    "released",
    "given_back",
    "dead",
    "removed",
    "values_ended",
    "delivered",
    "undelivered",
    "jobs_delivered",
    "jobs_undeliverable",
    "workers_refused",
    "worker_messages_lost",
    "worker_errors_unsent",
    "malformed",
    "remote_calls",
    "remote_refusals",
)
"""The counters that are there from the start; those of refused messages, ``put_<code>``, are added when they occur."""


class Status:
    """Makes states of one store; *started* is in seconds since 1970."""

    def __init__(self, counts: Counter[str], refusals: Counter[str]) -> None:
        self._counts = counts
        self._refusals = refusals
        self._started = time.time()

    def state(self, figures: StoreStatistics, waiting: Mapping[str, int]) -> bytes:
        """Return the state as JSON. Every user may see it, so it shows no names, and sums only: ``store/streams`` shows more."""
        return json.dumps(
            {
                "version": VERSION,
                "started": self._started,
                "time": time.time(),
                "file_bytes": figures.file_bytes,
                **waiting,
                "counters": dict.fromkeys(COUNTERS, 0) | {"unpublished": figures.unpublished} | dict(self._counts),
                "refused": dict(self._refusals),
                "streams": len(figures.streams),
                "queues": len(figures.queues),
                "messages": sum(each.messages for each in figures.streams),
                "bytes": sum(each.bytes for each in figures.streams),
                "to_publish": figures.to_publish,
                "damaged": figures.damaged,
                "open_damaged": figures.open_damaged,
                "date_doubted": figures.is_date_doubted,
                "gaps": sum(each.gaps for each in figures.streams),
                "open_gaps": figures.open_gaps,
                "open_missing": figures.open_missing,
                "open_unknown": figures.open_unknown,
                "ready": sum(each.ready for each in figures.queues),
                "leased": sum(each.leased for each in figures.queues),
                "delayed": sum(each.delayed for each in figures.queues),
                "dead_letters": sum(each.dead for each in figures.queues),
            }
        ).encode()
