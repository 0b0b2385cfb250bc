"""Signals that end sbusctl."""

from __future__ import annotations

import signal

import pytest

from sbusd.ctl.exit_signals import EXIT_SIGNALS, exit_on_signals

pytestmark = pytest.mark.usefixtures("restored_signals")


@pytest.mark.parametrize("number", EXIT_SIGNALS)
def test_signals_are_an_orderly_end(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught, exit_on_signals():
        signal.raise_signal(number)
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_a_second_signal_kills() -> None:
    handlers: list[object] = []

    def end() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            handlers.extend(signal.getsignal(number) for number in EXIT_SIGNALS)

    with pytest.raises(SystemExit), exit_on_signals():
        end()
    assert handlers == [signal.SIG_DFL, signal.SIG_DFL]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with exit_on_signals():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
