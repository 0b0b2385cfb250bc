# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""What waits for one client: its socket first, then a bounded queue, then a count that it is told.

A packet that the socket takes is never copied: it goes out from the buffer in which it was received. The first recipient that
has to wait makes one copy, which all later ones share by reference. Packets that do not fit are lost: counted, and told to the
client as ``CMSG !/bus/lost NUL <count>`` in the place of the gap, as soon as there is room. Spec: sbus-protocol(7) §7.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EINTR, EMSGSIZE, ENOBUFS, ENOMEM, EPIPE, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sbusd.daemon.libc cimport MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RDWR, iovec, mmsghdr, send, sendmmsg, shutdown

cdef enum:
    FLUSH_ROUNDS = 4        # batches sent to one client in a turn: more than an empty socket buffer takes, so none waits for another

cdef enum Outcome:
    ALL_TAKEN
    SOCKET_FULL             # the rest can be sent once the socket is writable
    PACKET_TOO_BIG          # the first that was not taken never will be: it is larger than the socket's SO_SNDBUF
    PEER_GONE

cdef mmsghdr headers[BATCH_PACKETS]         # built anew for each call; one thread sends
cdef iovec queued_parts[BATCH_PACKETS]


cdef char* data_of(Packet* packet) noexcept nogil:
    """Return where a packet's bytes are."""
    return <char*>packet + sizeof(Packet)


cdef Packet* new_packet(const char* data, size_t length) noexcept nogil:
    """Return a copy of *data* that nobody holds yet, or NULL if memory is short."""
    cdef Packet* packet = <Packet*>malloc(sizeof(Packet) + length)
    if packet is not NULL:
        packet.references = 0
        packet.length = length
        memcpy(data_of(packet), data, length)
    return packet


cdef void release(Packet* packet) noexcept nogil:
    """Drop one reference."""
    packet.references -= 1
    if packet.references == 0:
        free(packet)


cdef void open_outbox(Outbox* box, int fd, Totals* totals, uint64_t packets_limit, uint64_t bytes_limit) noexcept nogil:
    """Make an outbox ready for the connected socket *fd*."""
    box.fd = fd
    box.is_broken = False
    box.first = 0
    box.waiting_bytes = 0
    box.packets_limit = packets_limit
    box.bytes_limit = bytes_limit
    box.delivered_packets = box.delivered_bytes = box.lost_packets = box.untold = box.told = 0
    box.totals = totals


cdef size_t waiting_count(Outbox* box) noexcept nogil:
    """Return how many packets wait."""
    return box.waiting.size() - box.first


cdef size_t transmit(Outbox* box, size_t count, Outcome* outcome) noexcept nogil:
    """Send the first *count* of `headers`; return how many the socket took, and why not more."""
    cdef size_t done = 0, i
    cdef ssize_t taken
    while done < count:
        if count - done == 1:
            taken = send(box.fd, headers[done].msg_hdr.msg_iov.iov_base, headers[done].msg_hdr.msg_iov.iov_len, MSG_DONTWAIT | MSG_NOSIGNAL)
            taken = -1 if taken < 0 else 1
        else:
            taken = sendmmsg(box.fd, &headers[done], count - done, MSG_DONTWAIT | MSG_NOSIGNAL)
        if taken > 0:
            for i in range(done, done + taken):
                box.delivered_bytes += headers[i].msg_hdr.msg_iov.iov_len
                box.totals.delivered_bytes += headers[i].msg_hdr.msg_iov.iov_len
            box.delivered_packets += taken
            box.totals.delivered_packets += taken
            done += taken
        elif errno == EINTR:
            continue
        else:
            if errno == EAGAIN or errno == ENOBUFS or errno == ENOMEM:
                outcome[0] = SOCKET_FULL
            elif errno == EMSGSIZE:
                outcome[0] = PACKET_TOO_BIG
            else:
                outcome[0] = PEER_GONE
                if errno != EPIPE and errno != ECONNRESET:
                    # The peer may well live, and would wait for ever for what it is not sent: so it sees the end at once.
                    shutdown(box.fd, SHUT_RDWR)
            return done
    outcome[0] = ALL_TAKEN
    return done


cdef bint has_room(Outbox* box, size_t length) noexcept nogil:
    """Return whether one more packet of that length may wait."""
    return waiting_count(box) < box.packets_limit and box.waiting_bytes + length <= box.bytes_limit


cdef void count_waiting(Outbox* box, Packet* packet) noexcept nogil:
    """Account for a packet that begins to wait."""
    packet.references += 1
    box.waiting_bytes += packet.length
    box.totals.queued_packets += 1
    box.totals.queued_bytes += packet.length


cdef void pop(Outbox* box) noexcept nogil:
    """Take the first packet off the queue."""
    cdef Packet* packet = box.waiting[box.first]
    box.first += 1
    box.waiting_bytes -= packet.length
    box.totals.queued_packets -= 1
    box.totals.queued_bytes -= packet.length
    release(packet)


cdef void lose(Outbox* box) noexcept nogil:
    """Count a packet that is discarded."""
    box.lost_packets += 1
    box.untold += 1
    box.totals.lost_packets += 1


cdef Packet* loss_notice(Outbox* box) noexcept nogil:
    """Return the packet that tells the peer what it lost, or NULL if memory is short; the count starts anew."""
    cdef char text[48]
    cdef size_t length = snprintf(text, sizeof(text), "CMSG !/bus/lost%c%llu", 0, <unsigned long long>box.untold)
    cdef Packet* notice = new_packet(text, length)
    if notice is not NULL:
        box.told += box.untold
        box.untold = 0
        box.totals.deliveries += 1
    return notice


cdef bint tell_loss(Outbox* box) noexcept nogil:
    """Put the notice of a loss into the queue; return whether there is none left to tell."""
    cdef Packet* notice
    if box.untold == 0:
        return True
    if not has_room(box, 48):
        return False
    notice = loss_notice(box)
    if notice is NULL:
        return False
    count_waiting(box, notice)
    box.waiting.push_back(notice)
    return True


cdef void hold(Outbox* box, Batch* batch, uint32_t index) noexcept nogil:
    """Let one packet of a batch wait, or lose it."""
    if not tell_loss(box) or not has_room(box, batch.parts[index].iov_len):
        lose(box)
        return
    if batch.kept[index] is NULL:
        batch.kept[index] = new_packet(<const char*>batch.parts[index].iov_base, batch.parts[index].iov_len)
        if batch.kept[index] is NULL:
            lose(box)
            return
        batch.kept[index].references = 1        # the batch's own, until end_batch
    count_waiting(box, batch.kept[index])
    box.waiting.push_back(batch.kept[index])


cdef void offer(Outbox* box, Batch* batch, const uint32_t* indexes, size_t count) noexcept nogil:
    """Hand the packets of a batch at *indexes*, at most BATCH_PACKETS, to a client: with one system call if nothing waits."""
    cdef Outcome outcome = SOCKET_FULL
    cdef size_t done = 0, i
    box.totals.deliveries += count
    if box.is_broken:
        box.totals.abandoned_packets += count
        return
    if waiting_count(box) == 0 and box.untold == 0:
        for i in range(count):
            headers[i].msg_hdr.msg_iov = &batch.parts[indexes[i]]
            headers[i].msg_hdr.msg_iovlen = 1
        done = transmit(box, count, &outcome)
        if outcome == PEER_GONE:
            box.is_broken = True
            box.totals.abandoned_packets += count - done
            return
    for i in range(done, count):
        hold(box, batch, indexes[i])
    if outcome == PACKET_TOO_BIG or (box.untold and waiting_count(box) == 0):
        flush(box)


cdef void post(Outbox* box, const char* data, size_t length) noexcept nogil:
    """Hand one packet of the bus itself to a client, behind all that waits, under the same bounds."""
    cdef Batch batch
    cdef uint32_t index = 0
    batch.parts[0].iov_base = <void*>data
    batch.parts[0].iov_len = length
    batch.kept[0] = NULL
    offer(box, &batch, &index, 1)
    end_batch(&batch, 1)


cdef void end_batch(Batch* batch, size_t count) noexcept nogil:
    """Let go of the copies that the first *count* packets of a batch needed."""
    cdef size_t i
    for i in range(count):
        if batch.kept[i] is not NULL:
            release(batch.kept[i])
            batch.kept[i] = NULL


cdef void flush(Outbox* box) noexcept nogil:
    """Send what waits, as far as the socket takes it and the turn's share goes."""
    cdef Outcome outcome
    cdef size_t count, sent, i, round
    for round in range(<size_t>FLUSH_ROUNDS):
        tell_loss(box)
        count = min(waiting_count(box), <size_t>BATCH_PACKETS)
        if count == 0:
            break
        for i in range(count):
            queued_parts[i].iov_base = data_of(box.waiting[box.first + i])
            queued_parts[i].iov_len = box.waiting[box.first + i].length
            headers[i].msg_hdr.msg_iov = &queued_parts[i]
            headers[i].msg_hdr.msg_iovlen = 1
        sent = transmit(box, count, &outcome)
        for i in range(sent):
            pop(box)
        if outcome == PEER_GONE:
            box.is_broken = True
            abandon(box)
        elif outcome == PACKET_TOO_BIG:
            replace_first(box)
        if outcome == SOCKET_FULL or outcome == PEER_GONE:
            break
    tell_loss(box)
    if box.first == box.waiting.size():
        box.waiting.clear()
        box.first = 0
        if box.waiting.capacity() > 1024:
            box.waiting.shrink_to_fit()
    elif box.first > 1024 and box.first * 2 > box.waiting.size():
        box.waiting.erase(box.waiting.begin(), box.waiting.begin() + box.first)
        box.first = 0


cdef void replace_first(Outbox* box) noexcept nogil:
    """Lose the first packet that waits, which the socket can never take, and put the notice of it in its place."""
    cdef Packet* notice
    pop(box)
    lose(box)
    notice = loss_notice(box)
    if notice is not NULL:
        count_waiting(box, notice)
        box.first -= 1
        box.waiting[box.first] = notice


cdef void abandon(Outbox* box) noexcept nogil:
    """Give up what waits."""
    box.totals.abandoned_packets += waiting_count(box)
    while waiting_count(box):
        pop(box)
    box.waiting.clear()
    box.first = 0
