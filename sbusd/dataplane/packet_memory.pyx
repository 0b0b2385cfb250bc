# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""Packets in queues, and their memory: the charge for a packet is the memory that it takes. Source: malloc(3), the chunks of glibc.

A queue can hold a million packets. To free them takes longer than a turn may, so an abandoned queue is freed in parts, and its user is
charged until that is done.
"""

from libc.stdint cimport SIZE_MAX, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sbusd.dataplane.libc cimport htole32
from sbusd.dataplane.outbox cimport BATCH_PARTS, IN_BATCH, is_unused


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
        release_some(&short, totals, SIZE_MAX)
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


cdef bint release_some(Remains* remains, Totals* totals, size_t most) noexcept nogil:
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
    if not release_some(remains, totals, most):
        return NULL
    totals.remains = remains.next
    del remains.entries
    del remains.keys
    free(remains)
    if account is NULL or not is_unused(account):
        return NULL
    return account
