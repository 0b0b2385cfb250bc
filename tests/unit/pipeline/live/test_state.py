"""The state: a repeated batch is counted once, and a decided alert stays until it is published."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.config.live import LiveSettings, Threshold
from sbusd.pipeline.errors import PipelineError
from sbusd.pipeline.live.minutes import ALL, Group
from sbusd.pipeline.live.state import STATE, LiveState, Losses

SETTINGS = LiveSettings(thresholds=(Threshold("flood", "messages", 100),))
START = 60.0 * 1000


def group(minute: int, messages: int) -> Group:
    """Return the sums of some messages."""
    return Group(minute, "k", 1, (messages, 0, 0, 0, 0))


def test_a_repeated_batch_is_counted_once_also_after_a_kill(tmp_path: Path) -> None:
    state = LiveState()
    state.begin("q", START)
    assert state.fold(0, [group(1000, 5)], Losses())
    state.save(tmp_path)
    again = LiveState.load(tmp_path)
    again.begin("q", START)
    assert not again.fold(0, [group(1000, 5)], Losses(5, 0, 1000, 1000))
    assert again.fold(1, [group(1000, 2)], Losses(7, 1, 1000, 1000))
    assert again.minutes.by_number[1000].value(ALL, "", "messages") == 7
    assert (again.counts["messages"], again.counts["lost"], again.counts["repeated_batches"], again.counts["starts"]) == (7, 7, 1, 2)


def test_batches_of_another_query_are_new() -> None:
    state = LiveState(query="a", batch=9)
    state.begin("b", START)
    assert state.fold(0, [group(1000, 1)], Losses())


def test_decisions_stay_until_they_are_published(tmp_path: Path) -> None:
    state = LiveState()
    state.begin("q", START)
    state.fold(0, [group(1000, 100)], Losses())
    assert state.close(SETTINGS, {}, START + 60 + 9, "h") == 0
    assert state.close(SETTINGS, {}, START + 60 + 10, "h") == 1
    assert state.close(SETTINGS, {}, START + 60 + 11, "h") == 0
    assert state.close(SETTINGS, {}, START + 180 + 10, "h") == 2
    state.save(tmp_path)
    again = LiveState.load(tmp_path)
    assert [(each.number, each.key) for each in again.pending] == [(1, "alert/flood/all"), (2, "alert/flood/all")]
    assert again == state


def test_minutes_without_a_job_neither_clear_nor_raise() -> None:
    state = LiveState()
    state.begin("q", START)
    state.fold(0, [group(1000, 100)], Losses())
    state.close(SETTINGS, {}, START + 70, "h")
    state.begin("q", START + 600)
    state.close(SETTINGS, {}, START + 670, "h")
    assert state.raised == {"flood": {""}}
    state.close(SETTINGS, {}, START + 730, "h")
    assert (state.raised, state.decided) == ({}, 2)


def test_late_rows_are_counted_and_change_no_alert() -> None:
    state = LiveState()
    state.begin("q", START)
    state.close(SETTINGS, {}, START + 70, "h")
    state.fold(0, [group(1000, 100)], Losses())
    state.close(SETTINGS, {}, START + 130, "h")
    assert (state.counts["late"], state.decided) == (100, 0)


def test_a_clock_that_is_set_back_does_not_stop_the_alerts() -> None:
    state = LiveState()
    state.begin("q", START + 6000)
    state.close(SETTINGS, {}, START + 6070, "h")
    state.close(SETTINGS, {}, START, "h")
    state.fold(0, [group(1001, 100)], Losses())
    state.close(SETTINGS, {}, START + 130, "h")
    assert state.raised == {"flood": {""}}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 1}', b"[" * 100_000])
def test_a_damaged_file_is_one_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(PipelineError, match="damaged file"):
        LiveState.load(tmp_path)


def test_another_version_is_one_error(tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(b'{"version": 99}')
    with pytest.raises(PipelineError, match="unsupported version 99"):
        LiveState.load(tmp_path)
