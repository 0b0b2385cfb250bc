"""``make soak MINUTES=n``: random clients of all kinds on one daemon; every message is accounted for, and no resources leak.

0: all accounts balance, descriptors and memory are back where they were; 1: not; 2: it could not be tried.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.soak.accounts import SoakError
from tests.soak.soak import CONFIG, Soak, descriptors_of, memory_of
from tests.support.daemons import Daemon, start_daemon
from tools.stage import Stage, open_folder

FAILED = 1
NOT_TRIED = 2
WARM_PART = 0.1
"""The part of the time in which the bus allocates its memory; the rest must not need more."""
GROWTH_BYTES = 12 << 20
"""What the memory may differ by: 8 MiB of freed memory that the data plane keeps (``KEPT_HEAP_BYTES``), and fragments."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a soak: its figures, and the resources of the daemon without clients, before and after; memory in bytes."""

    figures: dict[str, int]
    memory: tuple[int, int]
    descriptors: tuple[int, int]

    def lines(self) -> list[str]:
        """Return the figures as printed lines."""
        reported = [f"{name}: {number:,}" for name, number in sorted(self.figures.items())]
        memory = f"memory of the bus, MiB: {self.memory[0] / (1 << 20):.1f} → {self.memory[1] / (1 << 20):.1f}"
        return [*reported, memory, f"descriptors: {self.descriptors[0]} → {self.descriptors[1]}"]

    def check(self) -> None:
        """Raise SoakError if resources have leaked."""
        if self.descriptors[0] != self.descriptors[1]:
            raise SoakError(f"descriptors: {self.descriptors[0]} before, {self.descriptors[1]} after")
        if self.memory[1] > self.memory[0] + GROWTH_BYTES:
            raise SoakError(f"memory: {self.memory[0]} bytes before, {self.memory[1]} after")


def soak(bus: Daemon, seconds: float, seed: int) -> Result:
    """Soak *bus* for *seconds*. Raises SoakError if a message is lost without a report, duplicated or reordered, or resources leak."""
    life = Soak(bus, seed)
    life.run(seconds * WARM_PART)
    life.rest()
    # Not at the start: the thread that reads the units of clients has descriptors from its first use on.
    memory, descriptors = memory_of(bus), descriptors_of(bus)
    life.run(seconds * (1 - WARM_PART))
    life.rest()
    result = Result(dict(life.figures), (memory, memory_of(bus)), (descriptors, descriptors_of(bus)))
    result.check()
    return result


def started(folder: Path) -> Daemon:
    """Return a daemon with small queues for slow clients."""
    config = folder / "sbusd.toml"
    config.write_text(CONFIG)
    stage = Stage(sys.executable, {})
    return start_daemon(folder, 0, ("-C", str(config)), stage=stage, user=None, env=None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak and return the exit status."""
    parser = argparse.ArgumentParser(prog="soak", description="Random clients of all kinds on one bus, every message accounted for.")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default: 20)")
    parser.add_argument("--seed", type=int, default=None, help="of the random numbers (default: another each time)")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("soak: run as root: it acts as two other users", file=sys.stderr)
        return NOT_TRIED
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    print(f"soak: {options.minutes:g} minutes, seed {seed}", flush=True)
    return _soak_fresh(options.minutes * 60, seed)


def _soak_fresh(seconds: float, seed: int) -> int:
    """Soak a daemon of its own, print what was found, and return the exit status."""
    folder = open_folder()
    try:
        bus = started(folder)
        try:
            print("\n".join(soak(bus, seconds, seed).lines()))
        finally:
            bus.check()
    except (AssertionError, OSError) as error:
        print(f"soak: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    finally:
        shutil.rmtree(folder)
    print("soak: every account balances, and nothing is left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
