"""``make bench``: compare the daemon with the floor set by the kernel, print a table, and exit with status 0 if all limits hold.

0: every line holds; 1: one does not (0 all the same with ``--no-fail``); 2: it could not be measured.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.figures import Line, table
from tests.bench.programs import BenchError, build
from tests.bench.relays import DAEMON
from tests.bench.scenarios import FULL, QUICK, SCENARIOS, Bench, Commands

FAILED = 1
NOT_MEASURED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        lines = _measure(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return NOT_MEASURED
    print(table(lines))
    if options.json:
        options.json.write_text(json.dumps([_record(line) for line in lines], indent=1) + "\n", encoding="utf-8")
    broken = [line.name for line in lines if not line.holds]
    print(f"{len(broken)} of {len(lines)} lines do not hold" if broken else f"all {len(lines)} lines hold")
    return FAILED if broken and not options.no_fail else 0


def _parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="bench", description="Compare the daemon with the floor that the kernel sets.")
    parser.add_argument("--quick", action="store_true", help="small counts: shows that the bench works, says nothing about speed")
    parser.add_argument("--no-fail", action="store_true", help="exit with status 0 even if a line does not hold")
    names = ", ".join(SCENARIOS)
    parser.add_argument("--only", metavar="NAME", action="append", choices=SCENARIOS, help=f"measure only this; may be repeated: {names}")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every round's figures there as well")
    parser.add_argument("--daemon", metavar="COMMAND", type=shlex.split, default=DAEMON, help="measure this daemon instead of this tree's")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the daemon's configuration file, if quotas are in the way")
    return parser


def _measure(options: argparse.Namespace) -> list[Line]:
    """Run the chosen scenarios one after the other, and say on standard error how far it is."""
    programs = build()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="sbusd-bench-") as directory:
        plan = QUICK if options.quick else FULL
        commands = Commands(programs.load, programs.floor, tuple(options.daemon), options.config)
        bench = Bench(plan, commands, Path(directory))
        for name in options.only or SCENARIOS:
            begin = time.monotonic()
            lines += SCENARIOS[name](bench)
            print(f"bench: {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return lines


def _record(line: Line) -> dict[str, object]:
    """Return a line as JSON has it: figures in nanoseconds, bytes, or deliveries per second."""
    return {
        "name": line.name,
        "values": line.values,
        "references": line.references,
        "judged": line.judged,
        "bound": line.bound.limit,
        "at_least": line.bound.at_least,
        "holds": line.holds,
    }


if __name__ == "__main__":
    sys.exit(main())
