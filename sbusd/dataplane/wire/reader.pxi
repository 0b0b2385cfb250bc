"""How packets come from a connection: from its socket, with recvmmsg(2), or from its backlog.

A socket holds as many megabytes as net.core.wmem_max lets its client choose, socket(7). One read takes at most READ_BYTES of it: what it
takes is read into pages that are committed for it, and what cannot be handled is copied.

The backlog is what was read and could not be handled in the same turn. All connections of a user together may have UNREAD_BYTES of it.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EINTR, ENOBUFS, ENOMEM, errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libcpp.vector cimport vector
from posix.time cimport timespec

from sbusd.dataplane.ancillary cimport REFUSED, receive_checked
from sbusd.dataplane.libc cimport (
    EPOLL_CTL_DEL, EPOLLERR, EPOLLHUP, EPOLLRDHUP, FIONREAD, MSG_DONTWAIT, MSG_TRUNC, POLLRDHUP, epoll_ctl, ioctl, poll, pollfd, recvmmsg,
)

from sbusd.dataplane.contract import UNREAD_BYTES

cdef enum:
    FEW_PACKETS = 2             # read without asking how many bytes wait
    READ_BYTES = 1048576        # in one read: more than FEW_PACKETS can have

cdef size_t BACKLOG_BYTES = UNREAD_BYTES


cdef size_t receive(Plane plane, Connection* connection, uint32_t events) noexcept nogil:
    """Take the next batch from the backlog or the socket into the plane's intake, and return how many packets it has."""
    cdef size_t i
    cdef uint64_t length = 0
    cdef int unread = 0
    plane.intake.count = plane.intake.offset = 0
    plane.intake.limit = read_limit(&plane.schedule, &connection.time, user_time_of(connection))
    if connection.reading.backlog is not NULL:
        resume(connection.reading.backlog, &plane.intake)
    else:
        if events & (EPOLLHUP | EPOLLRDHUP) and ioctl(connection.out.fd, FIONREAD, &unread) == 0 and unread == 0:
            if events & EPOLLHUP and connection.reading.passing == REFUSED:
                # Both sides are closed, as the kernel said before this look at the socket: so nothing can have come since.
                connection.reading.is_at_end = connection.reading.is_drained = True
                return 0
            plane.intake.limit = 1      # recvmmsg(2) would return the end of the stream once for each packet that has room
        if connection.out.is_stream:
            read_stream(plane, connection, events)
        else:
            read_socket(plane, connection, events)
    for i in range(plane.intake.count):
        length += plane.batch.parts[i].iov_len
    connection.reading.bytes += length
    plane.counted.received_bytes += length
    connection.reading.packets += plane.intake.count
    plane.counted.received_packets += plane.intake.count
    return plane.intake.count


cdef void read_socket(Plane plane, Connection* connection, uint32_t events) noexcept nogil:
    """Read the socket, and keep what exceeds the limit: a batch has as many packets as its sender likes."""
    cdef int count, i = 0, taken = 0
    count = read_bounded(plane, connection, min(<uint32_t>plane.intake.limit, connection.reading.reads))
    if count == -2:
        finish(plane, connection, END_BROKEN)
        return
    if count < 0:
        handle_error(plane, connection)
        return
    connection.reading.resets = 0
    for i in range(count):
        if plane.inbound[i].msg_len == 0 and handle_end(plane, connection, events):
            count = i
            break
        if plane.inbound[i].msg_len >= LARGE_BYTES:
            plane.is_buffer_large = True
    while taken < count and plane.intake.count < plane.intake.limit:
        if not take(&plane.intake, <char*>plane.rooms[taken].iov_base, plane.inbound[taken].msg_len,
                    plane.inbound[taken].msg_hdr.msg_flags & MSG_TRUNC):
            break
        taken += 1
    # A sender of batches is read in small steps; otherwise most of what is read would be copied into its backlog.
    if taken < count:
        connection.reading.reads = 1
        keep_rest(plane, connection, taken, count)
    else:
        connection.reading.reads = min(connection.reading.reads * 2, <uint32_t>BATCH_PACKETS)


cdef int read_bounded(Plane plane, Connection* connection, uint32_t most) noexcept nogil:
    """Read at most *most* packets, and READ_BYTES or what the user may still have in backlogs. Returns what `read_packets` does."""
    cdef timespec span
    cdef bint has_company = since_other(&plane.schedule, user_time_of(connection)) < COMPANY_NS
    cdef size_t room = READ_BYTES, size = 0
    cdef int count, more, i, unread = 0
    cdef uint32_t few = FEW_PACKETS
    if connection.out.account is not NULL:
        room = min(room, BACKLOG_BYTES - min(BACKLOG_BYTES, connection.out.account.unread))
    if room < FEW_PACKETS * plane.rooms[0].iov_len:
        few = 1     # only this one can exceed what the user may have
    span.tv_sec = plane.schedule.turn_time // 1000000000
    span.tv_nsec = plane.schedule.turn_time % 1000000000
    count = read_packets(plane, connection, 0, min(most, few), &span if has_company else NULL)
    if count < <int>few or most <= few or connection.reading.has_descriptors:
        return count
    for i in range(count):
        if plane.inbound[i].msg_len == 0:
            return count        # this can be the end
        size += plane.inbound[i].msg_len
    if ioctl(connection.out.fd, FIONREAD, &unread) < 0 or unread <= 0 or size + <size_t>unread > room:
        return count
    # A sender of large packets refills the socket while it is read. The kernel checks this limit after each packet; for small ones, without
    # other users, it would only take time.
    more = read_packets(plane, connection, count, most - count, &span if has_company or unread >= LARGE_BYTES else NULL)
    return more if more == -2 else count + max(more, 0)


cdef int read_packets(Plane plane, Connection* connection, int first, uint32_t most, timespec* limit) noexcept nogil:
    """Read at most *most* packets into the rooms from *first* on, and stop when the time *limit* is over, which gets what is left of it.

    Returns what recvmmsg(2) does, and -2 if packets with descriptors could not be removed.
    """
    if connection.reading.passing == REFUSED:
        return recvmmsg(connection.out.fd, plane.inbound + first, most, MSG_DONTWAIT, limit)
    return receive_checked(
        connection.out.fd, plane.inbound + first, most, limit, &connection.reading.passing, &connection.reading.has_descriptors)


cdef void read_stream(Plane plane, Connection* connection, uint32_t events) noexcept nogil:
    """Read the frames of a stream, and keep what exceeds the limit."""
    cdef ssize_t count = receive_frames(plane, connection)
    if count > 0:
        connection.reading.resets = 0
        if connection.reading.backlog is not NULL:
            start_backlog(connection)
    elif count == 0:
        # A client that only shuts down its sending side, in the middle of a frame, still reads the error.
        if handle_end(plane, connection, events) and not connection.reading.is_at_end and connection.reading.half is not NULL:
            connection.reading.has_fault = True
    elif count == -1:
        handle_error(plane, connection)
    else:
        finish(plane, connection, END_BROKEN)       # as in keep_rest
    resume_halves(plane, connection)


cdef void handle_error(Plane plane, Connection* connection) noexcept nogil:
    """Handle an error of recvmmsg(2)."""
    if errno == EAGAIN or errno == EINTR or errno == ENOBUFS or errno == ENOMEM:
        return
    # If a peer closes before it has read everything, ECONNRESET comes before the packets that it sent.
    connection.reading.resets += 1
    if errno != ECONNRESET or connection.reading.resets > 2:
        finish(plane, connection, END_BROKEN)


cdef bint handle_end(Plane plane, Connection* connection, uint32_t events) noexcept nogil:
    """Handle a read of no bytes: the end of the stream, or a packet of no bytes, for which the result is False."""
    cdef pollfd state
    state.fd = connection.out.fd
    state.events = POLLRDHUP
    state.revents = 0
    if not events & EPOLLHUP:
        while poll(&state, 1, 0) < 0:
            if errno != EINTR:
                connection.reading.is_at_end = True     # if this is the end, it would be read again and again
                return True
        if not state.revents:
            return False
        events = state.revents
    if events & EPOLLHUP or connection.out.is_broken:
        connection.reading.is_at_end = True
    else:
        connection.reading.is_open = False
        connection.reading.is_at_end = not update_interest(plane, connection)
    return True


cdef void keep_rest(Plane plane, Connection* connection, int first, int count) noexcept nogil:
    """Keep received packets, from *first* on, in a backlog."""
    cdef size_t size = 0, offset = plane.intake.offset
    cdef int i
    cdef Backlog* backlog
    for i in range(first, count):
        size += record_bytes(<char*>plane.rooms[i].iov_base, plane.inbound[i].msg_len, offset if i == first else 0)
    backlog = new_backlog(size)
    if backlog is NULL:
        finish(plane, connection, END_BROKEN)       # the packets would be missing, and no client could know
        return
    for i in range(first, count):
        store(backlog, <char*>plane.rooms[i].iov_base, plane.inbound[i].msg_len,
              plane.inbound[i].msg_hdr.msg_flags & MSG_TRUNC, offset if i == first else 0)
    connection.reading.backlog = backlog
    start_backlog(connection)


cdef void keep_unhandled(Plane plane, Connection* connection, size_t first) noexcept nogil:
    """Put the packets of the current batch, from *first* on, before the backlog, as if they had not been received."""
    cdef Backlog* kept = put_back(&plane.intake, first, connection.reading.backlog)
    cdef size_t i
    cdef uint64_t length = 0
    if kept is NULL:
        finish(plane, connection, END_BROKEN)       # as in keep_rest
        return
    for i in range(first, plane.intake.count):
        length += plane.batch.parts[i].iov_len
    connection.reading.bytes -= length
    plane.counted.received_bytes -= length
    connection.reading.packets -= plane.intake.count - first
    plane.counted.received_packets -= plane.intake.count - first
    connection.reading.backlog = kept
    if connection.out.account is not NULL:
        connection.out.account.unread += kept.size
    # A paced publisher puts packets back again and again. Pieces that are done must not stay until the whole backlog is.
    while kept.next is not NULL and kept.next.place == kept.next.size:
        kept.next = free_piece(plane, connection, kept.next)


cdef void start_backlog(Connection* connection) noexcept nogil:
    """Go to the start of a new backlog, and charge the user for it."""
    connection.reading.backlog.place = 0
    if connection.out.account is not NULL:
        connection.out.account.unread += connection.reading.backlog.size


cdef void trim_backlog(Plane plane, Connection* connection) noexcept nogil:
    """Free what is handled of a backlog; all of it, if the connection is ending."""
    while connection.reading.backlog is not NULL and (
            connection.reading.backlog.place == connection.reading.backlog.size or connection.is_ending):
        connection.reading.backlog = free_piece(plane, connection, connection.reading.backlog)
    if connection.is_ending and connection.reading.half is not NULL:
        free_half(plane, connection)
    update_pending(plane, connection)


cdef Backlog* free_piece(Plane plane, Connection* connection, Backlog* piece) noexcept nogil:
    """Free a piece of a connection's backlog, and return the next one."""
    cdef Account* account = connection.out.account
    cdef Backlog* following = piece.next
    if account is not NULL:
        account.unread -= piece.size
    free(piece)
    if account is not NULL and account.held_up.size() and account.unread < BACKLOG_BYTES:
        resume_user(plane, account)
    return following


cdef void free_half(Plane plane, Connection* connection) noexcept nogil:
    """Free the beginning of a frame of a connection that is ending."""
    drop_half(connection)
    resume_halves(plane, connection)


cdef void resume_halves(Plane plane, Connection* connection) noexcept nogil:
    """Read the connections of a user again that have waited for memory for long frames, if there is some."""
    cdef Account* account = connection.out.account
    if account is not NULL and account.held_up.size() and account.unread < BACKLOG_BYTES and not is_at_half_read_limit(connection):
        resume_user(plane, account)


cdef bint waits_for_user(Plane plane, Connection* connection, uint32_t events) noexcept nogil:
    """Return whether a connection is not read now, because its user's backlogs, or half-read frames, have all the memory they may have."""
    cdef Account* account = connection.out.account
    cdef Blocked entry
    if account is NULL or (account.unread < BACKLOG_BYTES and not (connection.out.is_stream and awaits_memory(connection))):
        return False
    if not connection.reading.waits_for_user:
        entry.slot = connection.slot
        entry.id = connection.id
        account.held_up.push_back(entry)
        connection.reading.waits_for_user = True
        connection.reading.blockers += 1
        if not update_interest(plane, connection):
            finish(plane, connection, END_BROKEN)
    if events & (EPOLLHUP | EPOLLERR):
        # epoll always reports these events, so the loop would never sleep.
        connection.reading.is_unwatched = epoll_ctl(plane.epoll, EPOLL_CTL_DEL, connection.out.fd, NULL) == 0
    return True


cdef void resume_user(Plane plane, Account* account) noexcept nogil:
    """Read a user's connections again."""
    cdef vector[Blocked] freed
    cdef Connection* connection
    cdef size_t i
    freed.swap(account.held_up)
    for i in range(freed.size()):
        connection = plane.slots[freed[i].slot]
        if connection is not NULL and connection.id == freed[i].id:
            connection.reading.waits_for_user = False
            if connection.reading.is_unwatched and not connection.is_ending and not update_interest(plane, connection):
                finish(plane, connection, END_BROKEN)
            remove_blocker(plane, connection)
