# How packets come from a connection. See reader.pyx.

from libc.stdint cimport uint32_t

from sbusd.dataplane.connection cimport Connection
from sbusd.dataplane.plane cimport Plane


cdef size_t receive(Plane plane, Connection* connection, uint32_t events) noexcept nogil
cdef bint waits_for_user(Plane plane, Connection* connection, uint32_t events) noexcept nogil
cdef void keep_unhandled(Plane plane, Connection* connection, size_t first) noexcept nogil
cdef void start_backlog(Connection* connection) noexcept nogil
cdef void trim_backlog(Plane plane, Connection* connection) noexcept nogil
