"""Memory files of the daemon, which are never executed. ``sbusd.client.memory_files`` is for clients. Source: memfd_create(2)."""

from __future__ import annotations

import errno
import os

_MFD_NOEXEC_SEAL = 0x8
"""Since Linux 6.3; Python does not have it."""


def create_memory_file(name: str) -> int:
    """Return a new memfd that can be sealed and never be executed, as vm.memfd_noexec of Linux 6.3 can require. Raises OSError."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an older kernel
            raise
        return os.memfd_create(name, flags)
