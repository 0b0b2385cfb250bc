"""The counters of connections and of the bus."""

from __future__ import annotations

from sbusctl.commands.counters import connection_lines, stats_lines
from sbusctl.formatting import human_duration, local_time
from sbusctl.responses import connection_info

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

_STATS = {
    "scope": "bus",
    "version": "1.2",
    "uptime_seconds": 61.0,
    "new": None,
    "counters": {"messages": 12345, "received_bytes": 2048},
    "log": {"written": 1, "odd\x1b": "x\ny"},
}


def test_the_table_and_its_sums() -> None:
    page = connection_lines([_FULL], 4, now=1061.5, legend=True, width=None)
    assert " ".join(page[0].split()) == (
        "ID PID USER COMMAND UNIT SLICE AGE SUBS IN IN-BYTES OUT OUT-BYTES QUEUED QUEUED-BYTES LOST REFUSED"
    )
    assert page[1].split() == ["12", "-1", "root", "-", "-", "-", "1min1s", "3", "5", "2KiB", "7", "900B", "0", "0B", "2", "1"]
    assert page[2:] == ["", "1 connection listed, 4 of other users hidden."]


def test_without_a_legend_there_are_rows_alone() -> None:
    page = connection_lines([_FULL, _FULL], 4, now=1061.5, legend=False, width=None)
    assert len(page) == 2
    assert connection_lines([], 4, now=0.0, legend=False, width=None) == []


def test_the_unit_is_that_which_the_bus_reports() -> None:
    reported = {"unit": "user@7.service", "slice": "user-7.slice", "user_unit": "a\x1b.service"}
    (row,) = connection_lines([connection_info({"id": 1, "pid": 1, "since": 1e12, **reported})], 0, now=0.0, legend=False, width=None)
    assert row.split()[4:6] == [r"user@7.service/a\x1b.service", "user-7.slice"]


def test_an_older_bus_leaves_dashes() -> None:
    (row,) = connection_lines([connection_info({"id": 1})], 0, now=0.0, legend=False, width=None)
    assert row.split() == ["1", *["-"] * 15]


def test_sections_and_units() -> None:
    assert stats_lines(_STATS, now=0.0, legend=True) == [
        "version         1.2",
        "new             -",
        "uptime          1min1s",
        "",
        "COUNTERS",
        "messages        12345",
        "received_bytes  2KiB",
        "",
        "LOG",
        "written         1",
        r"odd\x1b         x\ny",
    ]


def test_without_a_legend_no_headings() -> None:
    assert stats_lines(_STATS, now=0.0, legend=False) == [line for line in stats_lines(_STATS, now=0.0, legend=True) if "  " in line]


def test_an_empty_answer_is_an_empty_page() -> None:
    assert stats_lines({}, now=0.0, legend=True) == []


def test_waits_are_named_one_in_a_line() -> None:
    waits = [
        {"publisher": 12, "publisher_uid": 0, "recipient": 7, "recipient_uid": 0, "paced": True, "ms": 1500},
        {"publisher": 3, "recipient": None, "paced": False},
    ]
    page = stats_lines({"waits": waits}, now=0.0, legend=True)
    assert page[:2] == ["", "BLOCKED PUBLISHERS"]
    assert [" ".join(line.split()) for line in page[2:]] == [
        f"12 of root: blocked by 7 of root for {human_duration(1.5)}, paced",
        "3 of -: blocked by - of - for -",
    ]
    assert stats_lines({"waits": []}, now=0.0, legend=True) == []


def test_a_connection_s_own_waits_are_numbers() -> None:
    page = stats_lines({"connection": {"blocked_by": [{"id": 7, "ms": 3}, {"id": None}], "blocks": []}}, now=0.0, legend=False)
    assert [line.split() for line in page] == [["blocked_by", "7", "+1"], ["blocks", "-"]]


def test_the_begin_of_the_counters_is_a_date_with_its_age() -> None:
    (line,) = stats_lines({"counted_since": 1_795_855_155.069}, now=1_795_855_155.069 + 3_600, legend=False)
    assert line == f"counted_since  {local_time(1_795_855_155.069)} (1h ago)"
    for strange in (1e300, float("nan"), float("inf"), -1.0, "x", None, True):
        (line,) = stats_lines({"counted_since": strange}, now=0.0, legend=False)
        assert " ago" not in line
