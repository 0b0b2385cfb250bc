# How packets leave for one client's socket. See outlet.pyx.

from sbusd.dataplane.libc cimport mmsghdr
from sbusd.dataplane.outbox cimport Outbox

cdef enum Outcome:
    ALL_TAKEN
    SOCKET_FULL             # the rest can be sent once the socket is writable
    PACKET_TOO_BIG          # the first that was not taken never will be: it is larger than the socket's SO_SNDBUF
    PEER_GONE


cdef size_t transmit(Outbox* box, mmsghdr* lines, size_t count, Outcome* outcome) noexcept nogil
