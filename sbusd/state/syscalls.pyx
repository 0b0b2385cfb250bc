# cython: language_level=3
"""System calls that never sleep, made with the interpreter's lock held. Source: pwrite(2), fstat(2).

Python's own functions release the lock around the call. Another thread can then take it and be preempted by the kernel, and the loop, whose
call takes a microsecond, waits until that thread runs again: 19 ms on a busy machine. Use these functions only for files in memory, and for
calls that only look up a descriptor.
"""

from libc.errno cimport EINTR, errno
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport pwrite as posix_pwrite

import os


def inode_of(int fd):
    """Return the inode of the open descriptor *fd*. Raises OSError if it is not open."""
    cdef struct_stat status
    if fstat(fd, &status) < 0:
        raise OSError(errno, os.strerror(errno))
    return status.st_ino


def write_at(int fd, const unsigned char[::1] data, long long place):
    """Write *data*, at least one byte, to *fd* at the offset *place*, and return the number of bytes written. Raises OSError."""
    cdef ssize_t written
    while True:
        written = posix_pwrite(fd, &data[0], data.shape[0], place)
        if written >= 0:
            return written
        if errno != EINTR:
            raise OSError(errno, os.strerror(errno))
