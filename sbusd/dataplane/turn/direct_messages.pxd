# Messages of the current batch that are for one connection alone. See direct_messages.pxi.

from libc.stdint cimport uint64_t

from sbusd.dataplane.libc cimport iovec


cdef cppclass DirectMessages:
    bint is_used                            # the batch has, or had, such a message
    uint64_t recipients[BATCH_PACKETS]      # by packet: the number of a connection; 0: the message is for all recipients
    iovec outer[BATCH_PACKETS]              # the packets as they were received
