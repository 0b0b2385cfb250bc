"""Messages for one connection alone: ``CMSG !/to/<id> NUL <packet>``. Spec: sbus-protocol(7) §6.

Such a packet is routed as the MSG packet in it, and only the connection with that number can be a recipient. The packet is put back as it
was received if it cannot be handled in this turn.

``sbus.protocol.direct_messages`` is the plain reference for which packets are well-formed. The control plane refuses all others.
"""

from libc.string cimport memchr, memcmp, memset


from sbus.protocol.direct_messages import MAX_NUMBER_DIGITS

cdef enum:
    TO_BYTES = 10               # CMSG !/to/

cdef size_t NUMBER_DIGITS = MAX_NUMBER_DIGITS


cdef bint is_direct(const char* packet, size_t length) noexcept nogil:
    """Return whether a packet has the head of a direct message; it may be malformed."""
    return length >= TO_BYTES and memcmp(packet, b"CMSG !/to/", TO_BYTES) == 0


cdef uint64_t number_in(const char* text, size_t length) noexcept nogil:
    """Return the number of a connection in a text, or 0 if the text is not such a number."""
    cdef uint64_t number = 0
    cdef size_t i
    if length == 0 or length > NUMBER_DIGITS or text[0] == 48:
        return 0
    for i in range(length):
        if not 48 <= text[i] <= 57:
            return 0
        number = number * 10 + <uint64_t>(text[i] - 48)
    return number


cdef bint unwrap_direct(DirectMessages* direct, Batch* batch, size_t i) noexcept nogil:
    """Replace the *i*-th packet of a batch by the packet in it, and note its recipient. Return False if it is not well-formed.

    The caller unwraps a packet for which the publisher vouches further.
    """
    cdef char* packet = <char*>batch.parts[i].iov_base
    cdef size_t length = batch.parts[i].iov_len, place
    cdef const char* end
    cdef uint64_t number
    if not is_direct(packet, length):
        return False
    end = <const char*>memchr(packet, 0, length)
    if end is NULL:
        return False
    number = number_in(packet + TO_BYTES, end - packet - TO_BYTES)
    if number == 0:
        return False
    place = end - packet + 1
    if not is_vouched(packet + place, length - place):
        if length - place < 5 or memcmp(packet + place, b"MSG ", 4) != 0 or memchr(packet + place, 0, length - place) is NULL:
            return False
    direct.is_used = True
    direct.recipients[i] = number
    direct.outer[i] = batch.parts[i]
    batch.parts[i].iov_base = packet + place
    batch.parts[i].iov_len = length - place
    return True


cdef void wrap_direct_again(DirectMessages* direct, Batch* batch, size_t i) noexcept nogil:
    """Undo `unwrap_direct`, if it was done: the packet was not offered to any recipient."""
    if direct.is_used and direct.recipients[i]:
        batch.parts[i] = direct.outer[i]
        direct.recipients[i] = 0


cdef void forget_recipients(DirectMessages* direct) noexcept nogil:
    """Begin another batch."""
    memset(direct.recipients, 0, sizeof(direct.recipients))
    direct.is_used = False
