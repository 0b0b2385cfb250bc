# Messages of the current batch that are for one connection alone. See direct_messages.pyx.

from libc.stdint cimport uint64_t

from sbusd.dataplane.libc cimport iovec
from sbusd.dataplane.outbox cimport BATCH_PACKETS, Batch


cdef cppclass DirectMessages:
    bint is_used                            # the batch has, or had, such a message
    uint64_t recipients[BATCH_PACKETS]      # by packet: the number of a connection; 0: the message is for all recipients
    iovec outer[BATCH_PACKETS]              # the packets as they were received


cdef bint is_direct(const char* packet, size_t length) noexcept nogil
cdef bint unwrap_direct(DirectMessages* direct, Batch* batch, size_t i) noexcept nogil
cdef void wrap_direct_again(DirectMessages* direct, Batch* batch, size_t i) noexcept nogil
cdef void forget_recipients(DirectMessages* direct) noexcept nogil
