"""The closer: a close that blocks delays nothing of others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from sbusd.blob import closing
from sbusd.blob.closing import Closer


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Descriptors above a million block until the returned function is called."""
    go_on = threading.Event()

    def close(fd: int) -> None:
        if fd >= 1_000_000:
            go_on.wait(60)
        else:
            os.close(fd)

    monkeypatch.setattr(closing, "_close", close)
    return go_on.set


def test_a_blocked_close_delays_only_its_user(blocked: Callable[[], object]) -> None:
    done: list[int] = []
    arrived = threading.Semaphore(0)

    def closed(user: int) -> None:
        done.append(user)
        arrived.release()

    closer = Closer(closed)
    reader, writer = os.pipe()
    closer.add(1, 1_000_000, writer)
    other_reader, other_writer = os.pipe()
    closer.add(2, other_writer)
    assert arrived.acquire(timeout=60)
    assert done == [2]
    assert os.read(other_reader, 1) == b""
    assert (closer.pending(1), closer.pending(2), closer.total) == (2, 0, 2)
    blocked()
    for _ in range(2):
        assert arrived.acquire(timeout=60)
    assert os.read(reader, 1) == b""
    assert closer.total == 0
    os.close(reader)
    os.close(other_reader)


def test_users_beyond_the_threads_wait_and_are_served(blocked: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "MAX_THREADS", 2)
    arrived = threading.Semaphore(0)
    closer = Closer(lambda _user: arrived.release())
    closer.add(1, 1_000_000)
    closer.add(2, 1_000_000)
    reader, writer = os.pipe()
    closer.add(3, writer)
    assert closer.total == 3
    blocked()
    for _ in range(3):
        assert arrived.acquire(timeout=60)
    assert os.read(reader, 1) == b""
    assert closer.total == 0
    os.close(reader)


def test_nothing_to_close_starts_no_thread() -> None:
    before = set(threading.enumerate())
    Closer(lambda _user: None).add(1)
    assert not set(threading.enumerate()) - before
