# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""Packets that wait, and their memory: what is charged for one is what it takes. Source: malloc(3), the chunks of glibc.

A queue can hold a million packets. To free them takes longer than a turn may, so a queue that is given up is freed piece by piece, and
its user is charged until that is done.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sbusd.daemon.libc cimport htole32
from sbusd.daemon.outbox cimport Remains


cdef char* data_of(Packet* packet) noexcept nogil:
    """Return where a packet's bytes are."""
    return <char*>packet + sizeof(Packet)


cdef Packet* new_packet(const char* data, size_t length, Totals* totals) noexcept nogil:
    """Return a copy of *data* that nobody holds yet, or NULL if memory is short."""
    cdef Packet* packet = <Packet*>malloc(sizeof(Packet) + length)
    if packet is not NULL:
        packet.references = 0
        packet.wire_length = htole32(length)
        packet.totals = totals
        totals.held_bytes += block_bytes(length)
        memcpy(data_of(packet), data, length)
    return packet


cdef void release(Packet* packet) noexcept nogil:
    """Drop one reference."""
    packet.references -= 1
    if packet.references == 0:
        packet.totals.held_bytes -= block_bytes(bytes_in(packet))
        free(packet)


cdef void release_entry(Entry entry, Totals* totals) noexcept nogil:
    """Let go of what an entry holds that is in no queue any more."""
    totals.held_bytes -= ENTRY_BYTES
    release(entry.packet)
    if entry.head is not NULL:
        release(entry.head)


cdef bint leave_behind(Entries* entries, Account* account, Totals* totals) noexcept nogil:
    """Keep the entries of a queue that was given up until they are released; return whether there is memory for that."""
    cdef Remains* remains = <Remains*>malloc(sizeof(Remains))
    if remains is NULL:
        return False
    remains.entries = entries
    remains.account = account
    remains.next = totals.remains
    totals.remains = remains
    return True


cdef Account* release_remains(Totals* totals, size_t most) noexcept nogil:
    """Release up to *most* entries of a queue that was given up. Return its user if nothing of that one is left, connections neither."""
    cdef Remains* remains = totals.remains
    cdef Account* account = remains.account
    cdef Entry entry
    while most and not remains.entries.empty():
        most -= 1
        entry = remains.entries.back()
        remains.entries.pop_back()
        if account is not NULL:
            account.leaving_bytes -= size_of(entry)
        release_entry(entry, totals)
    if not remains.entries.empty():
        return NULL
    totals.remains = remains.next
    del remains.entries
    free(remains)
    if account is NULL or account.connections or account.leaving_bytes:
        return NULL
    return account
