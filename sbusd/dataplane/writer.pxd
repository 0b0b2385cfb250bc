# How packets go to one client's socket. See writer.pyx.

from libc.stdint cimport uint32_t

from sbusd.dataplane.libc cimport mmsghdr
from sbusd.dataplane.outbox cimport Outbox
from sbusd.dataplane.sending cimport Outcome


cdef size_t transmit(Outbox* box, mmsghdr* lines, size_t count, uint32_t payer, Outcome* outcome) noexcept nogil
