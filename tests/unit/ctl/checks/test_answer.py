"""What a bus says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbusd import __version__
from sbusd.ctl.checks.answer import Answer, judge, open_connections, unreachable
from sbusd.ctl.checks.finding import Result

_GOOD = Answer(["ping", "stats"], {"version": __version__, "switch": "compiled", "counters": {"connections": 7}}, 1)


def test_a_good_bus() -> None:
    found = judge(_GOOD)
    assert [finding.check for finding in found] == ["connection", "protocol", "version"]
    assert all(finding.result is Result.OK for finding in found)
    assert open_connections(_GOOD) == 7


def test_what_does_not_answer_as_sbusd_fails() -> None:
    found = judge(Answer(None, {}, 1, "the bus does not answer !/bus/features"))
    assert [finding.result for finding in found] == [Result.OK, Result.FAIL]
    assert "does not answer !/bus/features" in found[1].reason


@pytest.mark.parametrize(("version", "word"), [("9.9.9", "9.9.9"), (None, "does not report")])
def test_another_version_is_a_warning(version: str | None, word: str) -> None:
    found = judge(replace(_GOOD, stats={} if version is None else {"version": version}))
    assert [finding.result for finding in found] == [Result.OK, Result.OK, Result.WARN]
    assert word in found[2].reason


def test_another_user_gets_no_counters() -> None:
    assert len(judge(replace(_GOOD, stats={"version": __version__, "scope": "connection"}))) == 3
    assert open_connections(replace(_GOOD, stats={})) is None


def test_a_bus_that_is_not_there_fails_with_the_reason() -> None:
    (finding,) = unreachable(ConnectionError("cannot connect to /x: refused"), "/x")
    assert (finding.result, finding.reason) == (Result.FAIL, "cannot connect to /x: refused")
