# cython: language_level=3
"""The roster, for other compiled modules; see `roster.pyx`."""


cdef class Client:
    cdef readonly object connection
    cdef readonly object credentials
    cdef readonly double since
    cdef readonly int fd
    cdef public object known_inode
    cdef public bytes cred
    cdef public set allowed
    cdef public long long subscriptions
    cdef public str soft
    cdef public str hard
    cdef public str order
    cdef public bint wants_senders
    cdef public bint wants_batches
    cdef public bytes tap
    cdef public str farewell


cdef class Roster:
    cdef object owners
    cdef public object clients
    cdef list numbers                   # of all connections, sorted, to start anywhere
    cdef dict of_user                   # the same for each user

    cpdef Client add(self, connection, credentials, double since, int fd=*, inode=*)
    cpdef remove(self, connection)
    cdef Client client_of(self, connection)
