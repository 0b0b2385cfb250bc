# cython: language_level=3
"""The usage of each user, for other compiled modules; see `usage.pyx`."""


cdef class TokenBucket:
    cdef public double rate
    cdef public double burst
    cdef public double tokens
    cdef public double since

    cpdef bint take(self, double now)
    cpdef refill(self, double now)
    cpdef double full_at(self)


cdef class ConnectionUsage:
    cdef public long long pid
    cdef public long long descriptors
    cdef public long long subscriptions
    cdef public long long pattern_bytes
    cdef public long long control_packets
    cdef public TokenBucket tolerance


cdef class UserUsage:
    cdef public object credentials
    cdef public object limits
    cdef public bint is_owner
    cdef public TokenBucket control
    cdef public TokenBucket attempts
    cdef public TokenBucket records
    cdef public dict connections
    cdef public long long descriptors
    cdef public long long subscriptions
    cdef public long long pattern_bytes
    cdef public object refused
    cdef public long long unrecorded

    cpdef bint is_settled(self, double now)
    cpdef add_descriptors(self, connection, long long count)
    cpdef add_patterns(self, connection, long long count, long long size)


cdef class AbsentUsers:
    cdef public dict users
    cdef public long long forgotten_early

    cdef int keep(self, UserUsage user, double now) except -1


cdef class UsageTable:
    cdef public dict present
    cdef public AbsentUsers absent
    cdef public dict by_connection
    cdef public long long descriptors
    cdef public long long capacity
    cdef object clock
    cdef bint is_monotonic
    cdef bytes separator

    cpdef double now(self) except? -1.0
    cpdef admit(self, connection, credentials)
    cpdef leave(self, connection)
    cpdef charge_control(self, connection)
    cpdef charge_subscription(self, connection, bytes pattern)
    cpdef release_subscription(self, connection, bytes pattern)
    cpdef long long memory_of(self, bytes pattern)
    cpdef long long half_of_free(self, UserUsage user)
    cdef UserUsage user_of(self, connection)
    cdef bint has_descriptor(self, UserUsage user) except -1
    cdef int update_presence(self, UserUsage user, double now) except -1
