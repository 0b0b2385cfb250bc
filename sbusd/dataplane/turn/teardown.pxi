"""How connections end, step by step, so that no turn takes long.

At the end of a turn a connection loses its queue, its user and its socket, and the sink learns of it. Its patterns are erased over
several turns if they are many, and so is the memory of its queue freed. A socket that may block in close(2) is closed by a thread.
"""

from cython.operator cimport dereference
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free
from libcpp.unordered_map cimport unordered_map

from sbusd.dataplane.libc cimport EPOLL_CTL_DEL, close, epoll_ctl

cdef enum:
    RELEASED_PACKETS = 256      # packets freed before the next look at the clock


cdef int take_down_some(Plane plane) except -1 nogil:
    """Take down connections that have ended, oldest first, erase their patterns, and free their queues, each for turn_time at most:
    many connections may end in one turn, and each may leave as much as its user's quotas allow."""
    if plane.ending.size():
        take_down_ended(plane, now_ns() + plane.schedule.turn_time)
    if plane.destroyed.size():
        erase_patterns(plane, now_ns() + plane.schedule.turn_time)
        end_step(plane, ERASING)
    if plane.totals.remains is not NULL:
        release_some(plane, now_ns() + plane.schedule.turn_time)
        end_step(plane, ENDING)
    return 0


cdef int take_down_ended(Plane plane, int64_t end) except -1 with gil:
    """Take down connections that have ended until the time is *end*, at least one."""
    while True:
        destroy_next(plane)
        if plane.destroyed.size() == 1:
            erase_patterns(plane, end)
        end_step(plane, ENDING)
        if plane.ending.empty() or now_ns() > end:
            return 0


cdef int destroy_next(Plane plane) except -1:
    """Take down the connection that has ended first, and report it to the sink."""
    cdef Connection* connection = plane.slots[plane.ending.front()]
    cdef uint64_t number = connection.id, lost
    plane.ending.pop_front()
    plane.counted.subscriptions -= connection.instances
    abandon(&connection.out)
    lost = connection.out.noticed_losses + connection.out.unreported_losses      # some of it in no loss notice
    if connection.blocking.since >= 0:
        unblock_all(plane, connection)
    if connection.publishing.recipients:
        end_waiting(connection)
    trim_backlog(plane, connection)
    leave_account(plane, connection)
    connection.out.noticed_losses = connection.out.unreported_losses = 0
    plane.by_id.erase(number)
    epoll_ctl(plane.epoll, EPOLL_CTL_DEL, connection.out.fd, NULL)
    if connection.reading.is_drained:
        # Its peer sees the end already, and no unread packet could turn that into an error.
        close(connection.out.fd)
        connection.is_closed = True
    else:
        connection.is_closed = close_socket(plane, connection.out.fd, connection.reading.passing, connection.out.is_stream, number)
    connection.is_destroyed = True
    plane.destroyed.push_back(connection.slot)
    if not connection.is_closed:
        plane.unclosed[number] = connection.slot
    if plane.accepting.is_paused and not is_closer_full(plane):
        resume_accepting(plane)
    plane.clients.end(connection, lost)
    return 0


cdef int erase_patterns(Plane plane, int64_t end) except -1 nogil:
    """Erase patterns of destroyed connections, oldest first, at least one, until the time is *end*."""
    cdef Connection* connection
    cdef Item* pattern
    cdef bint is_over = False
    while plane.destroyed.size() and not is_over:
        connection = plane.slots[plane.destroyed.front()]
        while connection.patterns is not NULL and not is_over:
            pattern = first(connection.patterns)
            stop_routing_to(plane, connection, text_of(pattern), pattern.length)
            remove_stored(&connection.patterns, text_of(pattern), pattern.length)
            is_over = connection.patterns is not NULL and now_ns() > end
        if connection.patterns is NULL:
            plane.destroyed.pop_front()
            forget(plane, connection)
            is_over = plane.destroyed.size() != 0 and now_ns() > end
    return 0


cdef int forget(Plane plane, Connection* connection) except -1 with gil:
    """Delete a destroyed connection without patterns. Its user was charged for them until now."""
    cdef uint64_t number = connection.id
    cdef bint is_closed = connection.is_closed
    plane.slots[connection.slot] = NULL
    plane.free_slots.push_back(connection.slot)
    del connection.members
    del connection
    if is_closed:
        plane.clients.release(number)
    else:
        plane.unclosed.erase(number)
    return 0


cdef int report_closed(Plane plane) except -1:
    """Report to the sink which sockets the closer has closed."""
    cdef unordered_map[uint64_t, uint32_t].iterator found
    for number in plane.closer.take_closed():
        found = plane.unclosed.find(number)
        if found == plane.unclosed.end():
            plane.clients.release(number)
        else:
            plane.slots[dereference(found).second].is_closed = True
            plane.unclosed.erase(found)
    if plane.accepting.is_paused and not is_closer_full(plane):
        resume_accepting(plane)
    return 0


cdef void release_some(Plane plane, int64_t end) noexcept nogil:
    """Free packets of abandoned queues until the time is *end*, at least some; 0: all. Other members get those of their groups."""
    cdef Account* account
    cdef size_t most
    while plane.totals.remains is not NULL:
        most = RELEASED_PACKETS
        if plane.groups.size():
            pass_on_some(plane, most, end)
            most = min(most, keys_left(plane.totals.remains))
        account = release_remains(&plane.totals, most)
        if account is not NULL:
            forget_user(plane, account)
        if end and now_ns() > end:
            break


cdef void leave_account(Plane plane, Connection* connection) noexcept nogil:
    """Remove a connection from its user, and the user with its last connection."""
    cdef Account* account = connection.out.account
    if account is NULL:
        return
    connection.out.account = NULL
    account.connections -= 1
    if account.connections == 0:
        account.lost_packets = 0
        account.blocked_ns = account.blocked_others_ns = 0
        if is_unused(account):
            forget_user(plane, account)


cdef int close_all(Plane plane, bint keeps_connections) except -1:
    """Close every connection and all descriptors of the plane, without reports to the sink."""
    cdef uint32_t slot
    for slot in range(plane.slots.size()):
        if plane.slots[slot] is not NULL:
            close_one(plane, plane.slots[slot], keeps_connections)
            plane.slots[slot] = NULL
    release_some(plane, 0)
    plane.by_id.clear()
    plane.watched.clear()
    plane.closer.close()
    if plane.epoll >= 0:
        close(plane.epoll)
        close(plane.accepting.spare)
        plane.epoll = plane.accepting.spare = -1
    return 0


cdef int close_one(Plane plane, Connection* connection, bint keeps_connections) except -1:
    """Close and delete a connection."""
    cdef Backlog* unread
    free_stored(&connection.patterns)
    forget_members(plane, connection)
    if not connection.is_destroyed:
        abandon(&connection.out)
        while connection.reading.backlog is not NULL:
            unread = connection.reading.backlog
            connection.reading.backlog = unread.next
            free(unread)
        drop_half(connection)
        leave_account(plane, connection)
        if keeps_connections:
            close(connection.out.fd)
        else:
            close_socket(plane, connection.out.fd, connection.reading.passing, connection.out.is_stream, 0)
    del connection
    return 0
