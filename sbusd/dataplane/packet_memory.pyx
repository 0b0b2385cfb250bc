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
from sbusd.dataplane.outbox cimport IN_BATCH, Remains


cdef char* data_of(Packet* packet) noexcept nogil:
    """Return where a packet's bytes are."""
    return <char*>packet + sizeof(Packet)


cdef Packet* new_packet(const char* data, size_t length, Totals* totals) noexcept nogil:
    """Return a copy of *data* without references, or NULL if memory is short."""
    cdef Packet* packet = <Packet*>malloc(sizeof(Packet) + length)
    if packet is not NULL:
        packet.references = 0
        packet.wire_length = htole32(length)
        packet.totals = totals
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


cdef void release_entry(Entry entry, Totals* totals) noexcept nogil:
    """Release the packets of an entry that has left its queue."""
    totals.held_bytes -= ENTRY_BYTES
    release(entry.packet)
    if entry.head is not NULL:
        release(entry.head)


cdef void leave(Entries* entries, Keys* keys, Account* account, Totals* totals) noexcept nogil:
    """Keep the entries and keys of an abandoned queue until they are released; if there is no memory even for that, release them at once.
    *account*, if not NULL, is charged until then."""
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
        remains.next = totals.remains
        totals.remains = remains
    else:
        short.entries, short.keys = entries, keys
        short.account = account
        release_some(&short, totals, SIZE_MAX)
        del short.entries
        del short.keys


cdef bint release_some(Remains* remains, Totals* totals, size_t most) noexcept nogil:
    """Release up to *most* keys and entries of an abandoned queue; return whether nothing is left."""
    cdef Entry entry
    # The keys go first, because they refer to the packets.
    while most and remains.keys is not NULL and not remains.keys.empty():
        most -= 1
        remains.keys.erase(remains.keys.begin())
        totals.held_bytes -= KNOWN_KEY_BYTES
        if remains.account is not NULL:
            remains.account.leaving_bytes -= KNOWN_KEY_BYTES
    while most and remains.entries is not NULL and not remains.entries.empty():
        most -= 1
        entry = remains.entries.back()
        remains.entries.pop_back()
        if remains.account is not NULL:
            remains.account.leaving_bytes -= size_of(entry)
        release_entry(entry, totals)
    return ((remains.keys is NULL or remains.keys.empty()) and (remains.entries is NULL or remains.entries.empty()))


cdef Account* release_remains(Totals* totals, size_t most) noexcept nogil:
    """Release up to *most* keys and entries of an abandoned queue. Return its user if that has neither connections nor queues any more."""
    cdef Remains* remains = totals.remains
    cdef Account* account = remains.account
    if not release_some(remains, totals, most):
        return NULL
    totals.remains = remains.next
    del remains.entries
    del remains.keys
    free(remains)
    if account is NULL or account.connections or account.leaving_bytes:
        return NULL
    return account
