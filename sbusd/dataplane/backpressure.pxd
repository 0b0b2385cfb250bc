# How publishers wait for recipients. See backpressure.pyx.

from libc.stdint cimport uint32_t

from sbusd.dataplane.connection cimport Connection
from sbusd.dataplane.outbox cimport Blocked
from sbusd.dataplane.plane cimport Plane


cdef bint may_pace(Plane plane, Connection* publisher, Connection* recipient) noexcept nogil
cdef void block(Plane plane, Connection* recipient, Connection* publisher, bint is_paced) noexcept nogil
cdef void begin_wait(Plane plane, Connection* recipient, Connection* publisher, Blocked entry) noexcept nogil
cdef void end_waiting(Connection* publisher) noexcept nogil
cdef void unblock_all(Plane plane, Connection* recipient) noexcept nogil
cdef int limit_timeout(Plane plane, int timeout_ms) noexcept nogil
cdef void end_expired_waits(Plane plane) noexcept nogil
cdef void after_send(Plane plane, Connection* connection) noexcept nogil
cdef void disconnect_misbehaving(Plane plane, Connection* connection, int end) noexcept nogil
