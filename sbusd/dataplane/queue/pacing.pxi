"""For how long the recipients of one user have blocked a paced publisher of another. Spec: sbus-protocol(7) §7."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector


cdef inline bint would_block(Outbox* box, uint32_t payer, uint64_t packets, size_t length) noexcept nogil:
    """Return whether a paced publisher with so many more packets must wait for a client."""
    cdef uint32_t owner = NO_USER if box.account is NULL else box.account.uid
    if is_pressed(&box.room, owner, payer, packets, length):
        return True
    return box.account is not NULL and is_pressed(&box.account.room, owner, payer, packets, length)


cdef inline int64_t spent_until(Hold* hold, int64_t now) noexcept nogil:
    """Return for how long the publisher has waited in the second before *now*, or slightly more."""
    cdef int64_t slot = now // SLOT_NS, total = 0, i
    for i in range(max(hold.slot + 1, slot - SLOTS + 1), slot + 1):
        hold.spent[i % SLOTS] = 0
    hold.slot = slot
    for i in range(SLOTS):
        total += hold.spent[i]
    return total + (now - hold.since if hold.count else 0)


cdef inline Hold* hold_at(vector[Hold]* holds, size_t i) noexcept nogil:
    """Return the *i*-th hold."""
    return &holds[0][i]


cdef inline Hold* hold_of(vector[Hold]* holds, uint32_t uid) noexcept nogil:
    """Return a user's hold of a publisher, or NULL if there is none."""
    cdef size_t i
    for i in range(holds.size()):
        if hold_at(holds, i).uid == uid:
            return hold_at(holds, i)
    return NULL


cdef inline Hold* add_hold(vector[Hold]* holds, uint32_t uid, int64_t now) noexcept nogil:
    """Return a user's hold of a publisher. A new one takes the place of one that has been over for a second."""
    cdef Hold* found = hold_of(holds, uid)
    cdef Hold fresh
    cdef size_t i
    if found is not NULL:
        return found
    fresh.uid = uid
    fresh.count = 0
    fresh.since = fresh.until = 0
    fresh.slot = now // SLOT_NS
    for i in range(SLOTS):
        fresh.spent[i] = 0
    for i in range(holds.size()):
        if hold_at(holds, i).count == 0 and spent_until(hold_at(holds, i), now) == 0:
            holds[0][i] = fresh
            return hold_at(holds, i)
    holds.push_back(fresh)
    return &holds.back()


cdef inline void begin_hold(Hold* hold, int64_t limit, int64_t now) noexcept nogil:
    """Add a recipient for which the publisher waits, at most *limit* nanoseconds of each second; a whole second is no limit."""
    if hold.count == 0:
        hold.until = now + (limit - spent_until(hold, now) if limit < SECOND_NS else <int64_t>NEVER_NS)
        hold.since = now
    hold.count += 1


cdef inline void end_hold(Hold* hold, int64_t now) noexcept nogil:
    """Remove a recipient, and with the last one charge the time."""
    if hold.count == 1:
        spent_until(hold, now)
        hold.spent[hold.slot % SLOTS] += now - hold.since
    hold.count -= 1
