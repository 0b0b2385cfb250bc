"""``make bench-blob``: compares a blob of 1 GiB to 8 subscribers with the same bytes in messages; then 4 GiB go to ten other users.

The ways of :mod:`tests.bench.blob_rates` take turns, after a round that is not counted if there are several. The blob must have at least
five times the rate of messages if each subscriber reads a byte of each page. The rates with all bytes read are for information: they
depend on what reads.
As root, ten users then map one blob of another user: :mod:`tests.support.blob_sharing`. 0: all holds; 1: it does not; 2: no measurement.
"""

from __future__ import annotations

import argparse
import os
import sys
from statistics import median

from tests.bench.blob_rates import READERS, WAYS, Cost, cost, running
from tests.support.blob_sharing import shared_by_users

RATIO = 5.0
"""The least ratio of the rates of a blob and of messages."""

_NAMES = {"messages": "messages of 256 KiB", "blob": "blob, copied from bytes", "memfd": "blob, already in a memfd"}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the results, and return the exit status."""
    parser = argparse.ArgumentParser(prog="bench-blob", description="Compare a blob with messages of 256 KiB.")
    parser.add_argument("--mebibytes", type=int, default=1_024, metavar="N", help="size of the blob (default: %(default)s)")
    parser.add_argument("--subscribers", type=int, default=8, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds that count (default: %(default)s)")
    parser.add_argument("--reader", choices=READERS, action="append", help="what subscribers read: pages or bytes (default: both)")
    parser.add_argument(
        "--shared-mebibytes", type=int, default=4_096, metavar="N", help="size of the blob for other users; 0: omit (default: %(default)s)"
    )
    parser.add_argument("--users", type=int, default=10, metavar="N", help="number of these users (default: %(default)s)")
    parser.add_argument("--no-fail", action="store_true", help="exit with status 0 also if the ratio is too small")
    options = parser.parse_args(arguments)
    try:
        ratios = {
            reader: compared(reader, options.mebibytes << 20, options.subscribers, options.rounds) for reader in options.reader or READERS
        }
        if options.shared_mebibytes:
            share(options.shared_mebibytes << 20, options.users)
    except (OSError, AssertionError) as error:
        print(f"bench-blob: {error}", file=sys.stderr)
        return 2
    ratio = ratios.get("pages", RATIO)
    if "pages" in ratios:
        print(f"median of {options.rounds} rounds: {ratio:.1f} times, at least {RATIO:g}: {'ok' if ratio >= RATIO else 'too slow'}")
    return 0 if ratio >= RATIO or options.no_fail else 1


def compared(reader: str, size: int, subscribers: int, rounds: int) -> float:
    """Print the median of each way, and return the ratio of the rates of blob and messages."""
    what = "a byte of each page is read" if reader == "pages" else "all bytes are read, by adler32"
    print(f"{size >> 20} MiB to {subscribers} subscribers, {what}:", flush=True)
    costs: dict[str, list[Cost]] = {way: [] for way in WAYS}
    warm_rounds = int(rounds > 1)
    for number in range(warm_rounds + rounds):
        # In turn each way is the first, so that none always finds what another has left in the caches.
        for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
            each = cost(way, reader, size, subscribers)
            if number >= warm_rounds:
                costs[way].append(each)
    walls = {way: median(each.wall for each in costs[way]) for way in WAYS}
    cpus = {way: median(each.cpu for each in costs[way]) for way in WAYS}
    for way in WAYS:
        parts = [median(getattr(each, name) for each in costs[way]) for name in ("publisher", "servers", "subscribers")]
        print(
            f"  {_NAMES[way]:<24} {size * subscribers / walls[way] / 1e9:6.2f} GB/s, {walls['messages'] / walls[way]:5.1f} times"
            f"  {walls[way]:6.3f} s; CPU {cpus[way]:6.3f} s: publisher {parts[0]:.3f}, bus and service {parts[1]:.3f},"
            f" subscribers {parts[2]:.3f}; {cpus['messages'] / cpus[way]:.1f} times less",
            flush=True,
        )
    return walls["messages"] / walls["blob"]


def share(size: int, users: int) -> None:
    """Show that *users* read one blob of *size* bytes of another user without a copy of it. Raises AssertionError."""
    if os.geteuid() != 0:
        print(f"{size >> 20} MiB to {users} other users: omitted, it needs root")
        return
    with running(size) as (address, servers):
        shared = shared_by_users(size, users, address, servers)
    print(
        f"{size >> 20} MiB to {users} other users: they mapped {shared.mapped >> 20} MiB, which used {shared.used >> 20} MiB of memory,"
        f" and checked each page, within {shared.seconds:.1f} s; bus and service mapped {shared.servers >> 10} KiB",
        flush=True,
    )
    assert users * size <= shared.mapped, "a user has not mapped the blob"
    assert shared.used <= size * 1.01 + (1 << 20), "the blob was copied"


if __name__ == "__main__":
    sys.exit(main())
