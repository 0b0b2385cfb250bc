"""The line and the exit status for an error."""

from __future__ import annotations

import io
import signal

import pytest

from sbus import CallTimeout, NoBus, NoRecipient, PayloadTooLarge, PeerDisconnected, RemoteError, TimedOut
from sbusctl import errors
from sbusctl.errors import EXIT_SIGNALS, error_text, exit_on_signals, status_of
from tools.stage import ROOT

pytestmark = pytest.mark.usefixtures("restored_signals")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (NoRecipient("c"), 3, "no service for the command"),
        (RemoteError("c", "no"), 4, "the service returned an error"),
        (PeerDisconnected("c"), 5, "the service disconnected"),
        (CallTimeout("c", 1.0), 6, "no response within the timeout"),
        (TimedOut("ping", 1.0), 1, "Failure: "),
        (NoBus("there", "gone"), 1, "Failure: "),
        (OSError("disk"), 1, "Failure: "),
    ],
)
def test_the_status_and_the_manual(error: Exception, status: int, words: str) -> None:
    assert status_of(error) == status
    section = (ROOT / "man" / "sbusctl.1").read_text("utf-8").split("\n.Sh EXIT STATUS\n")[1].split("\n.Sh ")[0]
    assert words in section.split(f"\n.It {status}\n")[1].split("\n.It ")[0]


def test_only_a_publication_that_is_too_large_can_be_a_blob() -> None:
    publication = PayloadTooLarge(9, 8)
    text = "packet too long: 9 bytes, at most 8 can be sent"
    assert error_text(publication) == f"{text}; 'sbusctl pub --blob FILE KEY' sends more"
    assert error_text(publication.without_advice()) == text


def test_complaints_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    errors.print_error("no bus at /a\nb\x1b[31m")
    assert capsys.readouterr().err == "sbusctl: no bus at /a\\nb\\x1b[31m\n"


def test_an_error_message_that_cannot_be_written_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    errors.print_error("x")
    assert closed.closed


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
