"""Whether the victim has kept what is its own, and the table that shows it. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.attacks.victim import Measure

KEPT_RATE = 0.8
FAIR_SHARE = 0.4
"""Of the rate at full speed beside one who also takes all he can: half, less what the measurement may be wrong by."""
STALL = "stall"
"""The name of the bound on stalls."""

MAX_STALL_SECONDS = 0.005
"""For how long the loop of the daemon may not wait for events."""


@dataclass(frozen=True, slots=True)
class Round:
    """The victim undisturbed, and then under attack; ``acts`` is what the attackers did meanwhile."""

    quiet: Measure
    attacked: Measure
    acts: int


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest time in which the daemon's loop did not wait for events, in seconds; without the time in the run queue."""

    seconds: float
    cpu_seconds: float
    cause: str
    """What most of it was spent on."""


@dataclass(frozen=True, slots=True)
class AttackResult:
    """One attack's rounds, judged. Bytes are of the daemon: its greatest resident memory, and what its configuration allows."""

    name: str
    rounds: tuple[Round, ...]
    memory: int
    memory_cap: int
    stall: Stall | None
    """None: the daemon was killed before it could report it."""
    takes_a_share: bool
    problem: str = ""
    """The error that ended the attack early, such as a victim that timed out."""

    @property
    def losses(self) -> int:
        """Packets that the victim lost, or should not have received."""
        return sum(each.attacked.losses + each.quiet.losses for each in self.rounds)

    @property
    def steady_kept(self) -> float:
        """The part of the steady rate that the victim kept: the median of the ratios of all rounds."""
        return median(each.attacked.steady_rate / each.quiet.steady_rate for each in self.rounds)

    @property
    def full_kept(self) -> float:
        """The part of the full-speed rate that the victim kept: the median of the ratios of all rounds."""
        return median(each.attacked.full_rate / each.quiet.full_rate for each in self.rounds)

    @property
    def stall_seconds(self) -> float:
        """The longest stall; infinite where it is not known."""
        return math.inf if self.stall is None else self.stall.seconds

    @property
    def broken(self) -> tuple[str, ...]:
        """The bounds that do not hold."""
        if self.problem:
            return (self.problem,)
        bounds = {
            "losses": self.losses == 0,
            "steady rate": self.steady_kept >= KEPT_RATE,
            "full speed": self.full_kept >= (FAIR_SHARE if self.takes_a_share else KEPT_RATE),
            "memory": self.memory <= self.memory_cap,
            STALL: self.stall_seconds <= MAX_STALL_SECONDS,
        }
        return tuple(name for name, holds in bounds.items() if not holds)

    def cells(self) -> tuple[str, ...]:
        """Return the line as the table shows it, in the order of :data:`HEADINGS`."""
        if not self.rounds:
            return (self.name, *([""] * (len(HEADINGS) - 6)), *self._costs(), f"NO: {self.problem}")
        quiet, attacked = [each.quiet for each in self.rounds], [each.attacked for each in self.rounds]
        return (
            self.name,
            f"{sum(each.acts / each.attacked.seconds for each in self.rounds) / len(self.rounds):,.0f}",
            f"{median(each.steady_rate for each in attacked):,.0f}",
            f"{self.steady_kept:.2f}",
            f"{median(each.full_rate for each in quiet):,.0f}",
            f"{median(each.full_rate for each in attacked):,.0f}",
            f"{self.full_kept:.2f}",
            f"{_microseconds(quiet, 50)} → {_microseconds(attacked, 50)}",
            f"{_microseconds(quiet, 99)} → {_microseconds(attacked, 99)}",
            str(self.losses),
            *self._costs(),
            f"NO: {', '.join(self.broken)}" if self.broken else "holds",
        )

    def _costs(self) -> tuple[str, ...]:
        """Return the cells of the daemon's memory and stalls."""
        stall = ("?", "?") if self.stall is None else (f"{self.stall.seconds * 1e3:,.1f}", self.stall.cause)
        return (_mebibytes(self.memory), _mebibytes(self.memory_cap), *stall)


def _microseconds(measures: Sequence[Measure], percent: int) -> str:
    """Write the median of the rounds' percentiles."""
    return f"{median(each.p50 if percent == 50 else each.p99 for each in measures) * 1e6:,.0f}"


def _mebibytes(size: int) -> str:
    """Write a size."""
    return f"{size / (1 << 20):,.1f}"


HEADINGS = (
    "attack", "acts/s", "steady/s", "kept", "full/s quiet", "attacked", "kept", "p50 µs", "p99 µs", "lost", "MiB", "cap",
    "stall ms", "cause", "verdict",
)  # fmt: skip

EXPLANATION = (
    "The victim works undisturbed and under attack in turns, as another user than the attackers. The daemon has one core, all clients\n"
    "the other; attackers run under SCHED_IDLE, so that what is measured is the bus and not the scheduler.\n"
    f"steady: 5,000 messages a second; kept must be ≥ {KEPT_RATE}. full: as fast as it goes; kept must be ≥ {KEPT_RATE}, or, where the\n"
    f"attacker keeps the bus busy and the two share it, ≥ {FAIR_SHARE}. lost must be 0. MiB: the daemon's greatest resident memory;\n"
    "cap: what its configuration allows. stall: the longest time in which the daemon's loop did not wait for events, without the time\n"
    f"that it waited for a processor, and its main cause; must be ≤ {MAX_STALL_SECONDS * 1e3:.0f} ms. Where it is longer and all else\n"
    "holds, the attack is made again, briefly, on up to eight daemons, and the shortest counts: the host takes time at random."
)


def table(results: Sequence[AttackResult]) -> str:
    """Lay out *results* under :data:`HEADINGS`."""
    rows = [HEADINGS, *(each.cells() for each in results)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_placed(row, widths)).rstrip() for row in rows]
    return "\n".join([EXPLANATION, "", *lines])


def _placed(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Pad the cells of a row: words to the left, figures to the right."""
    words = (0, len(row) - 2, len(row) - 1)
    return [cell.ljust(width) if n in words else cell.rjust(width) for n, (cell, width) in enumerate(zip(row, widths, strict=True))]
