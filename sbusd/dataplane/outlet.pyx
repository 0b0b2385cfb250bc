# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""The way out to one client's socket: with as few system calls as there can be, and in batches where the client wants them.

Source: send(2), sendmmsg(2). Packets are counted here as if each had gone alone: a batch's own bytes are nobody's.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EINTR, EMSGSIZE, ENOBUFS, ENOMEM, EPIPE, errno
from libc.stdint cimport uint64_t

from sbusd.dataplane.libc cimport MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RDWR, send, sendmmsg, shutdown
from sbusd.dataplane.wrapping cimport Wrapping, length_of, wrap

cdef Wrapping wrapping      # built anew for each call; one thread sends


cdef ssize_t push(int fd, mmsghdr* lines, size_t count) noexcept nogil:
    """Send with one system call; return how many the socket took, or -1 with errno set."""
    if count == 1 and lines.msg_hdr.msg_iovlen == 1:
        return 1 if send(fd, lines.msg_hdr.msg_iov.iov_base, lines.msg_hdr.msg_iov.iov_len, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 else -1
    return sendmmsg(fd, lines, count, MSG_DONTWAIT | MSG_NOSIGNAL)


cdef void note_sent(Outbox* box, mmsghdr* lines, size_t count) noexcept nogil:
    """Count packets that the socket took."""
    cdef size_t i
    cdef uint64_t length = 0
    for i in range(count):
        length += length_of(&lines[i])
    box.delivered_bytes += length
    box.totals.delivered_bytes += length
    box.delivered_packets += count
    box.totals.delivered_packets += count


cdef size_t unwrapped(Outbox* box, size_t done, size_t taken) noexcept nogil:
    """Return how many packets are in *taken* of what was wrapped, from *done* on, and count those that were in batches."""
    cdef size_t i, packets = 0
    for i in range(done, done + taken):
        packets += wrapping.packets[i]
        if wrapping.packets[i] > 1:
            box.totals.delivered_batches += 1
            box.totals.batched_packets += wrapping.packets[i]
    return packets


cdef Outcome failure(Outbox* box) noexcept nogil:
    """Return what errno means for what was not taken."""
    if errno == EAGAIN or errno == ENOBUFS or errno == ENOMEM:
        return SOCKET_FULL
    if errno == EMSGSIZE:
        return PACKET_TOO_BIG
    if errno != EPIPE and errno != ECONNRESET:
        # The peer may well live, and would wait for ever for what it is not sent: so it sees the end at once.
        shutdown(box.fd, SHUT_RDWR)
    return PEER_GONE


cdef size_t transmit(Outbox* box, mmsghdr* lines, size_t count, Outcome* outcome) noexcept nogil:
    """Send the first *count* of *lines*; return how many the socket took, and why not more."""
    cdef size_t done = 0
    cdef ssize_t taken
    if box.batch_bytes and count > 1:
        return transmit_batches(box, lines, count, outcome)
    while done < count:
        taken = push(box.fd, &lines[done], count - done)
        if taken > 0:
            note_sent(box, &lines[done], taken)
            done += taken
        elif errno != EINTR:
            outcome[0] = failure(box)
            return done
    outcome[0] = ALL_TAKEN
    return done


cdef size_t transmit_batches(Outbox* box, mmsghdr* lines, size_t count, Outcome* outcome) noexcept nogil:
    """Send the first *count* of *lines* in batches; return how many packets the socket took, and why not more."""
    cdef size_t done = 0, sent, packets
    cdef ssize_t taken
    while done < count:
        wrap(&wrapping, &lines[done], count - done, box.batch_bytes)
        sent = 0
        while sent < wrapping.count:
            taken = push(box.fd, &wrapping.headers[sent], wrapping.count - sent)
            if taken > 0:
                packets = unwrapped(box, sent, taken)
                note_sent(box, &lines[done], packets)
                done += packets
                sent += taken
            elif errno == EMSGSIZE and wrapping.packets[sent] > 1:
                # The socket's buffer is smaller than a batch: smaller batches from now on, down to packets that go alone.
                box.batch_bytes //= 2
                break
            elif errno != EINTR:
                outcome[0] = failure(box)
                return done
    outcome[0] = ALL_TAKEN
    return done
