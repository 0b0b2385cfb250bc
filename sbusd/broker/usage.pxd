# cython: language_level=3
"""What users hold, for the compiled control plane; see `holdings.pyx`."""


cdef class Bucket:
    cdef public double rate
    cdef public double burst
    cdef public double tokens
    cdef public double since

    cpdef bint take(self, double now)
    cpdef settle(self, double now)


cdef class Holding:
    cdef public long long pid
    cdef public long long descriptors
    cdef public long long subscriptions
    cdef public long long pattern_bytes
    cdef public long long control_packets
    cdef public Bucket patience


cdef class Account:
    cdef public object credentials
    cdef public object quotas
    cdef public bint is_owner
    cdef public Bucket control
    cdef public Bucket attempts
    cdef public Bucket tells
    cdef public dict holdings
    cdef public long long descriptors
    cdef public long long subscriptions
    cdef public long long pattern_bytes
    cdef public object refused
    cdef public long long untold

    cpdef bint is_settled(self, double now)


cdef class Holdings:
    cdef public dict present
    cdef public dict departed
    cdef public dict by_connection
    cdef public long long descriptors
    cdef public long long capacity
    cdef public long long forgotten_early
    cdef object clock
    cdef bint is_monotonic
    cdef bytes separator

    cpdef double now(self) except? -1.0
    cpdef admit(self, connection, credentials)
    cpdef leave(self, connection)
    cpdef charge_control(self, connection)
    cpdef charge_subscription(self, connection, bytes pattern)
    cpdef file(self, Account account, double now)
    cpdef long long memory_of(self, bytes pattern)
    cpdef release_subscription(self, connection, bytes pattern)
    cpdef long long half_of(self, Account account)
    cdef bint has_descriptor(self, Account account) except -1
    cdef int forget_absent(self, double now) except -1
    cpdef hold_pattern(self, Account account, connection, long long count, long long size)
    cdef Account account_of(self, connection)
