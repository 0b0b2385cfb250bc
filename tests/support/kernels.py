"""Kernels for tests: this one, and one like Linux 6.12, which cannot refuse descriptors that are sent."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from tests.support import skips
from tests.support.c_programs import compile_program

SO_PASSRIGHTS = 83
"""Whether descriptors may be sent to a socket, socket(7); not in Python."""

SOURCE = Path(__file__).with_name("old_kernel.c")


def refuses_descriptors() -> bool:
    """Return whether this kernel can refuse descriptors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS)
        except OSError as error:
            if error.errno == errno.ENOPROTOOPT:
                return False
            raise
    return True


def require_refusal() -> None:
    """Skip the test unless this kernel can refuse descriptors."""
    skips.require(refuses_descriptors(), "needs Linux 6.16 or later, which refuses descriptors", could_run=False)


def old_kernel(folder: Path) -> dict[str, str]:
    """Return the environment in which a program finds a kernel like Linux 6.12; the library for it goes into *folder*."""
    command = ("gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared")
    return {"LD_PRELOAD": str(compile_program([SOURCE], folder / "old_kernel.so", command))}
