"""What a publisher has asked to know about its next message. Spec: sbus-protocol(7) §6, ``!/bus/receipt``."""

from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef void arm(Receipt* receipt, const char* token, size_t length, bint always, bint lists) noexcept nogil:
    """Prepare a receipt for the next message, in place of an earlier one."""
    receipt.is_armed = True
    receipt.disclosure = Disclosure.UNDECIDED
    receipt.always = always
    receipt.lists = lists
    receipt.token.assign(token, length)


cdef void answer(Receipt* receipt, Outbox* box, uint32_t recipients, const vector[uint64_t]& listed) noexcept nogil:
    """Send the receipt, if it was asked for: ``!/bus/receipt``, with the number of recipients, and the *listed* ones if there are any."""
    cdef string packet
    cdef char digits[24]
    cdef size_t i
    receipt.is_armed = False
    # A receipt without a number is always sent. If it were sent for some messages only, it would reveal which have recipients.
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
        for i in range(listed.size()):
            packet.push_back(b"," if i else 0)
            packet.append(digits, snprintf(digits, sizeof(digits), "%llu", <unsigned long long>listed[i]))
    post(box, packet.data(), packet.size())
