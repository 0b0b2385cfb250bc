"""A date that is wrong deletes nothing, and a date that is right is believed in the end."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_programs.wall_clock import DAY, MINUTE, SECOND, Clocks, WallClock
from tests.support.examples import examples

START = int(datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC).timestamp()) * SECOND
HOUR = 60 * MINUTE
YEAR = 365 * DAY
JUMPS = {"an hour": HOUR, "a month": 30 * DAY, "73 years": 73 * YEAR, "an hour back": -HOUR, "to 1970": -56 * YEAR}


class Machine:
    """A machine whose clock can be wrong. It writes a message each minute, with the date of its clock."""

    def __init__(self, kept: Path | None = None, newest: int | None = None) -> None:
        self.true = START
        self.error = 0
        self.booted = START - HOUR
        self.boot_id = "first"
        self.log: list[str] = []
        self.kept = kept
        self.start(newest)

    def start(self, newest: int | None = None) -> None:
        """Start the program."""
        clocks = Clocks(lambda: self.true + self.error, lambda: self.true - self.booted, lambda: self.boot_id)
        self.clock = WallClock(self.log.append, newest=newest, kept=self.kept, clocks=clocks)
        self.clock.date()

    def doubts(self) -> bool:
        """Return whether the program doubts the date."""
        return self.clock.is_doubted

    def reboot(self, off: int = 0) -> None:
        """Be off for a time, and boot."""
        self.true += off
        self.booted, self.boot_id = self.true, f"boot {self.true}"

    def run(self, seconds: int, *, messages: bool = True) -> None:
        """Run for a time."""
        end = self.true + seconds
        while self.true < end:
            self.true += MINUTE
            self.clock.date()
            if messages:
                self.clock.message(self.true + self.error)


@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)
def test_a_jump_is_reported_and_moves_no_cutoff_until_the_clock_is_set_back(jump: int) -> None:
    machine = Machine()
    machine.run(HOUR)
    machine.error = jump
    machine.run(9 * MINUTE)
    assert machine.doubts()
    assert machine.clock.cutoff(DAY) <= machine.true - DAY
    machine.error = 0
    machine.run(MINUTE)
    assert not machine.doubts()
    assert machine.clock.jumps == 1
    assert machine.clock.date() == machine.true
    assert len(machine.log) == 2
    assert machine.log[0].startswith("the date jumped: expected 2026-11-28T13:01:00Z, the clock says ")


def test_messages_with_a_date_of_1970_live_as_long_as_others() -> None:
    machine = Machine()
    machine.error = -56 * YEAR
    machine.run(2 * MINUTE)
    date_of_message = machine.true + machine.error
    machine.error = 0
    machine.run(29 * DAY)
    assert machine.clock.cutoff(30 * DAY) < date_of_message
    machine.run(DAY + HOUR)
    assert machine.clock.cutoff(30 * DAY) > date_of_message


@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)
def test_a_date_that_stays_is_believed_if_messages_continue(jump: int) -> None:
    machine = Machine()
    machine.error = jump
    machine.run(2 * DAY, messages=False)
    assert machine.doubts()
    machine.run(2 * MINUTE)
    assert not machine.doubts()
    assert machine.clock.date() == machine.true + jump


@pytest.mark.parametrize("jump", [jump for jump in JUMPS.values() if abs(jump) > HOUR])
def test_a_wrong_date_at_the_start_is_doubted(jump: int, tmp_path: Path) -> None:
    by_message = Machine(newest=START - jump)
    assert by_message.doubts()
    by_file = Machine(tmp_path / "clock")
    by_file.run(HOUR)
    by_file.reboot(5 * MINUTE)
    by_file.error = jump
    by_file.start(newest=by_file.true + jump)  # a message was written with the wrong date
    assert by_file.doubts()
    assert by_file.clock.date() <= by_file.true


def test_a_restart_of_the_program_ends_no_doubt_and_begins_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "clock")
    machine.run(HOUR)
    machine.true += 30 * DAY  # nothing ran, but the machine did
    machine.start()
    assert not machine.doubts()
    machine.error = YEAR
    machine.clock.date()
    machine.run(20 * HOUR)
    machine.start()
    machine.run(3 * HOUR)
    assert machine.doubts()
    machine.run(2 * HOUR)
    assert not machine.doubts()


def test_a_machine_that_runs_for_two_hours_each_day_believes_its_date_in_the_end(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "clock")
    machine.run(2 * HOUR)
    machine.reboot(60 * DAY)
    for _ in range(15):
        machine.start()
        machine.run(2 * HOUR)
        machine.reboot(22 * HOUR)
    machine.start()
    machine.run(2 * HOUR)
    assert machine.true - machine.clock.date() <= DAY


def test_sleep_and_adjustments_are_not_jumps() -> None:
    machine = Machine()
    machine.true += 100 * DAY  # the boot clock counts while the machine sleeps
    machine.run(MINUTE)
    machine.error = 5 * SECOND
    machine.run(MINUTE)
    assert machine.log == []


def test_an_administrator_confirms_the_date_with_the_kept_file(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "clock")
    machine.error = 40 * DAY
    machine.run(MINUTE)
    command = machine.log[-1].partition("run: ")[2]
    assert command == f"date +%s > {tmp_path}/clock"
    (tmp_path / "clock").write_text(f"{(machine.true + machine.error) // SECOND}\n")
    machine.run(2 * MINUTE)
    assert not machine.doubts()
    assert machine.clock.cutoff(DAY) == machine.true + 39 * DAY
    assert (tmp_path / "clock").stat().st_mode & 0o027 == 0


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"date": "x"}', '"2026-11-28"', "\udcff"])
def test_a_damaged_file_is_reported_and_the_newest_message_decides(content: str, tmp_path: Path) -> None:
    (tmp_path / "clock").write_bytes(content.encode("utf-8", "surrogateescape"))
    machine = Machine(tmp_path / "clock", newest=START - DAY)
    assert machine.doubts()
    assert machine.log[0].startswith(f"cannot use {tmp_path}/clock: ")
    assert isinstance(json.loads((tmp_path / "clock").read_text())["date"], int)


def test_a_file_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "missing" / "clock")
    machine.run(HOUR)
    assert len(machine.log) == 1


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(-100 * YEAR, 100 * YEAR), st.integers(1, 9)), max_size=50, unique_by=lambda step: step[0] // MINUTE))
def test_no_series_of_short_jumps_makes_a_message_older_than_it_is(steps: list[tuple[int, int]]) -> None:
    machine = Machine()
    dates = [(machine.true, machine.true)]
    for error, minutes in steps:
        machine.error = error
        machine.clock.date()
        dates.append((machine.true, machine.true + error))
        machine.run(minutes * MINUTE)
        cutoff = machine.clock.cutoff(DAY)
        assert [true for true, date in dates if date <= cutoff and true > machine.true - DAY + 20 * SECOND] == []
    machine.error = 0
    machine.run(MINUTE)
    cutoff = machine.clock.cutoff(DAY)
    assert [true for true, date in dates if date <= cutoff and true > machine.true - DAY + 20 * SECOND] == []
