# Packets in queues, their cost, and the end of abandoned queues. See packet_memory.pyx.

from libc.stdint cimport uint32_t, uint64_t

from sbusd.dataplane.libc cimport iovec
from sbusd.dataplane.outbox cimport IN_BATCH, Account, Batch, Entries, Entry, Keys, Packet, Remains, Totals, bytes_in

cdef enum:
    ENTRY_BYTES = 26        # an entry, and its part of a block of entries and of the list of those blocks: contract.waiting_bytes
    KNOWN_KEY_BYTES = 64    # contract.KNOWN_KEY_BYTES: a node of the map, and a word of the allocator


cdef inline uint64_t block_bytes(size_t length) noexcept nogil:
    """Return the memory that the allocator takes for a packet of *length* bytes: with a word of its own, in steps of 16."""
    return (sizeof(Packet) + length + sizeof(size_t) + 15) & ~<uint64_t>15


cdef inline uint64_t cost_of(size_t length, size_t head_length) noexcept nogil:
    """Return the charge for a packet in a queue, after a head of *head_length* bytes, 0 for none."""
    return ENTRY_BYTES + block_bytes(length) + (block_bytes(head_length) if head_length else 0)


cdef inline uint64_t size_of(Entry entry) noexcept nogil:
    """Return the charge for an entry."""
    return cost_of(bytes_in(entry.packet), 0 if entry.head is NULL else bytes_in(entry.head))


cdef char* data_of(Packet* packet) noexcept nogil
cdef Packet* empty_packet(size_t length, Totals* totals) noexcept nogil
cdef Packet* new_packet(const char* data, size_t length, Totals* totals) noexcept nogil


cdef inline bint make_copy(Packet** kept, iovec* part, Totals* totals) noexcept nogil:
    """Make the shared copy of a part of a batch, if there is none yet. Return False if memory is short."""
    if kept[0] is NULL:
        kept[0] = new_packet(<const char*>part.iov_base, part.iov_len, totals)
        if kept[0] is not NULL:
            kept[0].references = IN_BATCH
    return kept[0] is not NULL


cdef void refer(Packet* packet) noexcept nogil
cdef void release(Packet* packet) noexcept nogil
cdef void leave_batch(Packet* packet) noexcept nogil
cdef void end_batch(Batch* batch) noexcept nogil
cdef void release_entry(Entry entry, Totals* totals) noexcept nogil
cdef void leave(Entries* entries, Keys* keys, Account* account, uint32_t uid, Totals* totals) noexcept nogil
cdef size_t keys_left(Remains* remains) noexcept nogil
cdef Entry* first_left(Remains* remains) noexcept nogil
cdef void release_first(Remains* remains, Totals* totals) noexcept nogil
cdef Account* release_remains(Totals* totals, size_t most) noexcept nogil
