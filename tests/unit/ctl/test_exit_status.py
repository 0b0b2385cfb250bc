"""Each way in which a call fails has a status of its own, which sbusctl(1) tells."""

from __future__ import annotations

import pytest

from sbusd.client import CallTimeout, NoBus, NoRecipient, PeerDisconnected, RemoteError, TimedOut
from sbusd.ctl.exit_status import status_of
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
