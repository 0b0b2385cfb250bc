# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""What the bus says about messages: their sender, a line for taps, a receipt. Spec: sbus-protocol(7) §6.

Credentials consist of letters, digits, ``!`` and ``/``, so JSON needs no escapes for them.
"""

from libc.stdio cimport snprintf
from libcpp.algorithm cimport sort

from sbusd.dataplane.outbox cimport MISSED, post


cdef void append_sender(string& text, uint64_t connection, const string& cred) noexcept nogil:
    """Append the head that names the sender of a message: ``!/from/``."""
    cdef char number[24]
    text.append(b"CMSG !/from/", 12)
    text.append(number, snprintf(number, sizeof(number), "%llu/", <unsigned long long>connection))
    text.append(cred)
    text.push_back(0)


cdef void append_tap_line(string& text, int64_t time, uint64_t connection, const string& cred, Tally* tally) noexcept nogil:
    """Append the head of a message for a tap, ``!/tap``: when it was published, by which connection, and the result."""
    cdef char part[128]
    text.append(b"CMSG !/tap", 10)
    text.push_back(0)
    text.append(part, snprintf(part, sizeof(part), "{\"kind\":\"message\",\"time\":%lld,\"id\":%llu,\"cred\":\"",
                               <long long>time, <unsigned long long>connection))
    text.append(cred)
    text.append(part, snprintf(part, sizeof(part), "\",\"recipients\":%u,\"queued\":%u,\"discarded\":%u",
                               tally.handed + tally.queued, tally.queued, tally.discarded))
    if tally.missed_count:
        append_missed(text, tally)
    text.append(b"}\n", 2)


cdef void append_missed(string& text, Tally* tally) noexcept nogil:
    """Append the connections that a message matched and did not reach; none of them if they are too many."""
    cdef uint32_t i, count = tally.missed_count if tally.missed_count <= <uint32_t>MISSED else 0
    cdef char number[24]
    sort(&tally.missed[0], &tally.missed[0] + count)
    text.append(b",\"missed\":[", 11)
    for i in range(count):
        text.append(number, snprintf(number, sizeof(number), ",%llu" if i else "%llu", <unsigned long long>tally.missed[i]))
    text.push_back(93)      # ]


cdef void arm(Receipt* receipt, const char* token, size_t length, bint always) noexcept nogil:
    """Prepare a receipt for the next message, in place of an earlier one."""
    receipt.is_armed = True
    receipt.disclosure = Disclosure.UNDECIDED
    receipt.always = always
    receipt.token.assign(token, length)


cdef void answer(Receipt* receipt, Outbox* box, uint32_t recipients) noexcept nogil:
    """Send the receipt, if it was asked for: ``!/bus/receipt``, with the number of recipients."""
    cdef string packet
    cdef char digits[16]
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
    post(box, packet.data(), packet.size())
