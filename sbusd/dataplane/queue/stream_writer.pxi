"""How packets go to a client's stream socket: as frames, with one system call for all that are sent together.

A stream socket may take a part of a frame. Its packet then counts as queued until the rest is sent, and nothing is sent before that. The
rest is the last bytes of the frame: it refers to the packet and its head, which other queues share, and no bytes are copied for it.
Packets are counted without the lengths of the frames.

One packet may be for many streams, and a socket takes some hundred KiB. So a turn sends a limited number of bytes of long frames and of
queues, for each user and in total. The rest of a frame, which can be all of it, is sent in one of the next turns. Until then packets are
queued in every soft mode, as far as the socket would have taken them. Source: unix(7). Spec: sbus-protocol(7) §1, "Frames".
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport SIZE_MAX, uint32_t, uint64_t
from libcpp.deque cimport deque

from sbusd.dataplane.libc cimport MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RDWR, htole32, iovec, msghdr, sendmsg, shutdown

cdef enum:
    FRAME_BYTES_PER_US = 640    # how fast the kernel takes long frames for many sockets, measured: 500; for one, 13,000
    FRAME_BYTES = 4096          # which a call sends at least, if it may send anything
    SHORT_FRAME_BYTES = 4096          # of a packet whose rest is always kept: each connection may have one
    REST_PIECES = 3             # of a rest: the length, the head and the packet
    TURN_USERS = 4              # all streams together may get the bytes of this number of users in one turn

cdef iovec pieces[4 * BATCH_PACKETS]        # built again for each call; only one thread sends
cdef uint32_t lengths[BATCH_PACKETS]        # of packets that have no room before them


# -- sending

cdef size_t transmit_frames(Outbox* box, mmsghdr* lines, size_t count, uint32_t payer, Outcome* outcome) noexcept nogil:
    """Send the first *count* of *lines* as frames; return how many the socket took completely, and why not more.

    A long frame that is not from the queue is sent only if the queue, the user and the bus have room for its packet: it may be sent in
    part. *payer* is the user who would be charged for that.
    """
    cdef size_t done, first_long = count, fitting = 0, most = SIZE_MAX
    if waiting_count(box):
        return send_frames(box, lines, count, allowance(box, True), outcome)
    box.is_deferred = False
    while fitting < count:
        if length_of(&lines[fitting]) > SHORT_FRAME_BYTES:
            if not may_keep_rest(box, &lines[fitting], payer):
                break
            first_long = min(first_long, fitting)
        fitting += 1
    if first_long < fitting:
        most = allowance(box, False)
        if most == 0:
            return send_short(box, lines, first_long, outcome)
    done = send_frames(box, lines, fitting, most, outcome)
    if outcome[0] == ALL_TAKEN and fitting < count:
        outcome[0] = SOCKET_FULL
    return done


cdef size_t send_short(Outbox* box, mmsghdr* lines, size_t count, Outcome* outcome) noexcept nogil:
    """Send the first *count* of *lines*, and defer the next one: all of its frame is a rest. Returns what `transmit_frames` does."""
    cdef size_t done = send_frames(box, lines, count, SIZE_MAX, outcome)
    if outcome[0] == ALL_TAKEN:
        box.rest_length = length_of(&lines[done])
        box.rest_left = LENGTH_BYTES + box.rest_length
        box.is_deferred = True
        outcome[0] = SENT_IN_PART
    return done


cdef size_t allowance(Outbox* box, bint is_first) noexcept nogil:
    """Return how many bytes of long frames, or of its queue, a stream may get in this turn. *is_first*: the first stream of a user gets
    some in any case, so that no user waits for the streams of others."""
    cdef FrameTurn* turn = &box.totals.frames
    cdef uint64_t sent = turn.bytes
    if box.account is not NULL:
        sent = box.account.frame_bytes if box.account.frame_turn == turn.number else 0
    if (sent == 0 and is_first) or (sent < turn.user_limit and turn.bytes < TURN_USERS * turn.user_limit):
        return max(turn.user_limit - sent, <uint64_t>FRAME_BYTES)
    turn.is_cut_short = True
    return 0


cdef void note_frames(Outbox* box, uint64_t size) noexcept nogil:
    """Count the bytes that a stream has got in this turn."""
    cdef FrameTurn* turn = &box.totals.frames
    turn.bytes += size
    if box.account is not NULL:
        if box.account.frame_turn != turn.number:
            box.account.frame_turn, box.account.frame_bytes = turn.number, 0
        box.account.frame_bytes += size


cdef bint may_keep_rest(Outbox* box, mmsghdr* line, uint32_t payer) noexcept nogil:
    """Return whether there is room for a packet, should the socket take a part of its frame."""
    cdef iovec* parts = line.msg_hdr.msg_iov
    cdef uint64_t cost
    if line.msg_hdr.msg_iovlen == 2:
        cost = cost_of(parts[1].iov_len, parts[0].iov_len)
    else:
        cost = cost_of(parts.iov_len, 0)
    return has_space(&box.room, cost) and may_share(&box.room, owner_of(box), payer, cost) and has_room(box, payer, cost)


cdef size_t send_frames(Outbox* box, mmsghdr* lines, size_t count, size_t most, Outcome* outcome) noexcept nogil:
    """Send the first *count* of *lines* as frames with one system call, *most* bytes at most. Returns what `transmit_frames` does."""
    cdef size_t done = 0, left
    cdef ssize_t taken
    outcome[0] = ALL_TAKEN if count == 0 else SOCKET_FULL
    if count == 0 or most == 0:
        return 0
    taken = send_pieces(box, pieces, gather(lines, count), most)
    if taken < 0:
        outcome[0] = failure(box)
        return 0
    left = taken
    while done < count and left >= LENGTH_BYTES + length_of(&lines[done]):
        left -= LENGTH_BYTES + length_of(&lines[done])
        done += 1
    count_sent(box, lines, done)
    if left:
        box.rest_length = length_of(&lines[done])
        box.rest_left = LENGTH_BYTES + box.rest_length - left
        outcome[0] = SENT_IN_PART
    elif done == count:
        outcome[0] = ALL_TAKEN
    return done


cdef ssize_t send_pieces(Outbox* box, iovec* first, size_t count, size_t most) noexcept nogil:
    """Send *count* pieces, or their first *most* bytes, with one system call. Returns what sendmsg(2) does."""
    cdef ssize_t taken
    cdef msghdr message
    cdef size_t size = 0, i = 0
    while i < count and size < most:
        first[i].iov_len = min(first[i].iov_len, most - size)
        size += first[i].iov_len
        i += 1
    message.msg_name = message.msg_control = NULL
    message.msg_namelen = message.msg_controllen = 0
    message.msg_flags = 0
    message.msg_iov = first
    message.msg_iovlen = i
    taken = sendmsg(box.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
    while taken < 0 and errno == EINTR:
        taken = sendmsg(box.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
    if taken > 0:
        note_frames(box, taken)
    if taken < 0 or <size_t>taken < size:
        box.is_deferred = False     # the socket is full
    elif size == most and waiting_count(box) == 0:
        box.is_deferred = True
    return taken


cdef size_t gather(mmsghdr* lines, size_t count) noexcept nogil:
    """Set the pieces of the frames of packets, and return their number. A packet that is sent alone may have no room before it."""
    cdef iovec* last = pieces
    cdef size_t i
    pieces[0].iov_base = lengths
    pieces[0].iov_len = 0
    if count == 1:
        lengths[0] = htole32(length_of(lines))
        pieces[0].iov_len = LENGTH_BYTES
        for i in range(lines.msg_hdr.msg_iovlen):
            pieces[i + 1] = lines.msg_hdr.msg_iov[i]
        return lines.msg_hdr.msg_iovlen + 1
    for i in range(count):
        last = append(last, &lines[i], length_of(&lines[i]), &lengths[i])
    return last - pieces + 1


# -- the rest of a frame

cdef Outcome keep_frame_rest(Outbox* box, Entry entry) noexcept nogil:
    """Keep an entry whose frame the socket has taken in part, with references and charges of its own. Returns SOCKET_FULL."""
    box.rest = new_entry(box, entry.packet, entry.head, entry.payer)
    return SOCKET_FULL


cdef Outcome keep_shared(Outbox* box, Batch* batch, uint32_t index, Head* head) noexcept nogil:
    """Keep a packet of a batch whose frame the socket has taken in part: the copy that all queues share. Returns SOCKET_FULL, or PEER_GONE
    if memory is short."""
    cdef Entry entry
    batch.has_copies = True
    if (not make_copy(&batch.kept[index], &batch.parts[index], box.totals)
            or (head is not NULL and not make_copy(&head.kept, &head.part, box.totals))):
        return break_off(box)
    if batch.is_tallied:
        batch.tally[index].queued += 1
    entry.packet = batch.kept[index]
    entry.head = NULL
    if head is not NULL:
        entry.head = head.kept
    entry.payer = batch.payer
    return keep_frame_rest(box, entry)


cdef Outcome keep_copy(Outbox* box, const char* data, size_t length, uint32_t payer) noexcept nogil:
    """Keep a packet of the bus itself whose frame the socket has taken in part. Returns what `keep_shared` does."""
    cdef Entry entry
    entry.packet = new_packet(data, length, box.totals)
    entry.head = NULL
    entry.payer = payer
    return break_off(box) if entry.packet is NULL else keep_frame_rest(box, entry)


cdef Outcome break_off(Outbox* box) noexcept nogil:
    """End a stream within a frame whose rest cannot be kept: the peer would take what follows for the rest. Returns PEER_GONE."""
    shutdown(box.fd, SHUT_RDWR)
    return PEER_GONE


cdef void restore_rest(Outbox* box, Entry entry, uint32_t length, uint32_t left, bint is_deferred) noexcept nogil:
    """Keep an entry of which another process has sent all of the frame but the last *left* bytes. *length* is that of the packet with its
    head."""
    keep_frame_rest(box, entry)
    box.rest_length, box.rest_left = length, left
    box.is_deferred = is_deferred


cdef iovec* put_before(iovec* piece, char* data, size_t length, size_t* left) noexcept nogil:
    """Put *data*, or as much of its end as is among the last *left* bytes of a frame, before a piece. Return the first piece."""
    cdef size_t size = min(length, left[0])
    if size == 0:
        return piece
    left[0] -= size
    piece -= 1
    piece.iov_base = data + length - size
    piece.iov_len = size
    return piece


cdef bint has_begun(Outbox* box) noexcept nogil:
    """Return whether the socket has a part of a frame, after which nothing but its rest can be sent."""
    return box.rest.packet is not NULL and box.rest_left < LENGTH_BYTES + box.rest_length


cdef Outcome send_rest(Outbox* box, size_t most) noexcept nogil:
    """Send the rest of a frame, as far as the socket takes it, and *most* bytes at most."""
    cdef size_t left = box.rest_left
    cdef iovec* end = &pieces[REST_PIECES]
    cdef iovec* first = put_before(end, data_of(box.rest.packet), bytes_in(box.rest.packet), &left)
    cdef ssize_t taken
    if most == 0:
        return SOCKET_FULL
    if box.rest.head is not NULL:
        first = put_before(first, data_of(box.rest.head), bytes_in(box.rest.head), &left)
    lengths[0] = htole32(box.rest_length)
    first = put_before(first, <char*>lengths, LENGTH_BYTES, &left)
    taken = send_pieces(box, first, end - first, most)
    if taken < 0:
        return failure(box)
    box.rest_left -= taken
    if box.rest_left:
        return SOCKET_FULL
    count_delivered(box, 1, box.rest_length)
    drop_rest(box)
    return ALL_TAKEN


cdef void drop_rest(Outbox* box) noexcept nogil:
    """Release the rest of a frame."""
    drop_entry(box, box.rest)
    box.rest.packet = box.rest.head = NULL


cdef void abandon_rest(Outbox* box) noexcept nogil:
    """Put the packet of the rest, if there is one, to the front of the queue, which is abandoned: the peer has not got it."""
    if box.rest.packet is NULL:
        return
    if box.waiting is NULL:
        box.waiting = new deque[Entry]()
    box.waiting.push_front(box.rest)
    box.rest.packet = box.rest.head = NULL
