"""What the recorder tells: every event has an id of its own, and gets to where standard error leads."""

from __future__ import annotations

import os
import re
import string
from typing import Any

import pytest

from sbusd.recorder import journal
from sbusd.recorder.journal import EVENTS, RESUMED, SUSPENDED, RecorderJournal


def test_ids_and_names_are_unique() -> None:
    assert len(EVENTS) > 10
    assert len({event.id for event in EVENTS}) == len({event.name for event in EVENTS}) == len(EVENTS)
    assert all(re.fullmatch("[0-9a-f]{32}", event.id) for event in EVENTS)


def test_every_event_that_the_code_tells_has_its_facts() -> None:
    """Words with a name that no call gives would be lost at the worst moment."""
    from tests.support.imports import PACKAGE
    from tools.stage import ROOT

    code = "\n".join(path.read_text() for path in (ROOT / PACKAGE / "recorder").glob("*.py"))
    names = {name for name, value in vars(journal).items() if isinstance(value, journal.Event)}
    calls = re.findall(r"\.tell\(\s*([A-Z_]+)(.*?)\)\n", code, re.DOTALL)
    assert {name for name, _ in calls} == names
    for name, arguments in calls:
        wanted = {field for _, field, _, _ in string.Formatter().parse(getattr(journal, name).words) if field}
        assert wanted == set(re.findall(r"(\w+)=", arguments)), name


def test_a_person_reads_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    RecorderJournal({}).tell(SUSPENDED, reason="no\nroom\x1b[2J")
    assert capsys.readouterr().err == (
        "sbus-recorder: cannot write the record, so recording is suspended: no\\x0aroom\\x1b[2J; "
        "the bus goes on, what is missing is counted\n"
    )


def test_the_journal_gets_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    error = os.fstat(2)
    told = RecorderJournal({"JOURNAL_STREAM": f"{error.st_dev}:{error.st_ino}"}, lambda *words, **fields: sent.append((words, fields)))
    told.tell(RESUMED, lost=7)
    assert sent == [
        (
            ("recording again; rows that are missing: 7",),
            {"MESSAGE_ID": RESUMED.id, "PRIORITY": "5", "SYSLOG_IDENTIFIER": "sbus-recorder", "SBUS_EVENT": "resumed", "SBUS_LOST": "7"},
        )
    ]


@pytest.mark.parametrize("stream", ["", "x", "1:2"])
def test_another_stream_is_not_the_journal(stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    RecorderJournal({"JOURNAL_STREAM": stream}, lambda *_, **__: pytest.fail("was sent")).tell(RESUMED, lost=1)
    assert "recording again" in capsys.readouterr().err


def test_what_cannot_be_told_ends_nothing() -> None:
    error = os.fstat(2)

    def fail(*_: object, **__: object) -> None:
        raise OSError("the journal is gone")

    RecorderJournal({"JOURNAL_STREAM": f"{error.st_dev}:{error.st_ino}"}, fail).tell(RESUMED, lost=1)
