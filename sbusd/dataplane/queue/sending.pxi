"""What writer.pxi and stream_writer.pxi share: the pieces of packets and their lengths, and what was sent."""

from libc.errno cimport EAGAIN, ECONNRESET, EMSGSIZE, ENOBUFS, ENOMEM, EPIPE, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from sbusd.dataplane.libc cimport SHUT_RDWR, htole32, iovec, mmsghdr, shutdown

cdef enum:
    BATCH_HEAD_BYTES = 13   # CMSG !/batch NUL
    LENGTH_BYTES = 4        # before each packet in a batch or a stream

cdef enum Outcome:
    ALL_TAKEN
    SOCKET_FULL             # the rest can be sent once the socket is writable
    PACKET_TOO_BIG          # the first packet that was not taken is larger than the socket's SO_SNDBUF, and never will be
    PEER_GONE
    SENT_IN_PART            # a stream got a part of the first packet that is not counted as taken, perhaps none: the caller keeps it as rest

cdef const char* BATCH_HEAD = b"CMSG !/batch\0"


cdef inline size_t length_of(mmsghdr* line) noexcept nogil:
    """Return the length of a packet to send."""
    cdef size_t length = line.msg_hdr.msg_iov[0].iov_len
    if line.msg_hdr.msg_iovlen == 2:
        length += line.msg_hdr.msg_iov[1].iov_len
    return length


cdef inline iovec* join_piece(iovec* last, char* base, size_t length) noexcept nogil:
    """Add a piece after the last one, or extend that one if both are adjacent; return the last piece."""
    if <char*>last.iov_base + last.iov_len == base:
        last.iov_len += length
        return last
    last += 1
    last.iov_base = base
    last.iov_len = length
    return last


cdef inline iovec* append(iovec* last, mmsghdr* line, uint32_t length, uint32_t* spare) noexcept nogil:
    """Add a packet and its length after the last piece. *spare* takes the length if there is no room for it before the packet."""
    cdef iovec* parts = line.msg_hdr.msg_iov
    cdef uint32_t word = htole32(length)
    if line.msg_hdr.msg_iovlen == 1:
        memcpy(<char*>parts.iov_base - LENGTH_BYTES, &word, LENGTH_BYTES)
        return join_piece(last, <char*>parts.iov_base - LENGTH_BYTES, LENGTH_BYTES + length)
    spare[0] = word
    last = join_piece(last, <char*>spare, LENGTH_BYTES)
    last = join_piece(last, <char*>parts[0].iov_base, parts[0].iov_len)
    return join_piece(last, <char*>parts[1].iov_base, parts[1].iov_len)


cdef inline void count_delivered(Outbox* box, uint64_t count, uint64_t length) noexcept nogil:
    """Count packets of *length* bytes together that the socket took."""
    box.delivered_bytes += length
    box.totals.delivered_bytes += length
    box.delivered_packets += count
    box.totals.delivered_packets += count


cdef inline void count_sent(Outbox* box, mmsghdr* lines, size_t count) noexcept nogil:
    """Count packets that the socket took."""
    cdef size_t i
    cdef uint64_t length = 0
    for i in range(count):
        length += length_of(&lines[i])
    count_delivered(box, count, length)


cdef inline Outcome failure(Outbox* box) noexcept nogil:
    """Return what errno means for the packets that were not taken."""
    if errno == EAGAIN or errno == ENOBUFS or errno == ENOMEM:
        return SOCKET_FULL
    if errno == EMSGSIZE:
        return PACKET_TOO_BIG
    if errno != EPIPE and errno != ECONNRESET:
        # The peer may be alive, and would wait forever for packets that are not sent. This lets it see the end at once.
        shutdown(box.fd, SHUT_RDWR)
    return PEER_GONE
