"""A sample stays small and even, however many times there are."""

from __future__ import annotations

from sbusd.ctl.bench.workers import Samples


def test_few_are_kept_all() -> None:
    samples = Samples(most=4)
    for time in range(4):
        samples.add(time)
    assert list(samples.times) == [0, 1, 2, 3]


def test_many_are_thinned_evenly() -> None:
    samples = Samples(most=4)
    for time in range(100):
        samples.add(time)
        assert len(samples.times) <= 4
    gaps = {later - earlier for earlier, later in zip(samples.times, samples.times[1:], strict=False)}
    assert len(gaps) == 1
    assert samples.times[0] == 0
    assert samples.times[-1] >= 64
