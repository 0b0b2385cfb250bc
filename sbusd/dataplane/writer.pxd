# How packets go to one client's socket. See writer.pyx.

from sbusd.dataplane.libc cimport mmsghdr
from sbusd.dataplane.outbox cimport Outbox

cdef enum Outcome:
    ALL_TAKEN
    SOCKET_FULL             # the rest can be sent once the socket is writable
    PACKET_TOO_BIG          # the first packet that was not taken is larger than the socket's SO_SNDBUF, and never will be
    PEER_GONE


cdef size_t transmit(Outbox* box, mmsghdr* lines, size_t count, Outcome* outcome) noexcept nogil
