# cython: language_level=3
"""What the kernel reports about the peer of a connection. Source: unix(7), SO_PEERCRED; socket(7), SO_PEERGROUPS; pidfd_open(2).

Python's ``socket.getsockopt`` returns at most 1,024 bytes, so it would fail for a peer in more than 256 groups.
"""

from libc.errno cimport EINVAL, ENOPROTOOPT, ERANGE, ESRCH, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp
from posix.types cimport gid_t

from sbusd.dataplane.libc cimport SO_PEERCRED, SO_PEERGROUPS, SO_PEERPIDFD, SOL_SOCKET, getsockopt, peer_credentials, socklen_t

import os

from sbus.protocol.credentials import Credentials

cdef object _new = tuple.__new__            # without the Python function around it
cdef bytes _latest_raw = b""
cdef frozenset _latest_groups = frozenset()


def credentials_of(int fd):
    """Return the credentials that the peer of the connected Unix socket *fd* had when it connected.

    Raises:
        OSError: *fd* is not a connected Unix socket, or the kernel is out of memory.
    """
    cdef peer_credentials peer
    cdef socklen_t length = sizeof(peer)
    if getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0:
        raise OSError(errno, f"SO_PEERCRED: {os.strerror(errno)}")
    return _new(Credentials, (peer.pid, peer.uid, peer.gid, groups_of(fd), None))


def pidfd_of(int fd):
    """Return a descriptor of the process that connected *fd*, which the caller closes; it is readable once the process has ended.

    None if the kernel has no such option: Linux before 6.5.

    Raises:
        ProcessLookupError: the process has ended, and the kernel has nothing left of it.
        OSError: *fd* is not a connected Unix socket, or the kernel is out of descriptors or memory.
    """
    cdef int pidfd = -1
    cdef socklen_t length = sizeof(pidfd)
    if getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0:
        return pidfd
    if errno == ENOPROTOOPT:
        return None
    # Before Linux 6.9 a process that has been waited for is an invalid argument.
    raise OSError(ESRCH if errno == EINVAL else errno, f"SO_PEERPIDFD: {os.strerror(errno)}")


cdef frozenset groups_of(int fd):
    """Return the peer's supplementary groups. If the room does not suffice, the kernel returns the size that they need."""
    cdef gid_t few[64]
    cdef socklen_t length = sizeof(few)
    cdef gid_t* groups = few
    cdef gid_t* more = NULL
    try:
        while getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &length) < 0:
            if errno != ERANGE:
                raise OSError(errno, f"SO_PEERGROUPS: {os.strerror(errno)}")
            free(more)
            groups = more = <gid_t*>malloc(length)
            if more is NULL:
                raise MemoryError
        return shared_set(groups, length)
    finally:
        free(more)


cdef frozenset shared_set(gid_t* groups, socklen_t length):
    """Return *length* bytes of groups as a set. Many peers have the same, and share one set, which is fast to compare and hash."""
    global _latest_raw, _latest_groups
    if length != len(_latest_raw) or memcmp(<const char*>_latest_raw, groups, length) != 0:
        _latest_raw = (<const char*>groups)[:length]
        _latest_groups = frozenset([groups[i] for i in range(length // sizeof(gid_t))])
    return _latest_groups
