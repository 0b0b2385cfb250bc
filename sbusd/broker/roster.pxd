# cython: language_level=3
"""The roster, for other compiled modules; see `roster.pyx`."""

from sbusd.broker.quota_usage cimport Charge
from sbusd.dataplane.switch cimport Item


cdef struct ClientState:        # what a client's packets are handled with, without the interpreter
    void* client                # the Client
    Charge* charge
    Item** allowed              # of its AllowedPatterns
    long long subscriptions


cdef class AllowedPatterns:
    cdef Item* patterns
    cdef Py_ssize_t count


cdef class Client:
    cdef ClientState state
    cdef readonly object connection
    cdef readonly object credentials
    cdef readonly double since
    cdef readonly int fd
    cdef public object known_inode
    cdef public AllowedPatterns allowed
    cdef public bytes tap
    cdef public str name
    cdef public str end_reason
    cdef public object placement
    cdef public bint awaits_unit
    cdef public bint is_unit_late


cdef class EventListeners:
    cdef dict patterns
    cdef size_t count


cdef class Roster:
    cdef object owners
    cdef public object clients
    cdef list numbers                   # of all connections, sorted, to start anywhere
    cdef dict of_user                   # the same for each user

    cpdef Client add(self, connection, credentials, double since, int fd=*, inode=*)
    cpdef remove(self, connection)
    cdef Client client_of(self, connection)
