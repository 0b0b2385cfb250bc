"""A connection keeps its age when the wall clock is set."""

from __future__ import annotations

import time

import pytest

from sbusd.broker.connection_times import boot_time_of, date_of


@pytest.mark.parametrize("step", [3600.0, -3600.0, 40 * 365 * 86_400.0])
def test_the_reported_date_follows_the_wall_clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    connected = time.clock_gettime(time.CLOCK_BOOTTIME) - 100
    now = time.time()
    assert now - date_of(connected) == pytest.approx(100, abs=60)
    monkeypatch.setattr(time, "time", lambda: now + step)
    assert now + step - date_of(connected) == pytest.approx(100, abs=60)
    assert boot_time_of(date_of(connected)) == pytest.approx(connected, abs=60)
