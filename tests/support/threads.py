"""Threads of a test, which fail it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

SECONDS = 60.0


@contextmanager
def running(*works: Callable[[], object]) -> Iterator[None]:
    """Run *works* in threads of their own; at the end wait for them, and raise their errors."""
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work) for work in works]
        yield
        for future in futures:
            future.result(SECONDS)
