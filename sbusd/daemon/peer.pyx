# cython: language_level=3
"""What the kernel says of the other end of a connection. Source: unix(7), SO_PEERCRED; socket(7), SO_PEERGROUPS.

It is here and not in Python because ``socket.getsockopt`` takes 1,024 bytes at most: a peer in more than 256 groups would fail.
"""

from libc.errno cimport ERANGE, errno
from libc.stdlib cimport free, malloc
from posix.types cimport gid_t

from sbusd.daemon.libc cimport SO_PEERCRED, SO_PEERGROUPS, SOL_SOCKET, getsockopt, peer_credentials, socklen_t

import os

from sbusd.protocol.credentials import Credentials


def credentials_of(int fd):
    """Return the credentials that the peer of the connected Unix socket *fd* had when it connected.

    Raises:
        OSError: *fd* is not a connected Unix socket, or the kernel is out of memory.
    """
    cdef peer_credentials peer
    cdef socklen_t length = sizeof(peer)
    if getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0:
        raise OSError(errno, f"SO_PEERCRED: {os.strerror(errno)}")
    return Credentials(peer.pid, peer.uid, peer.gid, frozenset(groups_of(fd)))


cdef list groups_of(int fd):
    """Return the peer's supplementary groups; the kernel says how much room they need where it does not suffice."""
    cdef socklen_t length = 64 * sizeof(gid_t)
    cdef gid_t* groups = NULL
    cdef int status = -1
    try:
        while True:
            groups = <gid_t*>malloc(length if length else 1)
            if groups is NULL:
                raise MemoryError
            status = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &length)
            if status == 0:
                return [groups[i] for i in range(length // sizeof(gid_t))]
            if errno != ERANGE:
                raise OSError(errno, f"SO_PEERGROUPS: {os.strerror(errno)}")
            free(groups)
            groups = NULL
    finally:
        free(groups)
