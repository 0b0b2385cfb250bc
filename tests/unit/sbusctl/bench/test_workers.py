"""A sample stays small and even, however many times there are."""

from __future__ import annotations

from sbusctl.bench.workers import TimeSample


def test_few_are_kept_all() -> None:
    sample = TimeSample(most=4)
    for time in range(4):
        sample.add(time)
    assert list(sample.times) == [0, 1, 2, 3]


def test_many_are_thinned_evenly() -> None:
    sample = TimeSample(most=4)
    for time in range(100):
        sample.add(time)
        assert len(sample.times) <= 4
    gaps = {later - earlier for earlier, later in zip(sample.times, sample.times[1:], strict=False)}
    assert len(gaps) == 1
    assert sample.times[0] == 0
    assert sample.times[-1] >= 64
