"""Packets in queues, and their memory: the charge for a packet is the memory that it takes. Source: malloc(3), the chunks of glibc.

A queue can hold a million packets. To free them takes longer than a turn may, so an abandoned queue is freed in parts, and its user is
charged until that is done.
"""

from libc.stdint cimport SIZE_MAX, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sbusd.dataplane.libc cimport htole32, iovec, le32toh

cdef enum:
    ENTRY_BYTES = 26        # an entry, and its part of a block of entries and of the list of those blocks: contract.waiting_bytes
    KNOWN_KEY_BYTES = 64    # contract.KNOWN_KEY_BYTES: a node of the map, and a word of the allocator


cdef inline uint32_t bytes_in(Packet* packet) noexcept nogil:
    """Return the length of a packet."""
    return le32toh(packet.wire_length)


cdef inline bint is_unused(Account* account) noexcept nogil:
    """Return whether nothing is left of a user: connections, queues whose memory is not freed yet, groups whose patterns are not erased."""
    return account.connections == 0 and account.leaving_bytes == 0 and account.groups == 0


cdef inline uint64_t block_bytes(size_t length) noexcept nogil:
    """Return the memory that the allocator takes for a packet of *length* bytes: with a word of its own, in steps of 16."""
    return (sizeof(Packet) + length + sizeof(size_t) + 15) & ~<uint64_t>15


cdef inline uint64_t cost_of(size_t length, size_t head_length) noexcept nogil:
    """Return the charge for a packet in a queue, after a head of *head_length* bytes, 0 for none."""
    return ENTRY_BYTES + block_bytes(length) + (block_bytes(head_length) if head_length else 0)


cdef inline uint64_t size_of(Entry entry) noexcept nogil:
    """Return the charge for an entry."""
    return cost_of(bytes_in(entry.packet), 0 if entry.head is NULL else bytes_in(entry.head))


cdef inline bint make_copy(Packet** kept, iovec* part, Totals* totals) noexcept nogil:
    """Make the shared copy of a part of a batch, if there is none yet. Return False if memory is short."""
    if kept[0] is NULL:
        kept[0] = new_packet(<const char*>part.iov_base, part.iov_len, totals)
        if kept[0] is not NULL:
            kept[0].references = IN_BATCH
    return kept[0] is not NULL


cdef char* data_of(Packet* packet) noexcept nogil:
    """Return where a packet's bytes are."""
    return <char*>packet + sizeof(Packet)


cdef Packet* empty_packet(size_t length, Totals* totals) noexcept nogil:
    """Return a packet without references whose *length* bytes are not set, or NULL if memory is short."""
    cdef Packet* packet = <Packet*>malloc(sizeof(Packet) + length)
    if packet is not NULL:
        packet.references = 0
        packet.wire_length = htole32(length)
        packet.totals = totals
    return packet


cdef Packet* new_packet(const char* data, size_t length, Totals* totals) noexcept nogil:
    """Return a copy of *data* without references, or NULL if memory is short."""
    cdef Packet* packet = empty_packet(length, totals)
    if packet is not NULL:
        memcpy(data_of(packet), data, length)
    return packet


cdef void refer(Packet* packet) noexcept nogil:
    """Add one reference of a queue. Only packets in queues count as held memory: a copy that none needs any more must not cost others
    their messages until the batch ends."""
    if packet.references & ~<uint32_t>IN_BATCH == 0:
        packet.totals.held_bytes += block_bytes(bytes_in(packet))
    packet.references += 1


cdef void release(Packet* packet) noexcept nogil:
    """Drop one reference of a queue."""
    packet.references -= 1
    if packet.references & ~<uint32_t>IN_BATCH == 0:
        packet.totals.held_bytes -= block_bytes(bytes_in(packet))
    if packet.references == 0:
        free(packet)


cdef void leave_batch(Packet* packet) noexcept nogil:
    """Drop the reference of the batch."""
    packet.references &= ~<uint32_t>IN_BATCH
    if packet.references == 0:
        free(packet)


cdef void end_batch(Batch* batch) noexcept nogil:
    """Release the copies of packets of a batch."""
    cdef size_t i
    if not batch.has_copies:
        return
    batch.has_copies = False
    for i in range(<size_t>BATCH_PARTS):
        if batch.kept[i] is not NULL:
            leave_batch(batch.kept[i])
            batch.kept[i] = NULL


cdef void release_entry(Entry entry, Totals* totals) noexcept nogil:
    """Release the packets of an entry that has left its queue."""
    totals.held_bytes -= ENTRY_BYTES
    release(entry.packet)
    if entry.head is not NULL:
        release(entry.head)


cdef void leave(Entries* entries, Keys* keys, Account* account, uint32_t uid, Totals* totals) noexcept nogil:
    """Keep the entries and keys of an abandoned queue until they are released; if there is no memory even for that, release them at once.
    *account*, if not NULL, is charged until then. *uid* is the user of the connection."""
    cdef Remains* remains
    cdef Remains short
    if (entries is NULL or entries.empty()) and (keys is NULL or keys.empty()):
        # Nothing is charged, so the account would never be deleted because of it.
        del entries
        del keys
        return
    remains = <Remains*>malloc(sizeof(Remains))
    if remains is not NULL:
        remains.entries, remains.keys = entries, keys
        remains.account = account
        remains.uid = uid
        remains.next = totals.remains
        totals.remains = remains
    else:
        short.entries, short.keys = entries, keys
        short.account = account
        short.uid = uid
        release_part(&short, totals, SIZE_MAX)
        del short.entries
        del short.keys


cdef size_t keys_left(Remains* remains) noexcept nogil:
    """Return the number of keys of an abandoned queue. They refer to its packets, and are released before them."""
    return 0 if remains.keys is NULL else remains.keys.size()


cdef Entry* first_left(Remains* remains) noexcept nogil:
    """Return the first entry of an abandoned queue, or NULL if there is none or keys are left."""
    if keys_left(remains) or remains.entries is NULL or remains.entries.empty():
        return NULL
    return &remains.entries.front()


cdef void release_first(Remains* remains, Totals* totals) noexcept nogil:
    """Release the first entry of an abandoned queue, which has one."""
    cdef Entry entry = remains.entries.front()
    remains.entries.pop_front()
    if remains.account is not NULL:
        remains.account.leaving_bytes -= size_of(entry)
    release_entry(entry, totals)


cdef bint release_part(Remains* remains, Totals* totals, size_t most) noexcept nogil:
    """Release up to *most* keys and entries of an abandoned queue; return whether nothing is left."""
    # The keys go first, because they refer to the packets.
    while most and remains.keys is not NULL and not remains.keys.empty():
        most -= 1
        remains.keys.erase(remains.keys.begin())
        totals.held_bytes -= KNOWN_KEY_BYTES
        if remains.account is not NULL:
            remains.account.leaving_bytes -= KNOWN_KEY_BYTES
    while most and remains.entries is not NULL and not remains.entries.empty():
        most -= 1
        release_first(remains, totals)
    return ((remains.keys is NULL or remains.keys.empty()) and (remains.entries is NULL or remains.entries.empty()))


cdef Account* release_remains(Totals* totals, size_t most) noexcept nogil:
    """Release up to *most* keys and entries of an abandoned queue. Return its user if that has nothing left."""
    cdef Remains* remains = totals.remains
    cdef Account* account = remains.account
    if not release_part(remains, totals, most):
        return NULL
    totals.remains = remains.next
    del remains.entries
    del remains.keys
    free(remains)
    if account is NULL or not is_unused(account):
        return NULL
    return account
