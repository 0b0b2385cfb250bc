"""One thread at a time is inside, whatever the order of their instructions, and every wait ends."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from sbusd.client.operations import Deadline
from sbusd.client.sync import threads as threads_module
from sbusd.client.sync.threads import Threads
from tests.support.alarms import Handlers, alarm

SECONDS = 20.0


class Stage:
    """Threads that use one ``Threads``, with pauses at random instructions of it."""

    def __init__(self, seed: int) -> None:
        self.threads = Threads()
        self.errors: list[str] = []
        self._seed = seed
        self._inside: list[str] = []

    def use(self, name: str) -> None:
        """Be inside once, and note if another thread is too."""
        self.threads.enter()
        self._inside.append(name)
        time.sleep(0)
        if self._inside != [name]:
            self.errors.append(f"inside at the same time: {self._inside}")
        self._inside.remove(name)
        self.threads.exit()

    def wait_outside(self, name: str) -> None:
        """Be inside, go outside as the reader, and come back."""
        self.threads.enter()
        if not self.threads.has_reader:
            self.threads.unlocked(lambda: time.sleep(0))
        self._inside.append(name)
        if self._inside != [name]:
            self.errors.append(f"inside at the same time after a wait: {self._inside}")
        self._inside.remove(name)
        self.threads.exit()

    def run(self, *works: Callable[[], object]) -> None:
        """Run *works* in threads, and fail if one does not end."""
        running = [threading.Thread(target=self._traced, args=(number, work), daemon=True) for number, work in enumerate(works)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(SECONDS)
        assert not [thread for thread in running if thread.is_alive()], "a thread is stuck"
        assert self.errors == []

    def _traced(self, number: int, work: Callable[[], object]) -> None:
        rng = random.Random(f"{self._seed} {number}")

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            if frame.f_code.co_filename != threads_module.__file__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and rng.random() < 0.1:
                time.sleep(rng.choice((0, 0.000_01, 0.000_2)))
            return trace

        sys.settrace(trace)
        try:
            work()
        except Exception as error:
            self.errors.append(repr(error))
        finally:
            sys.settrace(None)


@pytest.mark.parametrize("seed", range(60))
def test_one_thread_at_a_time_is_inside(seed: int) -> None:
    stage = Stage(seed)

    def work(name: str) -> None:
        for _ in range(4):
            stage.use(name)
            stage.wait_outside(name)

    stage.run(lambda: work("a"), lambda: work("b"), *([lambda: work("c")] if seed % 3 == 0 else []))


@pytest.mark.parametrize("seed", range(30))
def test_one_who_waits_is_woken(seed: int) -> None:
    """The condition is fulfilled by a thread that reads, or by one that just passes."""
    stage = Stage(seed)
    done: list[int] = []

    def wait() -> None:
        stage.threads.enter()
        deadline = Deadline("waiting", SECONDS)
        while not done:
            if stage.threads.has_reader:
                stage.threads.wait(lambda: bool(done), deadline)
            else:
                stage.threads.unlocked(lambda: time.sleep(0.000_1))
        stage.threads.exit()

    def fulfil() -> None:
        stage.use("fulfil")
        stage.threads.enter()
        done.append(1)
        stage.threads.notify()
        stage.threads.exit()

    stage.run(wait, fulfil, wait)


def test_the_owner_takes_no_lock_until_another_thread_comes() -> None:
    threads, me = Threads(), threading.get_ident()
    for _ in range(2):
        threads.enter()
        assert (threads.owner, threads.alone, threads.inside) == (me, me, 0)
        threads.exit()
        assert (threads.alone, threads.inside) == (0, 0)
    stage = Stage(0)
    stage.threads = threads
    stage.run(lambda: stage.use("other"))
    threads.enter()
    assert (threads.owner, threads.alone, threads.inside) == (0, 0, me)
    threads.exit()
    assert threads.inside == 0


def test_an_interrupted_exit_is_made_up_for() -> None:
    """As after a KeyboardInterrupt before exit()."""
    stage = Stage(0)
    stage.threads.enter()
    stage.use("again")
    stage.run(lambda: stage.use("other"))
    stage.threads.enter()
    stage.use("again")
    stage.run(lambda: stage.use("other"))


def test_an_interrupted_owner_does_not_stop_others_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "_OWNER_MOST_SECONDS", 0.05)
    stage = Stage(0)
    stage.threads.enter()  # and never leaves
    stage.run(lambda: stage.use("other"))
    stage.run(lambda: stage.use("other"))


def test_a_wait_ends_with_its_deadline() -> None:
    threads = Threads()
    Stage(0).run(lambda: None)
    other = threading.Thread(target=threads.enter)
    other.start()
    other.join(SECONDS)
    threads.alone = 0  # the thread has ended outside
    threads.enter()
    with pytest.raises(Exception, match=r"waiting took longer than 0\.01 s"):
        threads.wait(lambda: False, Deadline("waiting", 0.01))
    threads.exit()


def test_a_handler_that_waits_reads_instead_of_the_call_that_it_has_interrupted() -> None:
    """The reader leaves while both wait; the call cannot go on before the handler ends."""
    use = Threads()  # frames with a variable threads are taken for those of a link
    is_reading, may_leave = threading.Event(), threading.Event()
    readers: list[str] = []
    deadline = Deadline("waiting", SECONDS)

    def begin() -> bool:
        is_reading.set()
        return may_leave.wait(SECONDS)

    def read_until_told() -> None:
        use.enter()
        use.unlocked(begin)
        use.exit()

    def wait(name: str) -> None:
        use.enter()
        try:
            while not readers:
                if use.has_reader:
                    use.wait(lambda: bool(readers), deadline)
                else:
                    readers.append(name)
                    use.notify()
        finally:
            use.exit()

    def handle() -> None:
        threading.Timer(0.1, may_leave.set).start()
        wait("handler")

    reader = threading.Thread(target=read_until_told)
    try:
        use.enter()
        use.exit()
        reader.start()
        assert is_reading.wait(SECONDS)
        with alarm(handle, 0.1):
            wait("call")
    finally:
        may_leave.set()
        reader.join(SECONDS)
    assert readers == ["handler"]


class Passing:
    """A thread that goes inside and outside again and again; ``count`` says how often. A context."""

    def __init__(self, use: Threads) -> None:
        self.count = 0
        self._use = use
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Passing:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def wait_once(self, deadline: Deadline) -> None:
        """Wait, inside, for the next time, or for a moment as the reader."""
        seen = self.count
        if self._use.has_reader:
            self._use.wait(lambda: self.count != seen, deadline)
        else:
            self._use.unlocked(lambda: time.sleep(0.000_05))

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._use.enter()
            self.count += 1
            self._use.notify()
            go_outside = self._use.outside if self._use.has_reader else self._use.unlocked
            go_outside(lambda: time.sleep(0))
            self._use.exit()


def test_a_handler_never_waits_with_the_lock() -> None:
    """It interrupts waits at any instruction, and waits for another thread, or it is refused."""
    use = Threads()
    passing = Passing(use)

    def work() -> None:
        deadline = Deadline("waiting", SECONDS)
        use.enter()
        seen = passing.count
        while passing.count == seen:
            deadline.check()
            passing.wait_once(deadline)
        use.exit()

    use.enter()
    use.exit()
    with passing, Handlers(work, 0.000_7, most=2) as handlers:
        for _ in range(3_000):
            use.enter()
            passing.wait_once(Deadline("waiting", SECONDS))
            use.exit()
    assert handlers.done
    assert (use.alone, use.inside, use.reader, use.waiting) == (0, 0, 0, [])


def test_a_thread_whose_return_is_interrupted_is_inside_when_it_undoes_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a KeyboardInterrupt while it waits for the lock."""
    use = Threads()
    use.enter()
    go_inside = Threads._go_inside

    def interrupt(self: Threads, thread: int) -> None:
        monkeypatch.setattr(Threads, "_go_inside", go_inside)
        raise KeyboardInterrupt

    for wait in (use.unlocked, use.outside):
        monkeypatch.setattr(Threads, "_go_inside", interrupt)
        with pytest.raises(KeyboardInterrupt):
            wait(lambda: None)
        assert threading.get_ident() in (use.alone, use.inside)
        assert not use.is_socket_used
    use.exit()


def test_a_wait_that_is_interrupted_leaves_no_waiter() -> None:
    use = Threads()
    Stage(0).run(use.enter, lambda: None)
    use.alone = 0  # the thread has ended outside
    use.enter()

    class Interrupting(Deadline):
        def remaining(self) -> float | None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use.wait(lambda: False, Interrupting("waiting", SECONDS))
    assert use.waiting == []
    assert use.inside == threading.get_ident()
    use.exit()


def test_a_handler_that_is_outside_does_not_end_the_reading_of_the_call() -> None:
    """An exception of a nested handler has prevented its return; then it leaves."""
    use = Threads()
    use.enter()

    def leave() -> int:
        use.exit()
        return use.reader

    assert use.unlocked(leave) == threading.get_ident()
    assert use.reader == 0
    use.exit()
