"""Round trips and their figures."""

from __future__ import annotations

from sbusd.ctl.commands.ping import lines, measure, summary


def test_it_pauses_between_two_and_not_around() -> None:
    done: list[object] = []
    trips: list[float] = []

    def ping() -> float:
        done.append("ping")
        return 0.5

    measure(ping, trips, 3, 0.25, done.append)
    assert done == ["ping", 0.25, "ping", 0.25, "ping"]
    assert trips == [0.5, 0.5, 0.5]
    done.clear()
    measure(ping, trips, 2, 0, done.append)
    assert done == ["ping", "ping"]


def test_what_was_measured_before_an_interruption_is_kept() -> None:
    trips: list[float] = []
    answers = iter([0.1, 0.2])
    try:
        measure(lambda: next(answers), trips, 5, 0)
    except StopIteration:
        assert trips == [0.1, 0.2]


def test_figures() -> None:
    assert summary([0.004, 0.001, 0.002, 0.003]) == {"count": 4, "min": 0.001, "p50": 0.002, "p90": 0.004, "p99": 0.004, "max": 0.004}


def test_columns() -> None:
    figures = summary([0.000063, 0.0001, 12.0])
    assert lines(figures, legend=True) == [
        "COUNT   MIN    P50         P90         P99         MAX",
        "    3  63us  100us  12000000us  12000000us  12000000us",
    ]
    assert lines(figures, legend=False) == lines(figures, legend=True)[1:]
