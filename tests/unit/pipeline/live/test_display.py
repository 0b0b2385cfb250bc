"""The tables that ``--show`` prints."""

from __future__ import annotations

from sbusd.config.live import LiveSettings
from sbusd.pipeline.live.display import lines_of
from sbusd.pipeline.live.live_state import LiveState, Losses
from sbusd.pipeline.live.minutes import MAX_SUBJECTS, Group


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
