"""What is said of the machine's other work."""

from __future__ import annotations

from tests.bench.peers.noise import Moment, machine, words, work_of

TICKS = [100, 10, 50, 800, 20, 5, 5, 30, 7, 7]
"""user nice system idle iowait irq softirq steal guest guest_nice; the guests' are in user and nice already."""


def test_work_excludes_idle_and_stolen_time() -> None:
    assert work_of(TICKS[:8]) == (170, 30)


def test_an_old_kernel_has_no_stolen_time() -> None:
    assert work_of(TICKS[:7]) == (170, 0)


def test_other_work_is_the_rest_of_the_work() -> None:
    before = Moment(clock=10.0, busy=5.0, stolen=1.0, own=1.0, load=0.5)
    after = Moment(clock=20.0, busy=17.0, stolen=2.0, own=7.0, load=2.25)
    assert words(before, after, 2) == (
        "other processes had 30% of the CPUs' time, other machines 5%; load average 0.5 at the beginning, 2.2 at the end"
    )


def test_clocks_of_different_steps_make_no_negative_share() -> None:
    same = Moment(clock=0.0, busy=0.0, stolen=0.0, own=0.0, load=0.0)
    assert words(same, Moment(clock=1.0, busy=0.5, stolen=0.0, own=0.6, load=0.0), 1).startswith("other processes had 0%")


def test_a_look_at_this_machine() -> None:
    first, second = Moment.now(), Moment.now()
    assert second.clock >= first.clock
    assert second.busy >= first.busy > 0
    assert " CPUs (" in machine()
