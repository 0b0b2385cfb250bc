# Whether a queue takes a packet, and charges. See overflow.pyx.

from libc.stdint cimport int64_t, uint32_t

from sbusd.dataplane.outbox cimport Entry, Outbox, Packet


cdef uint32_t owner_of(Outbox* box) noexcept nogil
cdef bint has_room(Outbox* box, uint32_t payer, size_t cost) noexcept nogil
cdef bint may_wait(Outbox* box, uint32_t payer, size_t cost, bint may_block, bint is_paced) noexcept nogil
cdef void charge_entry(Outbox* box, Entry entry) noexcept nogil
cdef void discharge_entry(Outbox* box, Entry entry) noexcept nogil
cdef Entry new_entry(Outbox* box, Packet* packet, Packet* head, uint32_t payer) noexcept nogil
cdef void drop_entry(Outbox* box, Entry entry) noexcept nogil
cdef void charge_key(Outbox* box, uint32_t payer, int64_t count) noexcept nogil
