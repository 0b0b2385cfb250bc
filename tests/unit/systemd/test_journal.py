"""What a service tells gets to where standard error leads: to the journal with its facts, or to a person in one line."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sbusd.systemd.journal import Event, EventJournal, Priority

SUSPENDED = Event("0" * 32, Priority.ERR, "suspended", "suspended: {reason}; times: {count}")


class Told(EventJournal):
    """A journal of some service."""

    identifier = "sbus-some"


def _journal_stream() -> dict[str, str]:
    """Return the environment of a service whose standard error leads to the journal."""
    error = os.fstat(2)
    return {"JOURNAL_STREAM": f"{error.st_dev}:{error.st_ino}"}


def test_a_person_reads_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Told({}).tell(SUSPENDED, reason="no\nroom\x1b[2J", count=3)
    assert capsys.readouterr().err == "sbus-some: suspended: no\\x0aroom\\x1b[2J; times: 3\n"


def test_the_journal_gets_fields() -> None:
    sent: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    Told(_journal_stream(), lambda *words, **fields: sent.append((words, fields))).tell(SUSPENDED, reason="full", count=7)
    ((words, fields),) = sent
    assert words == ("suspended: full; times: 7",)
    assert fields == {
        "MESSAGE_ID": SUSPENDED.id,
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "sbus-some",
        "SBUS_EVENT": "suspended",
        "SBUS_REASON": "full",
        "SBUS_COUNT": "7",
    }


@pytest.mark.parametrize("stream", ["", "x", "1:2"])
def test_another_stream_is_not_the_journal(stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    Told({"JOURNAL_STREAM": stream}, lambda *_, **__: pytest.fail("was sent")).tell(SUSPENDED, reason="full", count=1)
    assert "suspended: full" in capsys.readouterr().err


def test_what_cannot_be_told_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the journal is gone")

    Told(_journal_stream(), fail).tell(SUSPENDED, reason="full", count=1)
    assert capsys.readouterr().err == ""
