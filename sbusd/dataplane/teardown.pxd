# How connections end. See teardown.pyx.

from libc.stdint cimport int64_t, uint64_t

from sbusd.dataplane.connection cimport Connection
from sbusd.dataplane.plane cimport Plane


cdef int destroy_next(Plane plane) except -1
cdef int take_down_some(Plane plane) except -1 nogil
cdef int report_closed(Plane plane) except -1
cdef int close_all(Plane plane, bint keeps_connections) except -1
cdef void release_some(Plane plane, int64_t end) noexcept nogil
