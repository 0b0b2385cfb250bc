"""What a program has used up, or has too few of, as one line for its user. Source: getrlimit(2), RLIMIT_NOFILE."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys

_MORE_DESCRIPTORS = "Raise LimitNOFILE= of the unit, or the limit of the shell (ulimit -n)"
_NO_DESCRIPTOR = f"no file descriptor is left. {_MORE_DESCRIPTORS}"
_NO_THREAD = "cannot start a thread. Raise TasksMax= of the unit, or the limit of the user (ulimit -u)"
_NO_MEMORY = "no memory is left. Raise MemoryMax= of the unit, or stop other programs"

_REASONS = {
    errno.ENFILE: "no file descriptor is left on this machine, see fs.file-max",
    errno.EMFILE: _NO_DESCRIPTOR,  # behind ENFILE, whose text contains that of this one
    errno.ENOMEM: _NO_MEMORY,
}


def exhausted(error: BaseException) -> str | None:
    """Return what was used up when *error* was raised, and what to do; None if *error* has another cause."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(exhausted, error.exceptions)), None)
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0)
    if isinstance(error, MemoryError):
        return _NO_MEMORY
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):  # threading has no class for this error
        return _NO_THREAD
    if isinstance(error, ImportError):  # of a shared object: the text of dlerror(3)
        return next((reason for number, reason in _REASONS.items() if os.strerror(number) in str(error)), None)
    return None


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
    return f"the limit of {limit} file descriptors is below {least}. {_MORE_DESCRIPTORS}"
