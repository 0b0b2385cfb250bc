# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""Receipts: what became of one message, told to its publisher. Spec: sbus-protocol(7) §6, ``receipt/always``."""

from libc.stdint cimport uint32_t
from libc.stdio cimport snprintf
from libcpp.string cimport string

from sbusd.dataplane.outbox cimport Outbox, post


cdef void arm(Receipt* receipt, const char* token, size_t length, bint always) noexcept nogil:
    """Let the next message be told of; what was asked before for it is forgotten."""
    receipt.is_armed = True
    receipt.disclosure = Disclosure.UNDECIDED
    receipt.always = always
    receipt.token.assign(token, length)


cdef void answer(Receipt* receipt, Outbox* box, uint32_t recipients) noexcept nogil:
    """Tell of the message that came, if that was asked for: how many connections it was handed to or waits for."""
    cdef string packet
    cdef char digits[16]
    receipt.is_armed = False
    # A receipt without a number is sent in any case: sent for some messages alone it would show which have recipients.
    if recipients and not receipt.always and receipt.disclosure != Disclosure.WITHHELD:
        return
    packet.assign(b"CMSG !/bus/receipt", 18)
    packet.push_back(0)
    packet.append(receipt.token)
    packet.push_back(0)
    if receipt.disclosure == Disclosure.WITHHELD:
        packet.push_back(b"-")
    else:
        packet.append(digits, snprintf(digits, sizeof(digits), "%u", recipients))
    post(box, packet.data(), packet.size())
