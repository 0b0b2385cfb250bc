"""Who would get it."""

from __future__ import annotations

from sbusd.ctl.commands.trace import lines
from sbusd.ctl.responses import trace_entry

_HEAD = {"key": "a/b", "publishable": True, "reason": "no rule restricts publishing to this key"}
_BLOCKS = {"when_full": "block", "blocks": [{"id": 7}, {"id": None}], "blocks_count": 5}
_GETS = trace_entry({"id": 1, "pid": -1, "uid": 0, "patterns": ["a/*", "", "x\ny"], **_BLOCKS}, gets_it=True)
_NOT = trace_entry({"id": 22, "pid": -1, "uid": 0, "reason": "no pattern matches"}, gets_it=False)


def test_the_verdict_the_table_and_the_sums() -> None:
    assert lines(_HEAD, [_GETS, _NOT], 3, legend=True, width=None) == [
        "a/b: may be published: no rule restricts publishing to this key",
        "",
        "ID  PID  USER  COMMAND  RECEIVES  WHEN-FULL  BLOCKS  REASON",
        r" 1   -1  root  -        yes       block      7 +4    a/* '' x\ny",
        "22   -1  root  -        no        -          -       no pattern matches",
        "",
        "1 connection would receive it, 1 would not, 3 of other users hidden.",
    ]


def test_without_a_legend_there_are_the_verdict_and_the_rows() -> None:
    assert len(lines(_HEAD, [_GETS, _NOT], 3, legend=False, width=None)) == 3


def test_a_recipient_whose_patterns_are_not_told() -> None:
    (_, row) = lines(_HEAD, [trace_entry({"id": 1}, gets_it=True)], 0, legend=False, width=None)
    assert row.split() == ["1", "-", "-", "-", "yes", "-", "-", "-"]


def test_other_verdicts() -> None:
    def verdict(**head: object) -> str:
        return lines(head, [], 0, legend=False, width=None)[0]

    assert verdict(key="!/x\x1b", publishable=False) == r"!/x\x1b: may not be published"
    assert verdict(key="a", publishable="yes", reason="r") == "a: not known whether it may be published: r"
