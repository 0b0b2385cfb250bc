"""The event loop: one turn waits for readiness, serves what is ready, and takes down connections that have ended.

The interpreter's lock is taken only for what is not a message: connections that begin or end, control packets, and reports to the sink.
Source: epoll(7).
"""

from cython.operator cimport dereference, preincrement
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.map cimport map as cpp_map

from sbusd.dataplane.libc cimport EPOLL_CTL_DEL, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, epoll_ctl, epoll_wait, set_errno

import os

from sbusd.dataplane.contract import Refusal

cdef enum:
    RELEASE_MS = 100            # the buffer's pages are released after such a pause. Releasing them in each pause would cost more than the
                                # packets: 64 KiB take 19.7 us of CPU then, and 12.3 otherwise


# -- turns

cdef int take_turns(Plane plane, int timeout_ms) except -1 nogil:
    """Take turns until one has seen a signal or a watched descriptor, `return_soon` was called, or the time is over."""
    cdef int64_t end = now_ns() + <int64_t>timeout_ms * 1000000
    cdef int left = 0 if plane.must_return else timeout_ms
    plane.has_event = False
    while True:
        take_turn(plane, left)
        if timeout_ms >= 0:
            left = <int>((end - plane.schedule.now + 999999) // 1000000)
        if plane.has_event or plane.must_return or (timeout_ms >= 0 and left <= 0):
            break
    return 0


cdef int take_turn(Plane plane, int timeout_ms) except -1 nogil:
    """Take one turn, and return how many descriptors were ready."""
    cdef int count
    if plane.accepting.is_paused and (timeout_ms < 0 or timeout_ms > PAUSE_MS):
        timeout_ms = PAUSE_MS
    count = wait(plane, limit_timeout(plane, timeout_ms) if is_idle(plane) else 0)
    plane.schedule.now = now_ns()
    if count < 0:
        plane.has_event = True
        if errno == EINTR:
            return 0
        with gil:
            raise OSError(errno, f"epoll_wait: {os.strerror(errno)}")
    if plane.accepting.is_paused and (count == 0 or plane.schedule.now >= plane.accepting.resume_at):
        resume_accepting(plane)
    begin_turn(&plane.schedule)
    begin_frames(plane)
    count = add_pending(plane, count)
    count_readable(plane, count)
    serve_ready(plane, count)
    end_step(plane, PACKETS)
    end_expired_waits(plane)
    end_step(plane, BLOCKS)
    if plane.informed.size():
        report_losses(plane)
        end_step(plane, LOSSES)
    take_down_some(plane)
    return count


cdef void begin_frames(Plane plane) noexcept nogil:
    """Let frames be sent in a new turn."""
    cdef FrameTurn* frames = &plane.totals.frames
    frames.number = plane.schedule.turn
    frames.bytes = 0
    if frames.is_cut_short:
        frames.is_cut_short = False
        plane.schedule.is_cut_short = True


cdef bint is_idle(Plane plane) noexcept nogil:
    """Return whether only descriptors can bring work."""
    return plane.pending.empty() and plane.ending.empty() and plane.destroyed.empty() and plane.totals.remains is NULL


cdef int wait(Plane plane, int timeout_ms) noexcept nogil:
    """Wait for readiness, and meanwhile release what large packets took. Return the result of epoll_wait(2)."""
    cdef int count, idle
    if plane.is_buffer_large and timeout_ms != 0:
        idle = RELEASE_MS if timeout_ms < 0 or timeout_ms > RELEASE_MS else timeout_ms
        count = poll_events(plane, idle)
        if count != 0:
            return count
        release_buffer(plane)
        end_step(plane, BUFFER)
        timeout_ms -= idle if timeout_ms > 0 else 0
    return poll_events(plane, timeout_ms)


cdef int poll_events(Plane plane, int timeout_ms) noexcept nogil:
    """Call epoll_wait(2), and return its result."""
    cdef int count, failure
    if not plane.is_measured:
        return epoll_wait(plane.epoll, plane.ready, READY_EVENTS, timeout_ms)
    plane.stalls.end_turn()
    count = epoll_wait(plane.epoll, plane.ready, READY_EVENTS, timeout_ms)
    failure = errno
    plane.stalls.begin_turn()
    set_errno(failure)
    return count


cdef int add_pending(Plane plane, int count) noexcept nogil:
    """Add connections with a backlog to the *count* that are ready, and return how many there are then."""
    cdef int i
    cdef Connection* connection
    cdef uint32_t turn = <uint32_t>plane.schedule.turn
    cdef cpp_map[uint64_t, uint32_t].iterator each
    if plane.pending.empty():
        return count
    for i in range(count):
        if plane.ready[i].data.u64 < LISTENER:
            plane.slots[plane.ready[i].data.u64].reading.turn = turn
    # The oldest first. If they are too many for one turn, start after those of the last turn.
    each = plane.pending.begin() if plane.pending.size() <= PENDING_EVENTS else plane.pending.upper_bound(plane.last_pending)
    for i in range(min(<int>plane.pending.size(), <int>PENDING_EVENTS)):
        if each == plane.pending.end():
            each = plane.pending.begin()
        plane.last_pending = dereference(each).first
        connection = plane.slots[dereference(each).second]
        preincrement(each)
        if connection.reading.turn != turn:
            plane.ready[count].events = EPOLLIN
            plane.ready[count].data.u64 = connection.slot
            count += 1
    return count


cdef void count_readable(Plane plane, int count) noexcept nogil:
    """Count the readable connections of each user."""
    cdef int i
    for i in range(count):
        if plane.ready[i].data.u64 < LISTENER and plane.ready[i].events & EPOLLIN:
            note_readable(&plane.schedule, user_time_of(plane.slots[plane.ready[i].data.u64]))


cdef int serve_ready(Plane plane, int count) except -1 nogil:
    """Serve what is ready. Throttled connections are served only if nothing else is."""
    cdef int i, n, throttled = 0, served = 0
    cdef int64_t end = turn_end(&plane.schedule)
    cdef uint64_t data
    cdef Connection* connection
    # After a turn that was too long, start elsewhere: epoll returns the same order again.
    cdef int start = <int>(plane.schedule.turn % <uint64_t>count) if plane.schedule.is_cut_short and count else 0
    plane.schedule.is_cut_short = False
    for n in range(count):
        i = (n + start) % count
        data = plane.ready[i].data.u64
        if data >= LISTENER:
            serve_other(plane, data)
            plane.schedule.now = now_ns()       # do not charge the next connection for time spent on other descriptors
            continue
        connection = plane.slots[data]
        if (is_throttled(&plane.schedule, &connection.time, user_time_of(connection))
                or must_stop(&plane.schedule, user_time_of(connection), end)):
            # It is not read now, but its queue is sent.
            throttled += 1
            if plane.ready[i].events & EPOLLOUT:
                flush(&connection.out)
                after_send(plane, connection)
        else:
            serve(plane, connection, plane.ready[i].events)
            served += 1
            end_step(plane, PACKETS)
    if throttled and not served:
        serve_throttled(plane, count)
    return 0


cdef int serve_throttled(Plane plane, int count) except -1 nogil:
    """Serve throttled connections, for a moment only: another connection may become ready meanwhile."""
    cdef int64_t end = plane.schedule.now + THROTTLED_TURNS * plane.schedule.turn_time
    cdef int i, place
    cdef Connection* connection
    for i in range(count):
        # Start elsewhere each time: epoll returns the same order again, and the last one may not be reached.
        place = (i + plane.schedule.turn) % count
        if plane.ready[place].data.u64 >= LISTENER:
            continue
        connection = plane.slots[plane.ready[place].data.u64]
        if not is_held_back(&plane.schedule, &connection.time, user_time_of(connection)):
            serve(plane, connection, plane.ready[place].events)
            if plane.schedule.now > end:
                break
    return 0


cdef int serve_other(Plane plane, uint64_t data) except -1 with gil:
    """Serve a listener or a watched descriptor."""
    plane.has_event = plane.has_event or data >= WATCHED
    end_step(plane, INTERPRETER)
    if data & LISTENER:
        accept_connections(plane, <int>(data & 0xFFFFFFFF))
        end_step(plane, ACCEPTING)
    # A callback may have stopped the watch of another descriptor that was ready too.
    elif (callback := plane.watched.get(<int>(data & 0xFFFFFFFF))) is not None:
        callback()
        if plane.is_measured:
            plane.stalls.note("callback " + getattr(callback, "__qualname__", type(callback).__name__))
    return 0


# -- one connection

cdef int serve(Plane plane, Connection* connection, uint32_t events) except -1 nogil:
    """Serve one connection that is ready."""
    if connection.is_ending:
        return 0
    if events & EPOLLOUT:
        flush(&connection.out)
        after_send(plane, connection)
    if connection.reading.is_held:
        if events & (EPOLLHUP | EPOLLERR):
            # epoll always reports these events, so the loop would never sleep.
            connection.reading.is_unwatched = epoll_ctl(plane.epoll, EPOLL_CTL_DEL, connection.out.fd, NULL) == 0
        return 0
    # A publisher that waits is read only after a hangup: then little is left, and the end must be seen.
    if connection.reading.blockers and not events & (EPOLLHUP | EPOLLERR):
        return 0
    if connection.reading.backlog is not NULL or (
            connection.reading.is_open and events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)):
        if connection.reading.backlog is NULL:
            if connection.reading.has_descriptors:
                disconnect_misbehaving(plane, connection, END_DESCRIPTORS)
                return 0
            if waits_for_user(plane, connection, events):
                return 0
        connection.reading.is_served = True
        serve_batch(plane, connection, events)
        connection.reading.is_served = False
        if connection.reading.backlog is NULL:
            if connection.reading.has_fault:
                disconnect_misbehaving(plane, connection, END_FRAME)
            elif connection.reading.is_at_end:
                finish(plane, connection, END_HANGUP)
    elif not connection.reading.is_open and events & (EPOLLHUP | EPOLLERR):
        finish(plane, connection, END_HANGUP)
    return 0


cdef int serve_batch(Plane plane, Connection* connection, uint32_t events) except -1 nogil:
    """Receive and handle one batch of a connection."""
    cdef size_t count, i = 0
    cdef uint64_t visited = plane.router.visited, received = plane.counted.received_bytes
    cdef int64_t started
    cdef Cost cost
    plane.routing.control_time = 0
    plane.routing.time = 0
    plane.routing.is_cut_off = False
    plane.routing.was_blocked = connection.reading.blockers != 0
    if plane.vouching.is_used:
        forget_origins(&plane.vouching)
    if plane.direct.is_used:
        forget_recipients(&plane.direct)
    count = receive(plane, connection, events)
    if count and not connection.is_ending:
        i = route(plane, connection, 0, count)
        end_step(plane, PACKETS)
        if i < count and not plane.routing.is_cut_off:
            i = handle_control(plane, connection, i, count)
    if plane.routing.refused[0] or plane.routing.refused[1] or plane.routing.refused[2] or plane.routing.refused[3]:
        started = now_ns()
        report_refusals(plane, connection)
        plane.routing.control_time += now_ns() - started
        end_step(plane, RECORDING_REFUSALS)
    if i < count and not connection.is_ending:
        keep_unhandled(plane, connection, i)
        count = i
    cost.count = count
    cost.patterns = (plane.router.visited - visited) * NODE_NS
    cost.own = (plane.counted.received_bytes - received) // BYTES_PER_NS + plane.routing.control_time
    cost.routing = plane.routing.time
    cost.is_cut_off = plane.routing.is_cut_off
    assess(&plane.schedule, &connection.time, user_time_of(connection), &cost, connection.party.sight >= SIGHT_ALL, now_ns())
    trim_backlog(plane, connection)
    return 0


cdef ssize_t handle_control(Plane plane, Connection* connection, size_t i, size_t count) except -1 nogil:
    """Pass the *i*-th packet of a batch to the sink, and go on with the next ones until control packets have taken turn_time: 63 other
    packets may follow an expensive one. Return the number of the first packet that is not handled."""
    cdef int64_t started = now_ns(), ended
    while i < count:
        if (connection.receipt.disclosure != Disclosure.ASKED and plane.clients.answer(
                connection, <const char*>plane.batch.parts[i].iov_base, plane.batch.parts[i].iov_len, started)):
            if plane.is_measured:
                note_answered(plane, i)
            i += 1
        else:
            i = ask_sink(plane, connection, i)
        ended = now_ns()
        plane.routing.control_time += ended - started
        started = ended
        if connection.is_ending or plane.routing.control_time > plane.schedule.turn_time:
            break
        if i < count:
            i = route(plane, connection, i, count)
            end_step(plane, PACKETS)
            started = now_ns()
        if plane.routing.is_cut_off:
            break
    return i


cdef int note_answered(Plane plane, size_t i) except -1 with gil:
    """Note the time that the answer to the *i*-th packet of a batch took."""
    plane.stalls.note_control(copy_packet(plane, i))
    return 0


cdef ssize_t ask_sink(Plane plane, Connection* connection, size_t i) except -1 with gil:
    """Pass the *i*-th packet of a batch to the sink, and return the number of the next one to handle."""
    cdef bytes packet = copy_packet(plane, i)
    end_step(plane, INTERPRETER)
    if connection.receipt.disclosure == Disclosure.ASKED:
        decide_disclosure(plane, connection, packet)
    else:
        plane.clients.handle(connection, packet)
        i += 1
    if plane.is_measured:
        plane.stalls.note_control(packet)
    return i


cdef int decide_disclosure(Plane plane, Connection* connection, bytes packet) except -1:
    """Ask the sink whether the sender of a MSG to a secret key may know the number in its receipt."""
    connection.receipt.disclosure = Disclosure.WITHHELD
    while packet.startswith(b"CMSG "):  # a direct message, or the publisher vouches for it
        packet = packet.partition(b"\0")[2]
    if plane.sink.may_know_recipients(connection.id, packet[4:].partition(b"\0")[0]):
        connection.receipt.disclosure = Disclosure.DISCLOSED
    return 0


# -- reports to the sink

cdef int report_refusals(Plane plane, Connection* sender) except -1 with gil:
    """Report the packets of the batch that were not routed, once for each reason."""
    cdef int refusal
    cdef uint64_t count
    cdef bytes packet
    for refusal in range(MESSAGE_REFUSALS):
        count = plane.routing.refused[refusal]
        if count:
            plane.routing.refused[refusal] = 0
            packet = copy_packet(plane, plane.routing.refused_first[refusal])
            plane.sink.refused(sender.id, Refusal(refusal), packet[4:].partition(b"\0")[0], count)
    return 0


cdef int report_losses(Plane plane) except -1 with gil:
    """Report the connections that were sent a loss notice."""
    cdef uint64_t count
    cdef Connection* connection
    while plane.informed.size():
        connection = plane.slots[plane.informed.back()]
        plane.informed.pop_back()
        if connection is NULL:
            continue        # it was sent one between turns, and has ended
        count = connection.out.noticed_losses
        connection.out.noticed_losses = 0
        if count:
            plane.sink.lost(connection.id, count)
    return 0
