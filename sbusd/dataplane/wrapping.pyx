# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""Batches for a client that wants them, made of packets where they are. Spec: sbus-protocol(7) §6, ``!/batch``.

Nothing is copied: wherever a packet lies, there is room for its length in front of it, so that both are one piece for the kernel. What
came in a batch is in that form already, and packets that stood there side by side are one piece together.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from sbusd.dataplane.intake cimport BATCH_HEAD_BYTES, BATCH_LENGTH_BYTES
from sbusd.dataplane.libc cimport htole32

cdef char* BATCH_HEAD = b"CMSG !/batch\0"


cdef size_t length_of(mmsghdr* line) noexcept nogil:
    """Return how long a packet is that is to be sent."""
    cdef size_t length = line.msg_hdr.msg_iov[0].iov_len
    if line.msg_hdr.msg_iovlen == 2:
        length += line.msg_hdr.msg_iov[1].iov_len
    return length


cdef iovec* join(iovec* last, char* base, size_t length) noexcept nogil:
    """Put a piece behind the last one, or into it where it stands right behind it; return what is the last one then."""
    if <char*>last.iov_base + last.iov_len == base:
        last.iov_len += length
        return last
    last += 1
    last.iov_base = base
    last.iov_len = length
    return last


cdef iovec* append(iovec* last, mmsghdr* line, uint32_t length, uint32_t* spare) noexcept nogil:
    """Put a packet and its length behind the last piece; *spare* is where the length can stand if there is no room in front of it."""
    cdef iovec* parts = line.msg_hdr.msg_iov
    cdef uint32_t word = htole32(length)
    if line.msg_hdr.msg_iovlen == 1:
        memcpy(<char*>parts.iov_base - BATCH_LENGTH_BYTES, &word, BATCH_LENGTH_BYTES)
        return join(last, <char*>parts.iov_base - BATCH_LENGTH_BYTES, BATCH_LENGTH_BYTES + length)
    spare[0] = word
    last = join(last, <char*>spare, BATCH_LENGTH_BYTES)
    last = join(last, <char*>parts[0].iov_base, parts[0].iov_len)
    return join(last, <char*>parts[1].iov_base, parts[1].iov_len)


cdef void wrap(Wrapping* wrapping, mmsghdr* lines, size_t count, size_t limit) noexcept nogil:
    """Make of the first *count* of *lines*, in their order, batches of at most *limit* bytes; what is then alone goes as it is."""
    cdef size_t i, first = 0, length, size
    cdef iovec* piece = wrapping.pieces
    cdef iovec* last
    wrapping.count = 0
    while first < count:
        piece.iov_base = BATCH_HEAD
        piece.iov_len = size = BATCH_HEAD_BYTES
        last = piece
        i = first
        while i < count:
            length = length_of(&lines[i])
            if size + BATCH_LENGTH_BYTES + length > limit:
                break
            size += BATCH_LENGTH_BYTES + length
            last = append(last, &lines[i], length, &wrapping.lengths[i])
            i += 1
        if i <= first + 1:
            i = first + 1
            wrapping.headers[wrapping.count] = lines[first]
        else:
            wrapping.headers[wrapping.count].msg_hdr.msg_iov = piece
            wrapping.headers[wrapping.count].msg_hdr.msg_iovlen = last - piece + 1
            piece = last + 1
        wrapping.packets[wrapping.count] = i - first
        wrapping.count += 1
        first = i
