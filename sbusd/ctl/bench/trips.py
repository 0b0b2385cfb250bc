"""Round trips on an otherwise idle connection: what a message takes when nothing waits in front of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from sbusd.client import Bus
from sbusd.ctl.bench.plan import LEAST_BYTES

SKIPPED = 20
"""The first round trips, in which caches are cold and the first connection is made, do not count."""


def measure_trips(connect: Callable[[], Bus], key: bytes, count: int, times: list[float]) -> None:
    """Append *count* times to *times*, in seconds: from publishing on one connection until it was received on another.

    Raises:
        SbusError: the bus refuses, or a message did not come back in time.
    """
    with connect() as source, connect() as drain, drain.subscribe(key) as subscription:
        for number in range(SKIPPED + count):
            begin = time.perf_counter()
            source.publish(key, bytes(LEAST_BYTES))
            subscription.receive(_TRIP_SECONDS)
            if number >= SKIPPED:
                times.append(time.perf_counter() - begin)


_TRIP_SECONDS = 10.0
"""A round trip that takes so long is lost."""
