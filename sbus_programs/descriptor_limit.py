"""The number of descriptors that this process may have, RLIMIT_NOFILE of getrlimit(2), and whether a program can work with it."""

from __future__ import annotations

import contextlib
import resource
import sys


def descriptor_limit() -> int:
    """Return the maximum number of open descriptors of this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def raised_descriptor_limit() -> int:
    """Let this process open as many descriptors as it may, and return their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The sandbox of a unit does not permit the change, and needs none: both limits are the same there.
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptor_limit()


def descriptor_shortage(limit: int, least: int) -> str | None:
    """Return why a program cannot start that may have *limit* descriptors and needs *least*, and what to do; None if it can."""
    if limit >= least:
        return None
    return f"the limit of {limit} file descriptors is below {least}. Raise LimitNOFILE= of the unit, or the limit of the shell (ulimit -n)"
