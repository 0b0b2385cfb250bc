# What a connection has asked to be told of its next message; used by the switch without the interpreter. See receipts.pyx.

from libc.stdint cimport uint32_t
from libcpp.string cimport string

from sbusd.dataplane.outbox cimport Outbox


cdef enum Disclosure:
    UNDECIDED               # nothing is known of the key yet; of most keys nothing needs to be
    ASKED                   # the key is a secret one: before its message is routed, the control plane says which of the next two
    TOLD
    WITHHELD


cdef cppclass Receipt:
    bint is_armed
    Disclosure disclosure   # whether the publisher may know the number
    bint always             # False: only where nobody got the message
    string token


cdef void arm(Receipt* receipt, const char* token, size_t length, bint always) noexcept nogil
cdef void answer(Receipt* receipt, Outbox* box, uint32_t recipients) noexcept nogil
