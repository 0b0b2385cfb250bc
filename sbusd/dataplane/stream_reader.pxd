# How frames come from a stream socket. See stream_reader.pyx.

from sbusd.dataplane.connection cimport Connection
from sbusd.dataplane.plane cimport Plane


cdef ssize_t receive_frames(Plane plane, Connection* connection) noexcept nogil
cdef bint awaits_memory(Connection* connection) noexcept nogil
cdef bint is_at_half_read_limit(Connection* connection) noexcept nogil
cdef void drop_half(Connection* connection) noexcept nogil
cdef bint restore_half(Connection* connection, const char* data, size_t length) noexcept nogil
