"""How packets go to one client's socket: with as few system calls as possible, and in batches if the client wants them.

A batch is built where its packets are. Before each packet there is room for its length, so that both are one piece for the kernel. Packets
that came in a batch have that form already, and those that were side by side in it are one piece together.

Packets are counted as if each had gone alone; the bytes of a batch itself are not counted. Source: send(2), sendmmsg(2). Spec:
sbus-protocol(7) §6, ``!/batch``.
"""

from libc.errno cimport EINTR, EMSGSIZE, errno
from libc.stdint cimport uint32_t

from sbusd.dataplane.libc cimport MSG_DONTWAIT, MSG_NOSIGNAL, iovec, send, sendmmsg

cdef struct Wrapping:
    mmsghdr headers[BATCH_PACKETS]      # what is sent: batches, and packets that go alone
    uint32_t packets[BATCH_PACKETS]     # how many packets are in each
    size_t count
    iovec pieces[4 * BATCH_PACKETS]     # of the batches: their heads, and of each packet at most its length and two parts
    uint32_t lengths[BATCH_PACKETS]     # of packets with a head of their own, which has no room before it

cdef Wrapping wrapping      # built again for each call; only one thread sends


# -- batches

cdef void wrap(mmsghdr* lines, size_t count, size_t limit) noexcept nogil:
    """Put the first *count* of *lines*, in their order, into batches of at most *limit* bytes. A packet alone goes as it is."""
    cdef size_t i, first = 0, length, size
    cdef iovec* piece = wrapping.pieces
    cdef iovec* last
    wrapping.count = 0
    while first < count:
        piece.iov_base = <char*>BATCH_HEAD
        piece.iov_len = size = BATCH_HEAD_BYTES
        last = piece
        i = first
        while i < count:
            length = length_of(&lines[i])
            if size + LENGTH_BYTES + length > limit:
                break
            size += LENGTH_BYTES + length
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


cdef size_t count_packets(Outbox* box, size_t done, size_t taken) noexcept nogil:
    """Return how many packets are in *taken* headers from *done* on, and count those that were in batches."""
    cdef size_t i, packets = 0
    for i in range(done, done + taken):
        packets += wrapping.packets[i]
        if wrapping.packets[i] > 1:
            box.totals.delivered_batches += 1
            box.totals.batched_packets += wrapping.packets[i]
    return packets


# -- the socket

cdef ssize_t push(int fd, mmsghdr* lines, size_t count) noexcept nogil:
    """Send with one system call; return how many packets the socket took, or -1 with errno set."""
    if count == 1 and lines.msg_hdr.msg_iovlen == 1:
        return 1 if send(fd, lines.msg_hdr.msg_iov.iov_base, lines.msg_hdr.msg_iov.iov_len, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 else -1
    return sendmmsg(fd, lines, count, MSG_DONTWAIT | MSG_NOSIGNAL)


cdef size_t transmit(Outbox* box, mmsghdr* lines, size_t count, uint32_t payer, Outcome* outcome) noexcept nogil:
    """Send the first *count* of *lines*, packets of the user *payer*; return how many the socket took, and why not more."""
    cdef size_t done = 0
    cdef ssize_t taken
    if box.is_stream:
        return transmit_frames(box, lines, count, payer, outcome)
    if box.batch_bytes and count > 1:
        return transmit_batches(box, lines, count, outcome)
    while done < count:
        taken = push(box.fd, &lines[done], count - done)
        if taken > 0:
            count_sent(box, &lines[done], taken)
            done += taken
        elif errno != EINTR:
            outcome[0] = failure(box)
            return done
    outcome[0] = ALL_TAKEN
    return done


cdef size_t transmit_batches(Outbox* box, mmsghdr* lines, size_t count, Outcome* outcome) noexcept nogil:
    """Send the first *count* of *lines* in batches; return how many packets the socket took, and why not more."""
    # With the order ``fair`` packets go alone: in a socket full of batches, thousands of packets would be sent before the next turn.
    cdef size_t done = 0, sent, packets, limit = 0 if box.order == ORDER_FAIR else box.batch_bytes
    cdef ssize_t taken
    while done < count:
        wrap(&lines[done], count - done, limit)
        sent = 0
        while sent < wrapping.count:
            taken = push(box.fd, &wrapping.headers[sent], wrapping.count - sent)
            if taken > 0:
                packets = count_packets(box, sent, taken)
                count_sent(box, &lines[done], packets)
                done += packets
                sent += taken
            elif errno == EMSGSIZE and wrapping.packets[sent] > 1:
                # The socket's buffer is smaller than a batch. Batches are smaller from now on, down to packets that go alone.
                box.batch_bytes //= 2
                limit = box.batch_bytes
                break
            elif errno != EINTR:
                outcome[0] = failure(box)
                return done
    outcome[0] = ALL_TAKEN
    return done
