"""The table of connections."""

from __future__ import annotations

from sbusd.ctl.commands.connections import lines
from sbusd.ctl.responses import connection_info

_FULL = connection_info(
    {
        "id": 12,
        "pid": -1,
        "uid": 0,
        "gid": 0,
        "since": 1000.0,
        "subscriptions": 3,
        "received_packets": 5,
        "received_bytes": 2048,
        "delivered_packets": 7,
        "delivered_bytes": 900,
        "queued_packets": 0,
        "queued_bytes": 0,
        "lost_packets": 2,
        "refused_packets": 1,
    }
)


def test_the_table_and_its_sums() -> None:
    page = lines([_FULL], 4, now=1061.5, legend=True, width=None)
    assert " ".join(page[0].split()) == "ID PID USER COMMAND UNIT AGE SUBS IN IN-BYTES OUT OUT-BYTES QUEUED QUEUED-BYTES LOST REFUSED"
    assert page[1].split() == ["12", "-1", "root", "-", "-", "1min1s", "3", "5", "2KiB", "7", "900B", "0", "0B", "2", "1"]
    assert page[2:] == ["", "1 connection listed, 4 of other users hidden."]


def test_without_a_legend_there_are_rows_alone() -> None:
    page = lines([_FULL, _FULL], 4, now=1061.5, legend=False, width=None)
    assert len(page) == 2
    assert lines([], 4, now=0.0, legend=False, width=None) == []


def test_an_older_bus_leaves_dashes() -> None:
    (row,) = lines([connection_info({"id": 1})], 0, now=0.0, legend=False, width=None)
    assert row.split() == ["1", *["-"] * 14]
