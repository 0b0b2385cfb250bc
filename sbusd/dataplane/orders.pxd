# The choice among what waits, for outboxes. See orders.pyx.

from sbusd.dataplane.outbox cimport Outbox


cdef size_t choose(Outbox* box, size_t* chosen) noexcept nogil
