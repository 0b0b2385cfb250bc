"""Signals wake up a loop that watches their descriptor."""

from __future__ import annotations

import os
import select
import signal
import threading

import pytest

from sbus_programs.systemd.signals import ENDING, EndingSignals, Signals
from tests.support.switch_harness import SwitchHarness

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def is_readable(signals: Signals) -> bool:
    """Return whether a wait for *signals* would return immediately."""
    return bool(select.select([signals], [], [], 0)[0])


@pytest.mark.parametrize("number", ENDING)
def test_an_ending_signal_calls_stop_and_is_readable_until_drained(number: signal.Signals) -> None:
    stopped: list[bool] = []
    with Signals(lambda: stopped.append(True)) as signals:
        assert not is_readable(signals)
        os.kill(os.getpid(), number)
        assert stopped == [True]
        assert is_readable(signals)
        signals.drain()
        assert not is_readable(signals)
        signals.drain()


def test_a_signal_for_another_thread_is_readable_for_a_waiting_one() -> None:
    stopped: list[bool] = []
    with EndingSignals(lambda: stopped.append(True)) as signals:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            other = threading.Thread(target=_take_a_signal)
            other.start()
            # Nothing interrupts this wait.
            assert select.select([signals], [], [], 60)[0] == [signals]
            other.join()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert stopped == [True]


def _take_a_signal() -> None:
    """Send a signal to this process that this thread gets."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_hangup_is_returned_once_and_stops_nothing() -> None:
    stopped: list[bool] = []
    with Signals(lambda: stopped.append(True)) as signals:
        assert not signals.take_hangup()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert is_readable(signals)
        signals.drain()
        assert signals.take_hangup()
        assert not signals.take_hangup()
    assert stopped == []


def test_many_signals_do_not_block() -> None:
    stopped: list[bool] = []
    with Signals(lambda: stopped.append(True)) as signals:
        for _ in range(5_000):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stopped
        signals.drain()
        assert not is_readable(signals)


def test_the_previous_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in HANDLED]
    with Signals(lambda: None) as signals:
        assert [signal.getsignal(number) for number in HANDLED] != before
        fd = signals.fileno()
    assert [signal.getsignal(number) for number in HANDLED] == before
    assert signal.set_wakeup_fd(-1) == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("wait", ["turn", "run"])
def test_a_signal_ends_the_wait_of_a_switch(harness: SwitchHarness, wait: str) -> None:
    stopped: list[bool] = []
    with Signals(lambda: stopped.append(True)) as signals:
        harness.switch.watch(signals.fileno(), signals.drain)
        previous = signal.signal(signal.SIGALRM, lambda _number, _frame: os.kill(os.getpid(), signal.SIGTERM))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            while not stopped:
                (harness.switch.run if wait == "run" else harness.switch.turn)(-1)
        finally:
            signal.signal(signal.SIGALRM, previous)
        harness.run()
