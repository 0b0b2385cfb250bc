# What the bus says about messages: senders, taps, receipts. See annotations.pyx.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.string cimport string

from sbusd.dataplane.outbox cimport Outbox, Tally


cdef enum Disclosure:       # whether the publisher may know the number in a receipt
    UNDECIDED               # not known, and most keys need no decision
    ASKED                   # the key is secret: the control plane decides before the message is routed
    TOLD
    WITHHELD


cdef cppclass Receipt:      # what a connection has asked to know about its next message
    bint is_armed
    Disclosure disclosure
    bint always             # False: only if the message has no recipient
    string token


cdef void append_sender(string& text, uint64_t connection, const string& cred) noexcept nogil
cdef void append_tap_line(string& text, int64_t time, uint64_t connection, const string& cred, Tally* tally) noexcept nogil
cdef void arm(Receipt* receipt, const char* token, size_t length, bint always) noexcept nogil
cdef void answer(Receipt* receipt, Outbox* box, uint32_t recipients) noexcept nogil
