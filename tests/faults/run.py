"""Every call of one kind that the switch makes fails, one after the other, with every error: ``python -m tests.faults.run CALL``.

To be run with the library of shim.c in LD_PRELOAD. Prints one line for each error and each way in which the bus was in trouble
already; ends with status 1 and the fault that broke something, or by the signal that the switch died of.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import math
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

from tests.faults.scenario import play
from tests.faults.shim import CALLS, Fault, Shim

ERRORS = (errno.EINTR, errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EMFILE, errno.EPIPE, errno.ECONNRESET)
"""What each call fails with, those too that it never does on today's kernel."""

MORE_ERRORS = {"accept4": (errno.ENFILE, errno.ECONNABORTED)}
"""What the switch settles in a way of its own besides."""

PASSING = {errno.EINTR, errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM}
"""After these a connection goes on."""

MOST_CALLS = 200
"""The last call of a kind that is made to fail."""

GROUP = 4
"""Faults in one run of the scenario, far from each other, if none of them may end a connection."""

TROUBLES: dict[str, tuple[Fault, ...]] = {
    "calm": (),
    "no descriptor": (Fault("accept4", errno.EMFILE, 3),),
    "no spare descriptor": (Fault("accept4", errno.EMFILE, 3), Fault("open", errno.EMFILE, 2)),
    "no memory": (Fault("accept4", errno.ENOMEM, 5),),
}
"""What is wrong before the call at hand fails: by name, the faults."""

WHERE_TROUBLE_SHOWS = {"accept4", "epoll_ctl", "open", "recv", "send", "shutdown"}
"""Calls of which there are more, or others, when descriptors or memory are short."""


def main(arguments: Sequence[str]) -> int:
    """Run through all faults of the call that *arguments* name and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description="Let every system call of one kind fail.")
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--one-in", type=int, default=1, metavar="N", help="every Nth fault alone, beginning at another one for each error")
    options = parser.parse_args(arguments)
    call: str = options.call
    faulthandler.enable()
    shim = Shim(os.environ["LD_PRELOAD"].split(":")[-1])
    for trouble, first in TROUBLES.items():
        if first and call not in WHERE_TROUBLE_SHOWS:
            continue
        calls = min(play(shim, first, lost_connections(first))[call], MOST_CALLS)
        for turn, error in enumerate((*ERRORS, *MORE_ERRORS.get(call, ()))):
            # With at most as many in a turn as there are errors, each call still fails once at least, with one of them.
            every = list(_faults(call, error, calls, repeats=not first))
            faults = every[turn % options.one_in :: options.one_in] or every[:1]
            if not all(_passes(shim, group, trouble) for group in _groups(faults)):
                return 1
            print(f"{call} {errno.errorcode[error]} {trouble}: {len(faults)}", flush=True)
    return 0


def _passes(shim: Shim, faults: tuple[Fault, ...], trouble: str) -> bool:
    """Return whether the scenario bears *faults*; those that earlier ones have kept from happening are tried again alone."""
    # Unbuffered: when the switch crashes, this is what it crashed of.
    os.write(2, f"{faults}, {trouble}\n".encode())
    all_faults = (*faults, *TROUBLES[trouble])
    try:
        counts = play(shim, all_faults, lost_connections(all_faults))
    except Exception:  # whatever a fault breaks is the finding
        traceback.print_exc()
        return False
    return all(_passes(shim, (fault,), trouble) for fault in faults if counts[fault.call] < fault.first)


def _groups(faults: Sequence[Fault]) -> Iterator[tuple[Fault, ...]]:
    """Yield *faults* in groups of up to :data:`GROUP`, each group in the order in which they happen."""
    for times in sorted({fault.times for fault in faults}):
        alike = [fault for fault in faults if fault.times == times]
        # A socket option that could not be set changes what follows, and without two of them a connection may end.
        is_apart = any(_may_end(fault) or fault.call == "setsockopt" for fault in alike)
        distance = len(alike) if is_apart else math.ceil(len(alike) / GROUP)
        yield from (tuple(alike[start::distance]) for start in range(distance))


def _faults(call: str, error: int, calls: int, *, repeats: bool) -> Iterator[Fault]:
    """Give each of the first *calls* as a fault: alone, and as the first of three."""
    # What ends a connection is met again by the next one's call, and three waits in a row that fail are like one.
    for times in (1, 3) if repeats and error in PASSING and call != "epoll_wait" else (1,):
        for first in range(1, calls + 1):
            yield Fault(call, error, first, times)


def lost_connections(faults: tuple[Fault, ...]) -> int:
    """Return how many clients *faults* may cost their connections, or keep from getting one."""
    return sum(fault.times for fault in faults if _may_end(fault))


def _may_end(fault: Fault) -> bool:
    """Return whether a fault may cost a client its connection."""
    if fault.call in {"recvmmsg", "send", "sendmmsg"}:
        return fault.error not in PASSING
    if fault.call == "accept4":
        return fault.error in {errno.EMFILE, errno.ENFILE}
    return fault.call in {"epoll_ctl", "poll"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
