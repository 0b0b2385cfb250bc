# What a connection has asked to be told of its next message; used by the switch without the interpreter. See receipts.pyx.

from libc.stdint cimport uint32_t
from libcpp.string cimport string

from sbusd.daemon.outbox cimport Outbox


cdef cppclass Receipt:
    bint is_armed
    bint always             # False: only where nobody got the message
    string token


cdef void arm(Receipt* receipt, const char* token, size_t length, bint always) noexcept nogil
cdef void answer(Receipt* receipt, Outbox* box, uint32_t recipients) noexcept nogil
