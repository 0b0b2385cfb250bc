"""Whether a client's queue takes a packet, or the packet is discarded, or its publisher waits; and charges for the packets in the queue.

Spec: sbus-protocol(7) §7.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdio cimport snprintf

from sbusd.dataplane.libc cimport SIOCOUTQ, SO_SNDBUF, SOL_SOCKET, getsockopt, ioctl, socklen_t

cdef enum:
    NOTICE_BYTES = 48           # the longest notice


cdef uint32_t owner_of(Outbox* box) noexcept nogil:
    """Return the uid that is charged for an outbox."""
    return NO_USER if box.account is NULL else box.account.uid


cdef inline size_t waiting_count(Outbox* box) noexcept nogil:
    """Return how many packets are in the queue."""
    return box.room.packets


cdef inline bint is_below(Outbox* box, uint32_t percent) noexcept nogil:
    """Return whether the queue is filled to at most *percent* of its limits."""
    return box.room.packets * 100 <= box.room.packets_limit * percent and box.room.bytes * 100 <= box.room.bytes_limit * percent


cdef inline void lose(Outbox* box, uint64_t count) noexcept nogil:
    """Count discarded packets."""
    box.lost_packets += count
    box.unreported_losses += count
    box.totals.lost_packets += count
    if box.account is not NULL:
        box.account.lost_packets += count


cdef inline void discard_unseen(Outbox* box, uint64_t count) noexcept nogil:
    """Discard packets for a client whose outbox is closed to them."""
    box.totals.deliveries += count
    lose(box, count)


cdef Packet* loss_notice(Outbox* box, uint64_t count, uint64_t noticed) noexcept nogil:
    """Return the notice of *count* lost packets, or NULL if memory is short. *noticed* others were in the notice that this one replaces."""
    cdef char text[NOTICE_BYTES]
    cdef size_t length = snprintf(text, sizeof(text), "CMSG !/bus/lost%c%llu", 0, <unsigned long long>(noticed + count))
    cdef Packet* notice = new_packet(text, length, box.totals)
    if notice is not NULL:
        box.noticed_losses += count
        box.unreported_losses -= count
        box.totals.deliveries += 1
    return notice


cdef bint has_room(Outbox* box, uint32_t payer, size_t cost) noexcept nogil:
    """Return whether the user and the bus have room for one more packet; the queue itself may not."""
    cdef Account* account = box.account
    if account is NULL:
        return True
    cost += account.leaving_bytes
    if not has_space(&account.room, cost) or not may_share(&account.room, account.uid, payer, cost):
        return False
    # A user may hold at most as much of the bus's memory as it leaves free.
    return box.totals.held_bytes + account.room.bytes + cost <= box.totals.held_limit


cdef bint would_take(Outbox* box, size_t cost) noexcept nogil:
    """Return whether a stream socket would take one more packet, had a turn sent it all that is in the queue. If not, that is so until the
    queue is empty."""
    cdef uint64_t unread = box.room.bytes + cost
    cdef int filled = 0, size = 0
    cdef socklen_t length = sizeof(size)
    if box.rest.packet is not NULL:
        unread -= LENGTH_BYTES + box.rest_length - box.rest_left    # these are in the socket
    box.is_deferred = (ioctl(box.fd, SIOCOUTQ, &filled) == 0 and getsockopt(box.fd, SOL_SOCKET, SO_SNDBUF, &size, &length) == 0
                       and unread + filled <= <uint64_t>size)
    return box.is_deferred


cdef bint may_wait(Outbox* box, uint32_t payer, size_t cost, bint may_block, bint is_paced) noexcept nogil:
    """Decide by the modes whether a packet that the socket did not take may be queued. If not, it is lost, or the client has failed."""
    cdef bint fits, has_share
    cdef int soft = box.soft
    if soft != MODE_QUEUE and box.is_deferred and would_take(box, cost):
        soft = MODE_QUEUE
    if soft == MODE_DISCARD or soft == MODE_ERROR:
        box.is_failed = box.is_failed or soft == MODE_ERROR
        return False
    if not has_room(box, payer, cost):
        # The limit of the user or the bus: no mode of this client can make room there, and the client has not failed.
        return False
    fits = has_space(&box.room, cost)
    has_share = may_share(&box.room, owner_of(box), payer, cost)
    if soft == MODE_BLOCK or not fits or not has_share:
        if may_block and (soft == MODE_BLOCK or box.hard == MODE_BLOCK):
            box.has_blocked = BLOCKED_BY_MODE
        elif is_paced and has_share and (fits or payer == owner_of(box)):
            box.has_blocked = PACED
        else:
            box.is_failed = box.is_failed or (soft != MODE_BLOCK and box.hard == MODE_ERROR and not fits)
            return False
    elif is_paced and would_block(box, payer, 1, cost):
        box.has_blocked = PACED
    return True


cdef void charge_entry(Outbox* box, Entry entry) noexcept nogil:
    """Charge for a packet that enters the queue."""
    charge(&box.room, owner_of(box), entry.payer, size_of(entry))
    if box.account is not NULL:
        charge(&box.account.room, box.account.uid, entry.payer, size_of(entry))
    box.totals.queued_packets += 1
    box.totals.queued_bytes += size_of(entry)


cdef void discharge_entry(Outbox* box, Entry entry) noexcept nogil:
    """End the charge for a packet that leaves the queue."""
    discharge(&box.room, owner_of(box), entry.payer, size_of(entry))
    if box.account is not NULL:
        discharge(&box.account.room, box.account.uid, entry.payer, size_of(entry))
    box.totals.queued_packets -= 1
    box.totals.queued_bytes -= size_of(entry)


cdef Entry new_entry(Outbox* box, Packet* packet, Packet* head, uint32_t payer) noexcept nogil:
    """Return an entry with references to its packets, and charge for it."""
    cdef Entry entry
    entry.packet = packet
    entry.head = head
    entry.payer = payer
    refer(packet)
    if head is not NULL:
        refer(head)
    box.totals.held_bytes += ENTRY_BYTES
    charge_entry(box, entry)
    return entry


cdef void drop_entry(Outbox* box, Entry entry) noexcept nogil:
    """Release an entry that has left the queue."""
    discharge_entry(box, entry)
    release_entry(entry, box.totals)


cdef void charge_key(Outbox* box, uint32_t payer, int64_t count) noexcept nogil:
    """Charge for *count* keys of a payer's messages; a negative *count* ends charges."""
    cdef uint32_t owner = owner_of(box)
    charge_known(&box.room, owner, payer, count, KNOWN_KEY_BYTES)
    if box.account is not NULL:
        charge_known(&box.account.room, owner, payer, count, KNOWN_KEY_BYTES)
    box.totals.queued_bytes += count * KNOWN_KEY_BYTES
    box.totals.held_bytes += count * KNOWN_KEY_BYTES
