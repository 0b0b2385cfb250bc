# Receipts. See receipts.pyx.

from libc.stdint cimport uint32_t, uint64_t
from libcpp.string cimport string

from libcpp.vector cimport vector

from sbusd.dataplane.outbox cimport Outbox


cdef enum Disclosure:       # whether the publisher may know the number in a receipt
    UNDECIDED               # not known, and most keys need no decision
    ASKED                   # the key is secret: the control plane decides before the message is routed
    DISCLOSED
    WITHHELD


cdef cppclass Receipt:      # what a connection has asked to know about its next message
    bint is_armed
    Disclosure disclosure
    bint always             # False: only if the message has no recipient
    bint lists              # whether it lists the recipients
    string token


cdef void arm(Receipt* receipt, const char* token, size_t length, bint always, bint lists) noexcept nogil
cdef void answer(Receipt* receipt, Outbox* box, uint32_t recipients, const vector[uint64_t]& listed) noexcept nogil
