"""``make soak-link``: faults between three linked hosts, at random, and every message accounted for.

0: all accounts balance; 1: not; 2: it could not be tried.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.link.cluster import Cluster
from tests.faults.link.rounds import FAULTS, Rounds
from tests.faults.link.traffic import Traffic
from tests.support.nats_servers import PROGRAMS

FAILED = 1
NOT_TRIED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds and return the exit status."""
    parser = argparse.ArgumentParser(prog="soak-link", description="Faults between three linked hosts, and every message accounted for.")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default: 20)")
    parser.add_argument("--seed", type=int, default=None, help="of the random numbers (default: another each time)")
    parser.add_argument("--server", choices=sorted(PROGRAMS), action="append", help="which nats-server; may be repeated (default: all)")
    parser.add_argument("--only", metavar="WORDS", default="", help="only faults whose names contain WORDS")
    options = parser.parse_args(arguments)
    programs = [PROGRAMS[name] for name in options.server or sorted(PROGRAMS)]
    faults = [fault for fault in FAULTS if options.only in fault.name]
    if os.geteuid() != 0 or not all(program.exists() for program in programs) or not faults:
        print("soak-link: needs root, nats-server, and a fault with that name", file=sys.stderr)
        return NOT_TRIED
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    draw = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="sbus-link-"))
    try:
        with Cluster(programs, folder) as cluster, Traffic(cluster) as traffic:
            rounds = Rounds(cluster, traffic, seed)
            end = time.monotonic() + options.minutes * 60
            while time.monotonic() < end:
                print(rounds.run(draw.choice(faults)), flush=True)
    except AssertionError as error:
        print(f"soak-link: seed {seed}: {error}\nlogs are in {folder}", file=sys.stderr)
        return FAILED
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
