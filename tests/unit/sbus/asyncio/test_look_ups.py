"""Look-ups in threads: one for each user, a time limit, and a program that ends without waiting for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial

import pytest

from sbus.asyncio.look_ups import LookUps, in_thread

WAIT_SECONDS = 60.0
ALICE, BOB, CAROL = 1_000, 1_001, 1_002


class CountingDirectory:
    """A directory service that does not answer until it is released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def ask(self, name: str) -> str:
        """Return *name*, later."""
        with self._lock:
            self.asked.append(name)
            self._now += 1
            self.most = max(self.most, self._now)
        assert self.answers.wait(WAIT_SECONDS)
        with self._lock:
            self._now -= 1
        return name


@pytest.fixture
def directory() -> Iterator[CountingDirectory]:
    """A directory service that answers at the end."""
    made = CountingDirectory()
    yield made
    made.answers.set()


async def until(is_done: Callable[[], bool]) -> None:
    """Wait for something that a thread does."""
    while not is_done():
        await asyncio.sleep(0.01)


def run(coroutine: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a test, at most for a minute."""

    async def main() -> None:
        await asyncio.wait_for(coroutine(), WAIT_SECONDS)

    asyncio.run(main())


def test_a_user_waits_only_for_itself(directory: CountingDirectory) -> None:
    async def main() -> None:
        look_ups = LookUps(WAIT_SECONDS)
        hung = [asyncio.create_task(look_ups.run(BOB, partial(directory.ask, f"bob {number}"))) for number in range(20)]
        await until(lambda: bool(directory.asked))
        assert await look_ups.run(ALICE, lambda: "alice") == "alice"
        assert directory.asked == ["bob 0"]
        directory.answers.set()
        assert await asyncio.gather(*hung) == [f"bob {number}" for number in range(20)]
        assert directory.asked == [f"bob {number}" for number in range(20)]
        assert directory.most == 1

    run(main)


def test_a_look_up_that_takes_too_long_is_an_error_and_keeps_its_thread(directory: CountingDirectory) -> None:
    async def main() -> None:
        look_ups = LookUps(0.05)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await look_ups.run(BOB, lambda: directory.ask("bob"))
        assert directory.asked == ["bob"]
        assert await look_ups.run(ALICE, lambda: "alice") == "alice"

    run(main)


def test_the_number_of_threads_is_limited(directory: CountingDirectory) -> None:
    async def main() -> None:
        look_ups = LookUps(WAIT_SECONDS, max_threads=2)
        tasks = [asyncio.create_task(look_ups.run(user, partial(directory.ask, str(user)))) for user in (ALICE, BOB, CAROL)]
        await until(lambda: len(directory.asked) == 2)
        await asyncio.sleep(0)
        assert sorted(directory.asked) == [str(ALICE), str(BOB)]
        directory.answers.set()
        assert await asyncio.gather(*tasks) == [str(ALICE), str(BOB), str(CAROL)]
        assert directory.most <= 2

    run(main)


def test_an_error_is_raised_to_the_caller_and_ends_the_turn() -> None:
    def fail() -> None:
        raise LookupError("no such user")

    async def main() -> None:
        look_ups = LookUps(WAIT_SECONDS)
        for _ in range(2):
            with pytest.raises(LookupError, match="no such user"):
                await look_ups.run(BOB, fail)

    run(main)


def test_without_a_thread_the_turn_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        look_ups = LookUps(WAIT_SECONDS)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_room)
            with pytest.raises(RuntimeError):
                await look_ups.run(BOB, lambda: "bob")
        assert await look_ups.run(BOB, lambda: "bob") == "bob"

    run(main)


def test_arguments_and_cancellation(directory: CountingDirectory) -> None:
    async def main() -> None:
        assert await in_thread(int, "11", base=2) == 3
        waiting = in_thread(directory.ask, "late")
        waiting.cancel()
        directory.answers.set()
        assert await in_thread(directory.ask, "next") == "next"

    run(main)


_HUNG = """
import asyncio, threading
from sbus.asyncio.look_ups import LookUps

begun = threading.Event()

def hang():
    begun.set()
    threading.Event().wait()

async def main():
    task = asyncio.ensure_future(LookUps().run(1000, hang))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    task.cancel()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_program_ends_although_a_look_up_does_not() -> None:
    assert subprocess.run([sys.executable, "-c", _HUNG], timeout=WAIT_SECONDS, check=False).returncode == 0
