"""How connections begin, and how their sockets are closed. Source: accept(2), socket(7).

If the process has no descriptor left, a spare one is closed to accept the connection, to refuse it, and to close it: otherwise its
peer would wait forever. If even that fails, no connection is accepted for a while.
"""

from libc.errno cimport EAGAIN, EBUSY, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport int64_t, uint32_t

from sbusd.dataplane.ancillary cimport REFUSED, hang_up, is_refusing, refuse_passing
from sbusd.dataplane.libc cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLRDHUP, MSG_DONTWAIT, MSG_NOSIGNAL, O_CLOEXEC, O_RDONLY, SO_SNDBUF, SOCK_CLOEXEC,
    SOCK_NONBLOCK, SOL_SOCKET, accept4, close, epoll_ctl, epoll_event, open, send, setsockopt,
)

cdef enum:
    PAUSE_MS = 1000             # how long the switch does not accept if it has no descriptor even to refuse a connection
    ACCEPTS_PER_TURN = 16       # so that a flood of connections does not delay traffic
    SEND_BUFFER = 212992        # the kernel doubles it: enough for the largest packet; net.core.wmem_max limits it, socket(7)


cdef Connection* add_connection(Plane plane, int fd, uint64_t connection, Passing passing, bint is_stream) except NULL:
    """Take over a connected socket. *passing*: whether descriptors can be among its unread packets. *is_stream*: it has frames."""
    cdef Connection* fresh
    cdef uint32_t slot
    cdef int size = SEND_BUFFER
    if plane.by_id.count(connection):
        raise ValueError(f"connection {connection} exists")
    slot = plane.free_slots.back() if plane.free_slots.size() else plane.slots.size()
    control_epoll(plane, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP, slot)
    # Best effort: with a smaller wmem_max this client loses the largest packets, and is sent a loss notice.
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size))
    fresh = new Connection()        # all fields are zero
    fresh.id = connection
    fresh.slot = slot
    fresh.interest = EPOLLIN | EPOLLRDHUP
    open_outbox(&fresh.out, connection, fd, is_stream, &plane.totals, plane.bounds.queue_packets, plane.bounds.queue_bytes)
    fresh.echo = fresh.reading.is_open = True
    fresh.reading.passing = passing
    fresh.reading.reads = BATCH_PACKETS
    fresh.time.batch_limit = plane.schedule.batch_packets
    fresh.blocking.since = fresh.blocking.progress_at = -1
    if plane.free_slots.size():
        plane.free_slots.pop_back()
        plane.slots[slot] = fresh
    else:
        plane.slots.push_back(fresh)
    plane.by_id[connection] = fresh
    plane.next_id = max(plane.next_id, connection + 1)
    return fresh


cdef Passing passing_of(Plane plane, int listener, int fd) noexcept nogil:
    """Return whether descriptors can be among the unread packets of a socket that was just accepted from *listener*.

    A connection has the option that its listener had at its connect(2), and connections are accepted in that order. So once one refuses
    descriptors, all later ones do.
    """
    if plane.accepting.refusing == listener or is_refusing(fd):
        plane.accepting.refusing = listener
        return REFUSED
    return refuse_passing(fd, True)


cdef int accept_connections(Plane plane, int listener) except -1:
    """Accept a bounded number of connections, for about turn_time: a connection costs more than a message."""
    cdef int fd, i
    cdef Connection* fresh
    cdef int64_t end = plane.schedule.now + plane.schedule.turn_time
    cdef bint is_stream = listener in plane.stream_listeners
    if is_closer_full(plane):
        # No quota counts the descriptors of refused connections, and peers can send sockets that block in close(2) faster than they close.
        return pause_accepting(plane, EBUSY)
    # One at first: looking for a second connection costs as much as another turn. A flood doubles the number in each turn.
    if plane.accepting.turn + 1 >= plane.schedule.turn:
        plane.accepting.limit = min(plane.accepting.limit * 2, <int>ACCEPTS_PER_TURN)
    else:
        plane.accepting.limit = 1
    plane.accepting.turn = plane.schedule.turn
    for i in range(plane.accepting.limit):
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)
        if fd >= 0:
            try:
                fresh = add_connection(plane, fd, plane.next_id, passing_of(plane, listener, fd), is_stream)
            except OSError as error:
                reject(plane, fd, error.errno, is_stream)
                continue
            plane.accepting.accepted += 1
            plane.clients.begin(fresh)
        elif errno == EMFILE or errno == ENFILE:
            accept_with_spare(plane, listener, errno, is_stream)
        elif errno == ENOBUFS or errno == ENOMEM:
            pause_accepting(plane, errno)
        elif errno == EAGAIN:
            break
        # Any other error concerns one connection, accept(2): the next may be fine.
        if plane.accepting.is_paused or i + 1 == plane.accepting.limit or now_ns() > end:
            break
    return 0


cdef int accept_with_spare(Plane plane, int listener, int failure, bint is_stream) except -1:
    """Close the spare descriptor to accept a connection and refuse it; otherwise its peer would wait forever."""
    cdef int fd
    if plane.accepting.spare < 0:
        return pause_accepting(plane, failure)
    close(plane.accepting.spare)
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)
    if fd >= 0:
        reject(plane, fd, failure, is_stream)
    plane.accepting.spare = open(b"/dev/null", O_RDONLY | O_CLOEXEC)
    if plane.accepting.spare < 0:
        pause_accepting(plane, errno)
    return 0


cdef int reject(Plane plane, int fd, int failure, bint is_stream) except -1:
    """Send a peer the refusal, and close its socket."""
    cdef bytes refusal = plane.refusals[<int>REFUSED_NO_DESCRIPTOR]
    if is_stream:
        refusal = len(refusal).to_bytes(4, "little") + refusal
    send(fd, <const char*>refusal, len(refusal), MSG_DONTWAIT | MSG_NOSIGNAL)
    close_socket(plane, fd, refuse_passing(fd, True), is_stream, 0)
    plane.accepting.failures += 1
    plane.sink.accept_failed(failure)
    return 0


cdef int pause_accepting(Plane plane, int failure) except -1:
    """Stop accepting until a connection ends or some time has passed: the listener stays readable, and the loop would spin."""
    plane.accepting.is_paused = True
    plane.accepting.resume_at = now_ns() + <int64_t>PAUSE_MS * 1000000
    plane.accepting.failures += 1
    watch_listeners(plane, 0)
    plane.sink.accept_failed(failure)
    return 0


cdef int resume_accepting(Plane plane) except -1 with gil:
    """Accept again."""
    if plane.accepting.spare < 0:
        plane.accepting.spare = open(b"/dev/null", O_RDONLY | O_CLOEXEC)
    plane.accepting.is_paused = not watch_listeners(plane, EPOLLIN)
    # Connections have piled up. Accepting one at first would delay every peer that did not cause the pause.
    plane.accepting.limit = ACCEPTS_PER_TURN
    plane.accepting.turn = plane.schedule.turn
    return 0


cdef bint watch_listeners(Plane plane, uint32_t interest) except -1:
    """Let epoll watch the listeners for *interest*; return whether it does."""
    cdef epoll_event event
    cdef bint is_done = True
    for fd in plane.listeners:
        event.events = interest
        event.data.u64 = LISTENER | <uint64_t>fd
        is_done = epoll_ctl(plane.epoll, EPOLL_CTL_MOD, fd, &event) == 0 and is_done
    return is_done


cdef bint close_socket(Plane plane, int fd, Passing passing, bint is_stream, uint64_t connection) except -1:
    """Close a socket and return True. If that may block, a thread does it and later reports *connection*, if not 0; return False."""
    if hang_up(fd, passing, is_stream):
        return True
    plane.closer.add(fd, connection or None)
    plane.accepting.may_closer_be_full = True
    return False


cdef bint is_closer_full(Plane plane) except -1:
    """Return whether too many sockets wait to be closed. After an answer of no, the closer is not asked until it gets another socket."""
    plane.accepting.may_closer_be_full = plane.accepting.may_closer_be_full and plane.closer.is_full
    return plane.accepting.may_closer_be_full
