"""Closes on threads, one for each user: a close that blocks delays nothing of others."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from sbus_programs import owner_threads
from sbus_programs.owner_threads import OwnerThreads
from tests.support.relays import wait_for

SECONDS = 60.0


class Closes:
    """A close that blocks for the items above a million until :meth:`release`, and what was closed, in order; a context."""

    def __init__(self, max_threads: int = 8) -> None:
        self.threads = OwnerThreads(self._close, self._closed, max_threads)
        self.done: list[tuple[int, int]] = []
        self._arrived = threading.Semaphore(0)
        self._go_on = threading.Event()

    def release(self) -> None:
        """Let the blocked closes return."""
        self._go_on.set()

    def wait(self, count: int) -> list[tuple[int, int]]:
        """Wait until *count* items more are closed; return all closed ones, each with its user before it."""
        for _ in range(count):
            assert self._arrived.acquire(timeout=SECONDS)
        return self.done

    def _close(self, item: int) -> None:
        if item >= 1_000_000:
            assert self._go_on.wait(SECONDS)

    def _closed(self, user: int, item: int) -> None:
        self.done.append((user, item))
        self._arrived.release()


@pytest.fixture
def closes() -> Iterator[Closes]:
    made = Closes()
    yield made
    made.release()
    wait_for(lambda: made.threads.total == 0, "all items to be closed")


def test_a_blocked_close_delays_only_its_user(closes: Closes) -> None:
    threads = closes.threads
    threads.add(1, 1_000_000, 1)
    threads.add(2, 2)
    assert closes.wait(1) == [(2, 2)]
    assert (threads.pending(1), threads.pending(2), threads.total) == (2, 0, 2)
    closes.release()
    assert closes.wait(2) == [(2, 2), (1, 1_000_000), (1, 1)]
    assert (threads.pending(1), threads.total) == (0, 0)


def test_users_beyond_the_threads_wait_and_are_served(closes: Closes) -> None:
    for user in range(8):
        closes.threads.add(user, 1_000_000, 1_000_001)
    closes.threads.add(8, 1)
    assert closes.threads.total == 17
    closes.release()
    assert (8, 1) in closes.wait(17)


def test_users_take_turns_for_a_thread() -> None:
    """A user who sends more and more cannot keep the only thread."""
    closes = Closes(max_threads=1)
    closes.threads.add(1, *range(1_000_000, 1_000_003))
    closes.threads.add(2, 1_000_003)
    closes.release()
    assert [user for user, _ in closes.wait(4)] == [1, 2, 1, 1]


def test_the_user_with_the_most_items_is_known(closes: Closes) -> None:
    closes.threads.add(1, 1_000_000, 1)
    closes.threads.add(2, 1_000_000, 2, 3)
    closes.threads.add(3, 1_000_000)
    wait_for(lambda: all(closes.threads.busy_seconds(user) for user in (1, 2, 3)), "the closes to begin")
    assert closes.threads.largest() == 2
    closes.release()
    closes.wait(6)
    with pytest.raises(ValueError, match="empty"):
        closes.threads.largest()


def test_how_long_a_close_has_taken(closes: Closes) -> None:
    closes.threads.add(1, 1_000_000)
    wait_for(lambda: closes.threads.busy_seconds(1) > 0, "the close to begin")
    before = closes.threads.busy_seconds(1)
    wait_for(lambda: closes.threads.busy_seconds(1) > before, "time to pass")
    assert closes.threads.busy_seconds(2) == 0
    closes.release()
    closes.wait(1)
    assert closes.threads.busy_seconds(1) == 0


def test_signals_reach_each_close_that_blocks_also_one_that_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a close that no signal ends makes signals rare, those of others are interrupted at once."""
    signals: dict[int, threading.Semaphore] = {}
    by_thread: dict[int, int] = {}
    go_on = threading.Event()

    def close(item: int) -> None:
        by_thread[threading.get_ident()] = item
        if item:  # as one that a signal interrupts
            assert signals[item].acquire(timeout=SECONDS)
        else:
            assert go_on.wait(SECONDS)

    def send(thread: int, number: int) -> None:
        assert number == signal.SIGURG
        if thread in by_thread:
            signals[by_thread[thread]].release()

    monkeypatch.setattr(signal, "pthread_kill", send)
    monkeypatch.setattr(owner_threads, "_SIGNAL_SHARE", 1e9)
    signals |= {item: threading.Semaphore(0) for item in range(4)}
    arrived = threading.Semaphore(0)
    threads = OwnerThreads(close, lambda _user, _item: arrived.release(), 8)
    try:
        threads.add(0, 0)
        assert signals[0].acquire(timeout=SECONDS)
        threads.add(1, 1, 2)
        threads.add(2, 3)
        for _ in range(3):
            assert arrived.acquire(timeout=SECONDS)
        assert not signals[0].acquire(blocking=False), "the next signal is due in an hour"
    finally:
        go_on.set()
    assert arrived.acquire(timeout=SECONDS)


def test_a_hold_waits_for_what_has_begun_and_lets_nothing_begin(closes: Closes) -> None:
    """The process can only start another program when no thread is in a close."""
    threads = closes.threads
    threads.add(1, 1_000_000, 1)
    wait_for(lambda: threads.busy_seconds(1) > 0, "the close to begin")
    assert not threads.hold(time.monotonic())
    closes.release()
    assert threads.hold(time.monotonic() + SECONDS)
    assert closes.wait(1) == [(1, 1_000_000)]
    threads.add(2, 2)
    assert threads.hold(time.monotonic() + SECONDS)
    assert (threads.pending(1), threads.pending(2)) == (1, 1)
    threads.let_go()
    assert set(closes.wait(2)) == {(1, 1_000_000), (1, 1), (2, 2)}


def test_without_items_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []  # and not a count of all threads: those of another test may be ending
    monkeypatch.setattr(_thread, "start_new_thread", lambda function, _arguments: started.append(function))
    OwnerThreads(lambda _item: None, lambda _user, _item: None, 8).add(1)
    assert started == []
