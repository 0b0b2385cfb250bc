"""What a call prints."""

from __future__ import annotations

import json

import pytest

from sbus import Answer, NoRecipient, Outcome, Peer, RemoteError
from sbusctl.commands.call import answer_json, outcome_json, print_outcomes
from sbusctl.output import JsonStyle

ONE = Peer(1, 61_999, 100, 42, b"!/cred/100/61999/42")
TWO = Peer(2, 61_999, 100, 43, b"!/cred/100/61999/43")

GOOD = Outcome(ONE, Answer(b"a\tb\n"), None)
BAD = Outcome(TWO, None, RemoteError("c", "two\x1blines"))


def test_outcomes_are_lines_and_complaints(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_outcomes([GOOD, BAD], "c", JsonStyle.OFF) == 4
    out, err = capsys.readouterr()
    assert out == "1\t61999\ta\\tb\\n\n"
    assert err == "sbusctl: connection 2 of 61999: 'c' failed: two\\x1blines\n"


def test_outcomes_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_outcomes([GOOD, BAD], "c", JsonStyle.SHORT) == 4
    one, two = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert one == {"type": "answer", "callee": {"id": 1, "uid": 61_999, "gid": 100, "pid": 42}, "twin": 0, "data": "a\tb\n"}
    assert (two["type"], two["kind"], two["callee"]["id"]) == ("error", "RemoteError", 2)


def test_all_went_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_outcomes([GOOD], "c", JsonStyle.OFF) == 0
    assert capsys.readouterr().err == ""


def test_a_group_call_without_members_has_no_recipient() -> None:
    with pytest.raises(NoRecipient):
        print_outcomes([], "c", JsonStyle.OFF)


def test_data_that_is_not_text() -> None:
    assert answer_json(Answer(b"\xff"), None) == {"type": "answer", "callee": None, "twin": 0, "data_base64": "/w=="}
    assert outcome_json(GOOD)["type"] == "answer"
