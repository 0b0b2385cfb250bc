"""The line and the exit status for an error."""

from __future__ import annotations

import io

import pytest

from sbusd.client import CallTimeout, NoBus, NoRecipient, PayloadTooLarge, PeerDisconnected, RemoteError, TimedOut
from sbusd.ctl import errors
from sbusd.ctl.errors import error_text, status_of
from tools.stage import ROOT


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
