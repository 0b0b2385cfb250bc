# The event loop. See turn.pyx.

from sbusd.dataplane.plane cimport Plane


cdef int take_turn(Plane plane, int timeout_ms) except -1 nogil
cdef int take_turns(Plane plane, int timeout_ms) except -1 nogil
