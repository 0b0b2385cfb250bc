"""``make attacks``: attack real daemons by real users, print one table, and say by the exit status whether every bound holds.

0: all hold; 1: one does not; 2: it could not be tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

from tests.attacks.catalogue import ATTACKS
from tests.attacks.results import AttackResult, table
from tests.attacks.runner import FULL, QUICK, AttackRunner
from tools.stage import open_folder

FAILED = 1
NOT_TRIED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the attacks and return the exit status."""
    options = _parser().parse_args(arguments)
    if os.geteuid() != 0:
        print("attacks: run as root: it acts as two other users", file=sys.stderr)
        return NOT_TRIED
    results = _attack(options)
    print(table(results))
    broken = [each.name for each in results if each.broken]
    print(f"{len(broken)} of {len(results)} attacks do harm" if broken else f"none of {len(results)} attacks does harm")
    return FAILED if broken else 0


def _parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="attacks", description="Attack a bus as one user and measure what another notices.")
    parser.add_argument("--quick", action="store_true", help="short: shows that it works, says nothing about speed")
    parser.add_argument("--only", metavar="WORDS", action="append", help="only attacks whose name has these words; may be repeated")
    return parser


def _attack(options: argparse.Namespace) -> list[AttackResult]:
    """Make the chosen attacks one after the other, and say on standard error how far it is."""
    results: list[AttackResult] = []
    folder = open_folder()
    try:
        runner = AttackRunner(folder, QUICK if options.quick else FULL)
        for attack in ATTACKS:
            if options.only and not any(words in attack.name for words in options.only):
                continue
            if obstacle := attack.obstacle():
                print(f"attacks: {attack.name}: not tried: {obstacle}", file=sys.stderr, flush=True)
            else:
                results.append(runner.run(attack))
                print("attacks:", "  ".join(cell for cell in results[-1].cells() if cell), file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    return results


if __name__ == "__main__":
    sys.exit(main())
