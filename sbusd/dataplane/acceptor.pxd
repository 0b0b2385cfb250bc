# How connections begin, and how their sockets are closed. See acceptor.pyx.

from libc.stdint cimport uint64_t

from sbusd.dataplane.ancillary cimport Passing
from sbusd.dataplane.connection cimport Connection
from sbusd.dataplane.plane cimport Plane

cdef enum:
    PAUSE_MS = 1000             # how long the switch does not accept if it has no descriptor even to refuse a connection


cdef Connection* add_connection(Plane plane, int fd, uint64_t connection, Passing passing, bint is_stream) except NULL
cdef int accept_connections(Plane plane, int listener) except -1
cdef int resume_accepting(Plane plane) except -1 with gil
cdef bint close_socket(Plane plane, int fd, Passing passing, bint is_stream, uint64_t connection) except -1
cdef bint is_closer_full(Plane plane) except -1
