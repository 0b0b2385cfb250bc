"""How publishers wait for recipients: rule 5 of `sbusd.dataplane.contract`. Whether they have to wait is decided in `overflow`.

A publisher waits for a recipient in mode ``block``, or because it asked for pacing. It is not read until every recipient for which it
waits has drained, has ended, or has blocked for too long. Of another user's recipients it waits for a part of each second (`pacing`).
"""

from libc.stdint cimport int64_t

from sbusd.dataplane.libc cimport EPOLLOUT


# -- beginning and ending waits

cdef bint may_pace(Plane plane, Connection* publisher, Connection* recipient) noexcept nogil:
    """Return whether a paced publisher may wait for a recipient."""
    cdef uint32_t uid = uid_of(recipient)
    cdef Hold* hold
    if recipient.blocking.has_fallen_back or uid == NO_USER or uid_of(publisher) == NO_USER:
        return False
    if uid == uid_of(publisher):
        return True
    if plane.routing.is_secret and publisher.party.sight < SIGHT_ALL:
        return False    # the wait would reveal that the key has a subscriber
    if plane.bounds.pace_limit >= SECOND_NS:
        return True
    hold = hold_of(&publisher.publishing.holds, owner_of(&recipient.out))
    return plane.bounds.pace_limit > 0 if hold is NULL else spent_until(hold, now_ns()) < plane.bounds.pace_limit


cdef Connection* publisher_of(Plane plane, Blocked entry) noexcept nogil:
    """Return the publisher that waits, or NULL if it has ended."""
    cdef Connection* publisher = plane.slots[entry.slot]
    # A destroyed connection keeps its slot until its patterns are erased, and has no user.
    return publisher if publisher is not NULL and publisher.id == entry.id and not publisher.is_destroyed else NULL


cdef Hold* hold_limiting(Plane plane, Blocked entry) noexcept nogil:
    """Return what limits a wait that another user causes; NULL: nothing does, or the publisher has ended."""
    cdef Connection* publisher
    if entry.limited_by == NO_USER:
        return NULL
    publisher = publisher_of(plane, entry)
    if publisher is NULL:
        return NULL
    return hold_of(&publisher.publishing.holds, entry.limited_by)


cdef void block(Plane plane, Connection* recipient, Connection* publisher, bint is_paced) noexcept nogil:
    """Let a publisher wait until a recipient has drained."""
    cdef Blocked entry
    cdef size_t i
    for i in range(recipient.blocking.publishers.size()):
        if recipient.blocking.publishers[i].slot == publisher.slot and recipient.blocking.publishers[i].id == publisher.id:
            return
    entry.slot = publisher.slot
    entry.id = publisher.id
    entry.is_paced = is_paced
    begin_wait(plane, recipient, publisher, entry)
    if recipient.blocking.since < 0:
        recipient.blocking.since = now_ms()
        plane.blocking.push_back(recipient.slot)
        if recipient.blocking.progress_at < 0 or recipient.blocking.progress_mark != recipient.out.delivered_packets:
            note_progress(recipient)
    plane.counted.blocks += 1
    publisher.reading.blockers += 1
    if not update_interest(plane, publisher):
        finish(plane, publisher, END_BROKEN)
    update_pending(plane, publisher)


cdef void begin_wait(Plane plane, Connection* recipient, Connection* publisher, Blocked entry) noexcept nogil:
    """Account for the beginning of a wait."""
    cdef int64_t now = now_ns()
    cdef Account* account = recipient.out.account
    cdef Hold* hold
    entry.since = now
    # It is stored in the entry because a connection loses its user before its waits are over.
    entry.limited_by = owner_of(&recipient.out) if entry.is_paced and uid_of(recipient) != uid_of(publisher) else NO_USER
    recipient.blocking.publishers.push_back(entry)
    if entry.limited_by != NO_USER:
        hold = add_hold(&publisher.publishing.holds, entry.limited_by, now)
        begin_hold(hold, plane.bounds.pace_limit, now)
        plane.release_at = min(plane.release_at, hold.until)
    recipient.blocking.blocked_ns -= now
    if account is not NULL:
        account.blocked_others += 1
        account.blocked_others_ns -= now
    publisher.publishing.recipients += 1
    account = publisher.out.account
    if publisher.publishing.recipients == 1:
        publisher.publishing.blocked_ns -= now
        if account is not NULL:
            account.blocked += 1
            account.blocked_ns -= now


cdef void end_wait(Connection* recipient, Connection* publisher) noexcept nogil:
    """Account for the end of a wait; the publisher is NULL if it has ended."""
    cdef int64_t now = now_ns()
    cdef Account* account = recipient.out.account
    recipient.blocking.blocked_ns += now
    if account is not NULL:
        account.blocked_others -= 1
        account.blocked_others_ns += now
    if publisher is not NULL and publisher.publishing.recipients:
        publisher.publishing.recipients -= 1
        if publisher.publishing.recipients == 0:
            end_waiting(publisher)


cdef void end_waiting(Connection* publisher) noexcept nogil:
    """Account for the end of all waits of a publisher."""
    cdef int64_t now = now_ns()
    cdef Account* account = publisher.out.account
    publisher.publishing.recipients = 0
    publisher.publishing.blocked_ns += now
    if account is not NULL:
        account.blocked -= 1
        account.blocked_ns += now


cdef void unblock_at(Plane plane, Connection* recipient, size_t i) noexcept nogil:
    """End the *i*-th of the waits for a recipient."""
    cdef Blocked entry = recipient.blocking.publishers[i]
    cdef Connection* publisher = publisher_of(plane, entry)
    cdef Hold* hold = hold_limiting(plane, entry)
    recipient.blocking.publishers.erase(recipient.blocking.publishers.begin() + i)
    end_wait(recipient, publisher)
    if hold is not NULL:
        end_hold(hold, now_ns())
    if publisher is not NULL:
        remove_blocker(plane, publisher)
    if recipient.blocking.publishers.empty():
        stop_blocking(plane, recipient)


cdef void unblock_all(Plane plane, Connection* recipient) noexcept nogil:
    """End all waits for a recipient."""
    while recipient.blocking.publishers.size():
        unblock_at(plane, recipient, 0)


cdef void stop_blocking(Plane plane, Connection* recipient) noexcept nogil:
    """Note that no publisher waits for a recipient."""
    cdef size_t i
    recipient.blocking.since = -1
    for i in range(plane.blocking.size()):
        if plane.blocking[i] == recipient.slot:
            plane.blocking[i] = plane.blocking.back()
            plane.blocking.pop_back()
            break


# -- progress of recipients

cdef void note_progress(Connection* recipient) noexcept nogil:
    """Note that a recipient's socket has just taken something."""
    recipient.blocking.progress_mark = recipient.out.delivered_packets
    recipient.blocking.progress_at = now_ms()


cdef bint has_drained(Plane plane, Outbox* box, uint32_t payer, bint is_paced) noexcept nogil:
    """Return whether a publisher need not wait for a queue any more."""
    if waiting_count(box) == 0:
        return True
    if box.soft == MODE_BLOCK:
        return False
    return not would_block(box, payer, 0, 0) if is_paced else is_below(box, plane.bounds.low_water)


cdef void unblock_drained(Plane plane, Connection* recipient) noexcept nogil:
    """End the waits for a recipient whose queue has drained enough."""
    cdef size_t i = 0
    cdef Connection* publisher
    while i < recipient.blocking.publishers.size():
        publisher = publisher_of(plane, recipient.blocking.publishers[i])
        if publisher is NULL or has_drained(plane, &recipient.out, owner_of(&publisher.out), recipient.blocking.publishers[i].is_paced):
            unblock_at(plane, recipient, i)
        else:
            i += 1


cdef void update_blocking(Plane plane, Connection* recipient) noexcept nogil:
    """Look at the progress of a recipient that blocks publishers, or has blocked them for too long."""
    cdef bint has_moved = recipient.out.delivered_packets != recipient.blocking.progress_mark
    if has_moved and not recipient.blocking.has_fallen_back:
        note_progress(recipient)
    if has_moved and is_below(&recipient.out, 0 if recipient.out.soft == MODE_BLOCK else plane.bounds.low_water):
        recipient.blocking.has_fallen_back = False
    if recipient.blocking.since >= 0:
        unblock_drained(plane, recipient)


cdef void after_send(Plane plane, Connection* connection) noexcept nogil:
    """Do what follows when packets were offered to a connection: watch for room while its queue is not empty, and end it if it failed."""
    if connection.out.noticed_losses:
        plane.informed.push_back(connection.slot)
    if connection.out.is_failed:
        connection.out.is_failed = False
        disconnect_misbehaving(plane, connection, END_QUEUE_FULL)
    if connection.blocking.since >= 0 or connection.blocking.has_fallen_back:
        update_blocking(plane, connection)
    if (waiting_count(&connection.out) != 0) != ((connection.interest & EPOLLOUT) != 0) and not update_interest(plane, connection):
        finish(plane, connection, END_BROKEN)
    if connection.out.is_broken and not connection.reading.is_open:
        # Its packets that are read and not handled yet must not be lost.
        connection.reading.is_at_end = True
        if connection.reading.backlog is NULL and not connection.reading.is_served:
            finish(plane, connection, END_HANGUP)


cdef void disconnect_misbehaving(Plane plane, Connection* connection, int end) noexcept nogil:
    """End a connection, and send it the reason if possible. *end* is END_QUEUE_FULL, END_DESCRIPTORS or END_FRAME."""
    cdef int text = <int>BATCH_PACKETS
    text += REFUSED_QUEUE_FULL if end == END_QUEUE_FULL else REFUSED_FRAME if end == END_FRAME else REFUSED_DESCRIPTORS
    if connection.is_ending:
        return
    finish(plane, connection, end)
    send_last_words(&connection.out, <const char*>plane.batch.parts[text].iov_base, plane.batch.parts[text].iov_len)


# -- waits that last too long

cdef int64_t blocking_until(Plane plane, Connection* recipient) noexcept nogil:
    """Return until when a recipient may block publishers, in milliseconds of the monotonic clock."""
    return min(recipient.blocking.since + plane.bounds.block_timeout, recipient.blocking.progress_at + plane.bounds.progress_timeout)


cdef int limit_timeout(Plane plane, int timeout_ms) noexcept nogil:
    """Return how long the loop may sleep, so that no wait lasts too long."""
    cdef size_t i
    cdef int64_t left, now
    if plane.blocking.empty():
        return timeout_ms
    now = now_ms()
    for i in range(plane.blocking.size()):
        left = max(<int64_t>0, blocking_until(plane, plane.slots[plane.blocking[i]]) - now + 1)
        if timeout_ms < 0 or left < timeout_ms:
            timeout_ms = <int>left
    if plane.release_at < NEVER_NS:
        left = max(<int64_t>0, (plane.release_at - now_ns()) // 1000000 + 1)
        timeout_ms = <int>min(left, <int64_t>timeout_ms)
    return timeout_ms


cdef void end_expired_waits(Plane plane) noexcept nogil:
    """End the waits that have lasted for too long."""
    cdef size_t i = 0
    cdef Connection* recipient
    cdef int64_t now
    cdef bint is_release_due
    if plane.blocking.empty():
        return
    now = now_ms()
    # A user can have as many waits as publishers times recipients, so all are looked at only when one is over.
    is_release_due = now_ns() >= plane.release_at
    if is_release_due:
        plane.release_at = NEVER_NS
    while i < plane.blocking.size():
        recipient = plane.slots[plane.blocking[i]]
        if now > recipient.blocking.progress_at + plane.bounds.progress_timeout:
            # epoll reports room only when most of the socket is free. A slow reader makes progress earlier.
            flush(&recipient.out)
            after_send(plane, recipient)
        if recipient.blocking.since >= 0 and now > blocking_until(plane, recipient):
            fall_back(plane, recipient)
        if is_release_due:
            unblock_held(plane, recipient)
        if i < plane.blocking.size() and plane.slots[plane.blocking[i]] is recipient:
            i += 1


cdef void fall_back(Plane plane, Connection* recipient) noexcept nogil:
    """End all waits for a recipient, and allow none until its queue has drained."""
    plane.counted.fallbacks += 1
    recipient.blocking.has_fallen_back = True
    recipient.blocking.progress_mark = recipient.out.delivered_packets
    unblock_all(plane, recipient)


cdef void unblock_held(Plane plane, Connection* recipient) noexcept nogil:
    """End the waits that have used up the recipient's part of the second, and note when the next one does."""
    cdef size_t i = 0
    cdef Hold* hold
    cdef int64_t now = now_ns()
    while i < recipient.blocking.publishers.size():
        hold = hold_limiting(plane, recipient.blocking.publishers[i])
        if hold is not NULL and hold.until <= now:
            unblock_at(plane, recipient, i)
            continue
        if hold is not NULL:
            plane.release_at = min(plane.release_at, hold.until)
        i += 1
