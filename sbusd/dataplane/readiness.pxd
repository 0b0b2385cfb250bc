# Which connections can be read, written, or end. See readiness.pyx.

from sbusd.dataplane.connection cimport Connection
from sbusd.dataplane.plane cimport Plane


cdef bint update_interest(Plane plane, Connection* connection) noexcept nogil
cdef void update_pending(Plane plane, Connection* connection) noexcept nogil
cdef void remove_blocker(Plane plane, Connection* publisher) noexcept nogil
cdef void finish(Plane plane, Connection* connection, int end) noexcept nogil
