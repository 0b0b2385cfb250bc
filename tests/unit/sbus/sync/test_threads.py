"""One thread at a time is inside, whatever the order of their instructions, and every wait ends."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

from sbus.errors import TimedOut
from sbus.operations import Deadline
from sbus.sync import threads as threads_module
from sbus.sync.threads import Threads
from tests.support.alarms import Handlers, alarm

SECONDS = 60.0


def made() -> Threads:
    """Return the threads of a link that has nothing to do late."""
    return Threads(lambda: None)


class Stage:
    """Threads that use one ``Threads``, with pauses at random instructions of it."""

    def __init__(self, seed: int) -> None:
        self.threads = made()
        self.errors: list[str] = []
        self._seed = seed
        self._inside: list[str] = []

    def use(self, name: str) -> None:
        """Be inside once, go outside as the reader if there is none, and come back; note if another thread is inside too."""
        self.threads.run(partial(self._use, name))

    def _use(self, name: str) -> None:
        self._check(name)
        if not self.threads.has_reader:
            self.threads.unlocked(lambda: time.sleep(0))
            self._check(name)

    def _check(self, name: str) -> None:
        self._inside.append(name)
        time.sleep(0)
        if self._inside != [name]:
            self.errors.append(f"inside at the same time: {self._inside}")
        self._inside.remove(name)

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
        for _ in range(8):
            stage.use(name)

    stage.run(lambda: work("a"), lambda: work("b"), *([lambda: work("c")] if seed % 3 == 0 else []))


@pytest.mark.parametrize("seed", range(30))
def test_one_who_waits_is_woken(seed: int) -> None:
    """The condition is fulfilled by a thread that reads, or by one that just passes."""
    stage = Stage(seed)
    done: list[int] = []

    def wait() -> None:
        deadline = Deadline("waiting", SECONDS)
        while not done:
            if stage.threads.has_reader:
                stage.threads.wait(lambda: bool(done), deadline)
            else:
                stage.threads.unlocked(lambda: time.sleep(0.000_1))

    def fulfil() -> None:
        done.append(1)
        stage.threads.notify()

    works = [partial(stage.threads.run, work) for work in (wait, fulfil, wait)]
    stage.run(*works)


def test_a_wait_ends_with_its_deadline() -> None:
    threads = made()
    with pytest.raises(TimedOut, match=r"waiting took longer than 0\.01 s"):
        threads.run(lambda: threads.wait(lambda: False, Deadline("waiting", 0.01)))


def test_a_handler_that_waits_reads_instead_of_the_call_that_it_has_interrupted() -> None:
    """The reader leaves while both wait; the call cannot go on before the handler ends."""
    use = made()
    is_reading, may_leave = threading.Event(), threading.Event()
    readers: list[str] = []
    deadline = Deadline("waiting", SECONDS)

    def begin() -> bool:
        is_reading.set()
        return may_leave.wait(SECONDS)

    def wait(name: str) -> None:
        while not readers:
            if use.has_reader:
                use.wait(lambda: bool(readers), deadline)
            else:
                readers.append(name)
                use.notify()

    def handle() -> None:
        threading.Timer(0.1, may_leave.set).start()
        use.run(lambda: wait("handler"))

    reader = threading.Thread(target=use.run, args=(lambda: use.unlocked(begin),))
    try:
        reader.start()
        assert is_reading.wait(SECONDS)
        with alarm(handle, 0.1):
            use.run(lambda: wait("call"))
    finally:
        may_leave.set()
        reader.join(SECONDS)
    assert readers == ["handler"]


def test_a_handler_is_refused_where_the_call_cannot_go_on_without_it() -> None:
    """While the call changes something, and while it reads."""
    use = made()

    def wait() -> None:
        use.wait(lambda: False, Deadline("waiting", SECONDS))

    def refused(call: Callable[[], object]) -> None:
        with pytest.raises(RuntimeError, match="let the handler set a flag"):
            call()

    use.run(lambda: refused(lambda: use.run(lambda: None)))
    use.run(lambda: use.unlocked(lambda: refused(lambda: use.run(wait))))
    use.run(lambda: use.unlocked(lambda: use.run(lambda: None)))
    with use.lock:  # before the call has begun to change something
        refused(lambda: use.run(lambda: use.unlocked(lambda: None)))
    assert is_left(use)


def is_left(use: Threads) -> bool:
    """Return whether no thread uses, reads or waits, and another one can begin."""
    begun: list[int] = []
    thread = threading.Thread(target=use.run, args=(lambda: begun.append(1),), daemon=True)
    thread.start()
    thread.join(SECONDS)
    return bool(begun) and (use.is_held, use.is_inside, use.reader, use.waiting) == (False, False, 0, [])


@pytest.mark.parametrize("wait", ["unlocked", "outside"])
def test_what_a_handler_has_left_is_done_before_the_call_waits(wait: str) -> None:
    done: list[str] = []

    def do_late() -> None:
        while use.late:
            use.late.popleft()()

    use = Threads(do_late)

    def work() -> None:
        use.late.append(lambda: done.append("late"))
        getattr(use, wait)(lambda: done.append("wait"))

    use.run(work)
    assert done == ["late", "wait"]


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
            self._use.run(self._pass)

    def _pass(self) -> None:
        self.count += 1
        self._use.notify()
        go_outside = self._use.outside if self._use.has_reader else self._use.unlocked
        go_outside(lambda: time.sleep(0))


def test_a_handler_never_waits_with_the_lock() -> None:
    """It interrupts waits at any instruction, and waits for another thread, or it is refused."""
    use = made()
    passing = Passing(use)

    def work() -> None:
        deadline = Deadline("waiting", SECONDS)
        seen = passing.count
        while passing.count == seen:
            deadline.check()
            passing.wait_once(deadline)

    with passing, Handlers(lambda: use.run(work), 0.000_7, most=2) as handlers:
        for _ in range(3_000):
            use.run(lambda: passing.wait_once(Deadline("waiting", SECONDS)))
        end = time.monotonic() + SECONDS
        while not handlers.done and time.monotonic() < end:
            use.run(lambda: passing.wait_once(Deadline("waiting", SECONDS)))
    assert handlers.done
    assert is_left(use)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a destructor
def test_an_interrupt_at_any_instruction_leaves_nothing_behind() -> None:
    """Also while another thread uses it, when the interrupted one waits for the lock."""
    use = made()
    passing = Passing(use)
    is_armed = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_armed
        is_armed = False
        raise KeyboardInterrupt

    def work() -> None:
        try:
            passing.wait_once(Deadline("waiting", SECONDS))
        finally:
            assert use.is_held  # what a call undoes needs the lock

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with passing:
            for number in range(1_000):
                with suppress(KeyboardInterrupt):
                    is_armed = True
                    signal.setitimer(signal.ITIMER_REAL, 0.000_05 + number % 100 * 0.000_002)
                    while is_armed:
                        use.run(work)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert is_left(use)
