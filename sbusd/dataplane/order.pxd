# The order of messages in a queue. See order.pyx.

from libc.stdint cimport uint32_t, uint64_t

from sbusd.dataplane.outbox cimport Entry, Outbox


cdef size_t choose(Outbox* box, size_t* chosen) noexcept nogil
cdef bint is_replaceable(Outbox* box, const char* data, size_t length) noexcept nogil
cdef Entry* older_of(Outbox* box, const char* data) noexcept nogil
cdef void remember_key(Outbox* box, uint64_t number, const char* data, uint32_t payer) noexcept nogil
cdef void move_key(Outbox* box, const char* data) noexcept nogil
cdef void forget_key(Outbox* box, uint64_t number, Entry entry) noexcept nogil
cdef void set_order(Outbox* box, int order) noexcept nogil
cdef size_t replaceable_from(Outbox* box) noexcept nogil
cdef void restore_keys(Outbox* box, size_t first) noexcept nogil
