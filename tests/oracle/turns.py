"""The order of service in a turn, for the model of the switch and for a loop without packets: connections whose work has known costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sbusd.dataplane.switch import ScheduleModel
from tests.oracle.fairness import Schedule


@dataclass(slots=True)
class Clock:
    """The model's time, in nanoseconds. It passes when the caller says so."""

    now: int = 0


class Candidate(NamedTuple):
    """A connection that is ready at the start of a turn."""

    number: int
    user: int | None
    can_read: bool = True


class Turns:
    """Serves what is ready, in the order of rule 4 of sbusd/dataplane/contract.py."""

    def __init__(self, schedule: Schedule | ScheduleModel, clock: Clock, turn_time: int) -> None:
        self._schedule = schedule
        self._clock = clock
        self._turn_time = turn_time
        self._number = 0
        self._is_cut_short = False

    def take(self, ready: Sequence[Candidate], serve: Callable[[int], None], pass_over: Callable[[int], None]) -> None:
        """Take a turn: *serve* connections of *ready*, and *pass_over* those that wait for another turn."""
        schedule = self._schedule
        self._number += 1
        schedule.begin_turn(self._clock.now, readable=tuple(each.user for each in ready if each.can_read))
        end, served = schedule.turn_end(), False
        order = self._rotated(ready) if self._is_cut_short else ready
        self._is_cut_short = False
        for number, user, _ in order:
            if schedule.is_throttled(number, user):
                pass_over(number)
            elif schedule.must_stop(user, end):
                self._is_cut_short = True
                pass_over(number)
            else:
                serve(number)
                served = True
        if not served:
            self._serve_throttled(ready, serve)

    def _serve_throttled(self, ready: Sequence[Candidate], serve: Callable[[int], None]) -> None:
        """Serve throttled connections, because no other is ready, for ``turn_time``."""
        end = self._clock.now + self._turn_time
        for number, user, _ in self._rotated(ready):
            if not self._schedule.is_held_back(number, user):
                serve(number)
                if self._clock.now > end:
                    break

    def _rotated(self, ready: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return what is ready, from another one on in each turn."""
        first = self._number % len(ready) if ready else 0
        return [*ready[first:], *ready[:first]]


class Work(NamedTuple):
    """One packet: how long it takes, and its costs: see :meth:`Schedule.serve`. All in nanoseconds."""

    time: int = 0
    patterns: int = 0
    own: int = 0
    routing: int = 0


class Service(NamedTuple):
    """What one connection got in a turn."""

    number: int
    packets: int
    end: int


@dataclass(slots=True)
class Worker:
    """A connection of the loop."""

    user: int | None
    is_owner: bool = False
    is_blocked: bool = False
    work: list[Work] = field(default_factory=list)


class Loop:
    """An event loop over connections with work, on a clock that stands still but for that work."""

    def __init__(self, schedule: Schedule | ScheduleModel, *, turn_time: int) -> None:
        self.clock = Clock()
        self.workers: dict[int, Worker] = {}
        self._schedule = schedule
        self._turn_time = turn_time
        self._turns = Turns(schedule, self.clock, turn_time)
        self._services: list[Service] = []

    def connect(self, number: int, user: int | None, *, is_owner: bool = False) -> None:
        """Add a connection."""
        self._schedule.connect(number)
        self.workers[number] = Worker(user, is_owner)

    def disconnect(self, number: int) -> None:
        """Remove a connection; with the last one, its user leaves."""
        user = self.workers.pop(number).user
        if user is not None and all(each.user != user for each in self.workers.values()):
            self._schedule.leave(user)

    def turn(self) -> list[Service]:
        """Take a turn, and return what was done in it."""
        self._services = []
        ready = [Candidate(number, each.user) for number, each in self.workers.items() if each.work and not each.is_blocked]
        self._turns.take(ready, self._serve, lambda _: None)
        return self._services

    def _serve(self, number: int) -> None:
        """Do one batch of a connection's work."""
        worker, schedule = self.workers[number], self._schedule
        batch: list[Work] = []
        for work in worker.work[: schedule.read_limit(number, worker.user)]:
            batch.append(work)
            if schedule.is_too_long(sum(each.routing for each in batch)) or sum(each.own for each in batch) > self._turn_time:
                break
        worker.work = worker.work[len(batch) :]
        time, patterns, own, routing = map(sum, zip(*batch, strict=True))
        self.clock.now += time
        schedule.serve(
            number,
            worker.user,
            now=self.clock.now,
            count=len(batch),
            patterns=patterns,
            own=own,
            routing=routing,
            is_cut_off=schedule.is_too_long(routing),
            is_owner=worker.is_owner,
        )
        self._services.append(Service(number, len(batch), self.clock.now))
