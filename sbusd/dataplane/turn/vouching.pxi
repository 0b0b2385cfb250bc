"""Messages for which their publisher vouches: ``CMSG !/from/<words>/<cred> NUL <the MSG packet>``. Spec: sbus-protocol(7) §6.

Such a packet is routed as the MSG packet in it. Recipients that want senders get a head of its own with it. The packet is put back as it
was received if it cannot be handled in this turn.

``sbus.protocol.vouching`` is the plain reference for which packets are well-formed. The control plane refuses all others.
"""

from libc.stdio cimport snprintf
from libc.string cimport memchr, memcmp
from libcpp.string cimport string


from sbus.protocol.vouching import MAX_ORIGIN_BYTES

cdef enum:
    FROM_BYTES = 12             # CMSG !/from/
    CRED_BYTES = 7              # !/cred/
    ID_DIGITS = 10

cdef size_t LONGEST_ORIGIN = MAX_ORIGIN_BYTES


cdef bint is_vouched(const char* packet, size_t length) noexcept nogil:
    """Return whether a packet has the head of a message for which a client vouches; it may be malformed."""
    return length >= FROM_BYTES and memcmp(packet, b"CMSG !/from/", FROM_BYTES) == 0


cdef bint is_plain(const char* text, size_t length) noexcept nogil:
    """Return whether a text needs no escapes in JSON: visible ASCII without quotation marks and backslashes."""
    cdef size_t i
    for i in range(length):
        if text[i] <= 32 or text[i] >= 127 or text[i] == 34 or text[i] == 92:
            return False
    return True


cdef size_t before_number(const char* text, size_t length) noexcept nogil:
    """Return the length of a text before the ``/`` and the number at its end, or 0 if it does not end so."""
    cdef size_t end = length
    while end > 0 and 48 <= text[end - 1] <= 57:
        end -= 1
    if end == length or length - end > ID_DIGITS or end == 0 or text[end - 1] != c"/":
        return 0
    return end - 1


cdef bint is_origin(const char* text, size_t length) noexcept nogil:
    """Return whether a text is ``<words>/<cred>``. Words that begin like credentials would extend those of the publisher."""
    cdef size_t end = length
    cdef int i
    if length > LONGEST_ORIGIN or not is_plain(text, length) or (length >= CRED_BYTES and memcmp(text, b"!/cred/", CRED_BYTES) == 0):
        return False
    for i in range(3):
        end = before_number(text, end)
    return end > CRED_BYTES and memcmp(text + end - CRED_BYTES, b"/!/cred", CRED_BYTES) == 0


cdef bint unwrap(Vouching* vouching, Batch* batch, size_t i) noexcept nogil:
    """Replace the *i*-th packet of a batch by the MSG packet in it, and note its origin. Return False if it is not well-formed."""
    cdef char* packet = <char*>batch.parts[i].iov_base
    cdef size_t length = batch.parts[i].iov_len, place
    cdef const char* end
    if not is_vouched(packet, length):
        return False
    end = <const char*>memchr(packet, 0, length)
    if end is NULL or not is_origin(packet + FROM_BYTES, end - packet - FROM_BYTES):
        return False
    place = end - packet + 1
    if length - place < 5 or memcmp(packet + place, b"MSG ", 4) != 0 or memchr(packet + place, 0, length - place) is NULL:
        return False
    if not vouching.is_used:
        vouching.is_used = True
        vouching.origins.resize(BATCH_PACKETS)
        vouching.texts.resize(BATCH_PACKETS)
    # A copy, because the length of the MSG packet in a batch is written before it.
    vouching.origins[i].assign(packet + FROM_BYTES, end - packet - FROM_BYTES)
    vouching.outer[i] = batch.parts[i]
    batch.parts[i].iov_base = packet + place
    batch.parts[i].iov_len = length - place
    return True


cdef void wrap_again(Vouching* vouching, Batch* batch, size_t i) noexcept nogil:
    """Undo `unwrap`, if it was done: the packet was not offered to any recipient."""
    if vouching.is_used and not vouching.origins[i].empty():
        batch.parts[i] = vouching.outer[i]
        vouching.origins[i].clear()


cdef Head* heads_of(Vouching* vouching, const string& sender_head, size_t count) noexcept nogil:
    """Return the heads of the *count* packets of the batch. *sender_head* names the publisher, and ends with NUL."""
    cdef size_t i
    if vouching.has_heads:
        return vouching.heads
    vouching.has_heads = True
    for i in range(count):
        if vouching.origins[i].empty():
            vouching.heads[i].part.iov_base = <void*>sender_head.data()
            vouching.heads[i].part.iov_len = sender_head.size()
            continue
        vouching.texts[i].assign(sender_head.data(), sender_head.size() - 1)
        vouching.texts[i].push_back(c"/")
        vouching.texts[i].append(vouching.origins[i])
        vouching.texts[i].push_back(0)
        vouching.heads[i].part.iov_base = <void*>vouching.texts[i].data()
        vouching.heads[i].part.iov_len = vouching.texts[i].size()
    return vouching.heads


cdef void release_heads(Vouching* vouching, size_t count) noexcept nogil:
    """Release the copies of the heads. The next delivery writes them again."""
    cdef size_t i
    if vouching.has_heads:
        for i in range(count):
            release_head(&vouching.heads[i])
        vouching.has_heads = False


cdef void forget_origins(Vouching* vouching) noexcept nogil:
    """Begin another batch."""
    cdef size_t i
    for i in range(BATCH_PACKETS):
        vouching.origins[i].clear()
    vouching.is_used = False


cdef void append_sender(string& text, uint64_t connection, const string& cred) noexcept nogil:
    """Append the head that names the sender of a message: ``!/from/``."""
    cdef char number[24]
    text.append(b"CMSG !/from/", 12)
    text.append(number, snprintf(number, sizeof(number), "%llu/", <unsigned long long>connection))
    text.append(cred)
    text.push_back(0)
