"""The state: a repeated batch is counted once, and a decided alert stays until it is published."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.pipeline.errors import PermanentError
from sbus_archive.pipeline.live.live_state import MAX_PENDING, MINUTES, STATE, LiveState, Losses, lines_of
from sbus_archive.pipeline.live.minutes import ALL, MAX_SUBJECTS, USER, Group
from sbus_archive.pipeline.live.open_calls import BatchCalls, CallRequest
from sbus_archive.storage.files import publish_file
from sbus_programs.config.live import LiveSettings, Threshold

SETTINGS = LiveSettings(thresholds=(Threshold("flood", "messages", 100),))
START = 60.0 * 1000


class KilledError(BaseException):
    """Simulates SIGKILL."""


def group(minute: int, messages: int) -> Group:
    """Return the sums of some messages."""
    return Group(minute, "k", 1, (messages, 0, 0, 0, 0))


def unknown(_: int) -> None:
    """Return no usual numbers."""


def test_a_repeated_batch_is_counted_once_also_after_a_kill(tmp_path: Path) -> None:
    state = LiveState()
    state.begin("q", START)
    assert state.fold(0, [group(1000, 5)], Losses(), SETTINGS, frozenset())
    state.save(tmp_path)
    again = LiveState.load(tmp_path)
    again.begin("q", START)
    assert not again.fold(0, [group(1000, 5)], Losses(5, 0, 1000, 1000), SETTINGS, frozenset())
    assert again.fold(1, [group(1000, 2)], Losses(7, 1, 1000, 1000), SETTINGS, frozenset())
    assert again.minutes.by_number[1000].value(ALL, "", "messages") == 7
    assert (again.counts["messages"], again.counts["lost"], again.counts["repeated_batches"], again.counts["starts"]) == (7, 7, 1, 2)


def test_batches_of_another_query_are_new() -> None:
    state = LiveState(query="a", batch=9)
    state.begin("b", START)
    assert state.fold(0, [group(1000, 1)], Losses(), SETTINGS, frozenset())


def test_decisions_stay_until_they_are_published(tmp_path: Path) -> None:
    state = LiveState()
    state.begin("q", START)
    state.fold(0, [group(1000, 100)], Losses(), SETTINGS, frozenset())
    assert state.close(SETTINGS, unknown, START + 60 + 9, "h") == 0
    assert state.close(SETTINGS, unknown, START + 60 + 10, "h") == 1
    assert state.close(SETTINGS, unknown, START + 60 + 11, "h") == 0
    assert state.close(SETTINGS, unknown, START + 180 + 10, "h") == 2
    state.save(tmp_path)
    again = LiveState.load(tmp_path)
    assert [(each.number, each.key) for each in again.pending] == [(1, "alert/flood/all"), (2, "alert/flood/all")]
    assert again == state


def test_minutes_without_a_job_neither_clear_nor_raise() -> None:
    state = LiveState()
    state.begin("q", START)
    state.fold(0, [group(1000, 100)], Losses(), SETTINGS, frozenset())
    state.close(SETTINGS, unknown, START + 70, "h")
    state.begin("q", START + 600)
    state.close(SETTINGS, unknown, START + 670, "h")
    assert state.raised == {"flood": {""}}
    state.close(SETTINGS, unknown, START + 730, "h")
    assert (state.raised, state.decided) == ({}, 2)


def test_late_rows_are_counted_and_change_no_alert() -> None:
    state = LiveState()
    state.begin("q", START)
    state.close(SETTINGS, unknown, START + 70, "h")
    state.fold(0, [group(1000, 100)], Losses(), SETTINGS, frozenset())
    state.close(SETTINGS, unknown, START + 130, "h")
    assert (state.counts["late"], state.decided) == (100, 0)


def test_a_clock_that_is_set_back_does_not_stop_the_alerts() -> None:
    state = LiveState()
    state.begin("q", START + 6000)
    state.close(SETTINGS, unknown, START + 6070, "h")
    state.close(SETTINGS, unknown, START, "h")
    state.fold(0, [group(1001, 100)], Losses(), SETTINGS, frozenset())
    state.close(SETTINGS, unknown, START + 130, "h")
    assert state.raised == {"flood": {""}}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 1}', b"[" * 100_000])
def test_a_damaged_file_is_one_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(PermanentError, match="damaged file"):
        LiveState.load(tmp_path)


def test_another_version_is_one_error(tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(b'{"version": 99}')
    with pytest.raises(PermanentError, match="unsupported version 99"):
        LiveState.load(tmp_path)


def test_a_batch_writes_only_the_minutes_that_it_changed(tmp_path: Path) -> None:
    state = LiveState()
    state.begin("q", START)
    for batch in range(120):
        state.fold(batch, [group(1000 + batch // 2, 1)], Losses(), SETTINGS, frozenset())
        state.close(SETTINGS, unknown, START + 30 * batch, "h")
        state.save(tmp_path)
        assert len(json.loads((tmp_path / STATE).read_bytes())["minutes"]) <= 2
    again = LiveState.load(tmp_path)
    assert again == state
    assert len(again.minutes.by_number) == 60
    # A minute that is dropped has no file.
    state.close(SETTINGS, unknown, START + 60 * 3000, "h")
    state.save(tmp_path)
    assert {int(path.stem) for path in (tmp_path / MINUTES).iterdir()} <= set(state.minutes.by_number)
    assert LiveState.load(tmp_path) == state


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20), st.integers(0, 30))
def test_a_kill_between_two_files_loses_and_repeats_nothing(batches: list[tuple[int, bool]], kill: int) -> None:
    """Late rows change minutes that have files. The kill is before one of the writes; then Spark repeats what is not in the state."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        state = LiveState()
        state.begin("q", START + 180)
        state.save(folder)
        writes = itertools.count()

        def killed(target: Path, content: bytes) -> None:
            if next(writes) == kill:
                raise KilledError
            publish_file(target, content)

        patch.setattr("sbus_archive.pipeline.live.live_state.publish_file", killed)
        batch = 0
        while batch < len(batches):
            place, is_extra = batches[batch]
            try:
                state.fold(batch, [group(1000 + place, batch + 1)], Losses(), SETTINGS, frozenset())
                state.save(folder)
                if is_extra:
                    state.save(folder)
            except KilledError:
                state = LiveState.load(folder)
                batch = state.batch
            batch += 1
        counted = {number: minute.value(ALL, "", "messages") for number, minute in LiveState.load(folder).minutes.by_number.items()}
        for place in range(4):
            assert counted.get(1000 + place, 0) == sum(number + 1 for number, each in enumerate(batches) if each[0] == place)


def test_a_removed_state_begins_another_series_without_old_minutes(tmp_path: Path) -> None:
    state = LiveState()
    state.begin("q", START)
    state.fold(0, [group(1000, 1)], Losses(), SETTINGS, frozenset())
    state.save(tmp_path)
    state.save(tmp_path)
    assert [path.name for path in (tmp_path / MINUTES).iterdir()] == ["1000.json"]
    (tmp_path / STATE).unlink()
    new = LiveState.load(tmp_path)
    assert new.minutes.by_number == {}
    assert new.series != state.series
    new.save(tmp_path)
    assert list((tmp_path / MINUTES).iterdir()) == []
    assert LiveState.load(tmp_path).series == new.series


def test_alerts_that_wait_are_bounded_and_the_dropped_are_counted() -> None:
    state = LiveState()
    state.begin("q", START)
    settings = LiveSettings(thresholds=tuple(Threshold(f"t{number}", "messages", 100) for number in range(100)))
    for turn in range(12):
        # Raised in even minutes, and cleared in odd ones.
        state.fold(turn, [group(1000 + turn, 100 * (turn % 2))], Losses(), settings, frozenset())
        state.close(settings, unknown, START + 60 * turn + 70, "h")
    assert len(state.pending) == MAX_PENDING
    assert state.decided == MAX_PENDING + state.counts["alerts_dropped"] == 1100
    assert [state.pending[0].number, state.pending[-1].number] == [1, 1100]


def test_each_minute_is_compared_with_the_numbers_of_its_own_hour() -> None:
    state = LiveState()
    state.begin("q", START)
    asked = []

    def usual(minute: int) -> None:
        asked.append(minute)

    assert [*state.due(SETTINGS, START + 190)] == [1000, 1001, 1002]
    state.close(SETTINGS, usual, START + 190, "h")
    assert asked == [1000, 1001, 1002]


def test_a_damaged_file_of_a_minute_is_one_error(tmp_path: Path) -> None:
    LiveState().save(tmp_path)
    (tmp_path / MINUTES / "1000.json").write_bytes(b"[]")
    with pytest.raises(PermanentError, match=r"1000\.json: damaged file\. Remove the file; the counters of this minute are lost"):
        LiveState.load(tmp_path)


def test_open_calls_survive_a_kill_and_a_repeated_batch_counts_none_twice(tmp_path: Path) -> None:
    second = 10**9
    state = LiveState()
    state.begin("q", START)
    state.fold(0, [], Losses(), SETTINGS, frozenset(), calls=BatchCalls((CallRequest(5, 60_000 * second, "rpc/echo", 7),), dropped=3))
    state.save(tmp_path)
    late = BatchCalls(replies=((5, 60_002 * second),))
    for _ in range(2):
        again = LiveState.load(tmp_path)
        again.begin("q", START)
        assert again.fold(1, [], Losses(), SETTINGS, frozenset(), calls=late)
        assert not again.fold(1, [], Losses(), SETTINGS, frozenset(), calls=late)
        assert (again.minutes.by_number[1000].value(USER, "7", "slow"), again.counts["calls_dropped"]) == (1, 3)
    quick = LiveSettings(slow_call=3.0)
    again = LiveState.load(tmp_path)
    again.fold(1, [], Losses(), quick, frozenset(), calls=late)
    assert again.minutes.at(1000).value(USER, "7", "slow") == 0


def test_tables_fit_80_columns_whatever_users_write() -> None:
    state = LiveState()
    state.begin("q", 60_000.0)
    groups = [
        Group(1000, f"x\x1b[2J{number}" * 20, number, (10**number % 10**17, 10**17, 10**16, 1, 1)) for number in range(MAX_SUBJECTS + 9)
    ]
    state.fold(0, [*groups, Group(1000, "busy", 0, (10**18, 5, 0, 0, 0))], Losses(), LiveSettings(), frozenset())
    state.close(LiveSettings(), lambda _: None, 60_070.0, "h")
    state.raised = {"flood": {"x" * 500, ""}}
    lines = list(lines_of(state, 60))
    assert all(len(line) <= 80 and line.isprintable() for line in lines), lines
    assert "1970-01-01 16:40 incomplete" in lines[1]
    assert next(line for line in lines if line.startswith("busy")).split()[1:3] == ["1000P", "5"]
    assert "  flood: all" in lines
    assert any(line.startswith("alerts raised: 2, waiting for publication: 0") for line in lines)


def test_before_the_first_minute() -> None:
    assert next(lines_of(LiveState(), 60)) == "no finished minute yet"
