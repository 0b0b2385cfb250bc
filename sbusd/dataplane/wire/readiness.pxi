"""Which connections can be read, written, or end: what epoll(7) watches, and which backlogs can be handled."""

from sbusd.dataplane.libc cimport EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, EPOLLRDHUP, epoll_ctl, epoll_event


cdef bint update_interest(Plane plane, Connection* connection) noexcept nogil:
    """Let epoll watch what a connection waits for. Return False if that fails: its queue would wait forever."""
    cdef epoll_event event
    event.events = (EPOLLIN | EPOLLRDHUP) if connection.reading.is_open and connection.reading.blockers == 0 else 0
    if waiting_count(&connection.out):
        event.events |= EPOLLOUT
    event.data.u64 = connection.slot
    connection.interest = event.events
    if connection.reading.is_unwatched:
        if connection.reading.waits_for_user or connection.reading.is_held:
            return True
        connection.reading.is_unwatched = False
        return epoll_ctl(plane.epoll, EPOLL_CTL_ADD, connection.out.fd, &event) == 0
    return epoll_ctl(plane.epoll, EPOLL_CTL_MOD, connection.out.fd, &event) == 0


cdef void update_pending(Plane plane, Connection* connection) noexcept nogil:
    """Note whether a connection has a backlog that can be handled."""
    cdef bint is_pending = connection.reading.backlog is not NULL and connection.reading.blockers == 0
    if is_pending == connection.reading.is_pending:
        return
    connection.reading.is_pending = is_pending
    if is_pending:
        plane.pending[connection.id] = connection.slot
    else:
        plane.pending.erase(connection.id)


cdef void remove_blocker(Plane plane, Connection* publisher) noexcept nogil:
    """Remove one of the reasons not to read a connection."""
    publisher.reading.blockers -= 1
    if publisher.reading.blockers == 0 and not publisher.is_ending:
        if not update_interest(plane, publisher):
            finish(plane, publisher, END_BROKEN)
        update_pending(plane, publisher)


cdef void finish(Plane plane, Connection* connection, int end) noexcept nogil:
    """End a connection: it is taken down at the end of this turn, so that no pointer to it becomes invalid before."""
    if not connection.is_ending:
        connection.is_ending = True
        connection.end = end
        plane.taps.remove(connection.slot)
        plane.ending.push_back(connection.slot)
