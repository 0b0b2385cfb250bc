"""Room that belongs to one user, and that others may fill: a queue, or all queues of a user.

A publisher of another user, a *guest*, may hold at most as much as it leaves free: the first takes at most half, the next half of the
rest, so that none can keep out the next one. The owner's own packets have no such limit.
"""

from libc.stdint cimport int64_t, uint32_t


cdef Share* share_of(Pool* pool, uint32_t uid) noexcept nogil:
    """Return a user's share of a pool, or NULL if it has none. Few users publish to one client at a time."""
    cdef size_t i
    for i in range(pool.shares.size()):
        if pool.shares[i].uid == uid:
            return &pool.shares[i]
    return NULL


cdef bint is_guest(Pool* pool, uint32_t owner, uint32_t payer) noexcept nogil:
    """Return whether a payer is another user than the owner of the room; unknown users are not."""
    return payer != owner and payer != NO_USER and owner != NO_USER


cdef bint may_share(Pool* pool, uint32_t owner, uint32_t payer, size_t length) noexcept nogil:
    """Return whether one more packet leaves at least as much free as its publisher then holds. Only guests have this limit."""
    cdef Share* share
    if not is_guest(pool, owner, payer):
        return True
    share = share_of(pool, payer)
    return (pool.packets + (share.packets if share is not NULL else 0) + 1 <= pool.packets_limit
            and pool.bytes + (share.bytes if share is not NULL else 0) + length <= pool.bytes_limit)


cdef bint is_pressed(Pool* pool, uint32_t owner, uint32_t payer, uint64_t packets, size_t length) noexcept nogil:
    """Return whether so many more packets leave less than a quarter of what their publisher may take. A paced publisher then waits."""
    cdef Share* share = NULL
    cdef uint64_t all_packets = pool.packets + packets, all_bytes = pool.bytes + length
    if is_guest(pool, owner, payer):
        share = share_of(pool, payer)
        all_packets += packets + (share.packets if share is not NULL else 0)
        all_bytes += length + (share.bytes if share is not NULL else 0)
    return all_packets > pool.packets_limit - pool.packets_limit // 4 or all_bytes > pool.bytes_limit - pool.bytes_limit // 4


cdef bint has_space(Pool* pool, size_t length) noexcept nogil:
    """Return whether one more packet fits into a pool."""
    return pool.packets < pool.packets_limit and pool.bytes + length <= pool.bytes_limit


cdef void charge(Pool* pool, uint32_t owner, uint32_t payer, size_t length) noexcept nogil:
    """Charge for a packet that enters the room."""
    cdef Share* share
    cdef Share fresh
    pool.packets += 1
    pool.bytes += length
    if is_guest(pool, owner, payer):
        share = share_of(pool, payer)
        if share is NULL:
            fresh.uid = payer
            fresh.packets = 1
            fresh.bytes = length
            fresh.keys = 0
            pool.shares.push_back(fresh)
        else:
            share.packets += 1
            share.bytes += length


cdef void discharge(Pool* pool, uint32_t owner, uint32_t payer, size_t length) noexcept nogil:
    """End the charge for a packet that leaves the room."""
    cdef Share* share
    pool.packets -= 1
    pool.bytes -= length
    if is_guest(pool, owner, payer):
        share = share_of(pool, payer)
        share.packets -= 1
        share.bytes -= length
        if share.packets == 0:
            share[0] = pool.shares.back()
            pool.shares.pop_back()


cdef void charge_known(Pool* pool, uint32_t owner, uint32_t payer, int64_t count, size_t size) noexcept nogil:
    """Charge for *count* keys of *size* bytes of a payer's packets; a negative *count* ends charges."""
    cdef Share* share
    pool.bytes += count * <int64_t>size
    if is_guest(pool, owner, payer):
        share = share_of(pool, payer)
        share.keys += count
        share.bytes += count * <int64_t>size


cdef void vacate(Pool* pool, Pool* queue) noexcept nogil:
    """End the charges in *pool* for everything in *queue*."""
    cdef Share* share
    cdef size_t i
    pool.packets -= queue.packets
    pool.bytes -= queue.bytes
    for i in range(queue.shares.size()):
        share = share_of(pool, queue.shares[i].uid)
        share.packets -= queue.shares[i].packets
        share.bytes -= queue.shares[i].bytes
        if share.packets == 0:
            share[0] = pool.shares.back()
            pool.shares.pop_back()
