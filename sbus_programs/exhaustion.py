"""What the machine has no more of for a program, as one line for its user."""

from __future__ import annotations

import errno
import os

_NO_DESCRIPTOR = "no file descriptor is left. Raise LimitNOFILE= of the unit, or the limit of the shell (ulimit -n)"
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
