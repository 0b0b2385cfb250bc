# cython: language_level=3
"""The usage of each user, for other compiled modules; see `usage.pyx`."""

from libc.stdint cimport uint64_t

from sbusd.broker.totals cimport TotalsTable, UserTotals


cdef struct Bucket:             # see TokenBucket
    double rate
    double burst
    double tokens
    double since


cdef struct UserCharge:         # what a user holds, and the limits that are checked without the interpreter
    long long descriptors
    long long subscriptions
    long long pattern_bytes
    long long max_descriptors
    long long max_subscriptions
    long long max_pattern_bytes
    uint64_t max_queued_packets
    uint64_t max_queued_bytes
    Bucket* control             # of its control packets


cdef struct Charge:             # what a connection holds
    long long descriptors
    long long subscriptions
    long long pattern_bytes
    long long control_packets
    UserCharge* user


cdef class TokenBucket:
    cdef Bucket bucket

    cpdef bint take(self, double now)
    cpdef refill(self, double now)
    cpdef double full_at(self)


cdef class ConnectionUsage:
    cdef Charge charge
    cdef public long long pid
    cdef public TokenBucket tolerance


cdef class UserUsage:
    cdef UserCharge charge
    cdef object quotas
    cdef public object credentials
    cdef public bint is_owner
    cdef readonly TokenBucket control
    cdef readonly TokenBucket attempts
    cdef readonly TokenBucket records
    cdef readonly dict connections
    cdef readonly object refused
    cdef public UserTotals totals
    cdef public long long unrecorded

    cpdef bint is_settled(self, double now)
    cdef bint is_as_new(self, double now)
    cpdef ConnectionUsage add_connection(self, connection, long long pid)
    cpdef add_descriptors(self, connection, long long count)
    cpdef add_patterns(self, connection, long long count, long long size)


cdef class AbsentUsers:
    cdef public dict users
    cdef public long long forgotten_early

    cdef int keep(self, UserUsage user, double now) except -1


cdef class UsageTable:
    cdef public dict present
    cdef public AbsentUsers absent
    cdef readonly TotalsTable totals
    cdef public dict by_connection
    cdef UserUsage unchanged        # the latest user that was forgotten and is as a new one would be
    cdef public long long descriptors
    cdef public long long capacity
    cdef public long long shared_capacity   # of all users but owners
    cdef public object subordinates         # SubordinateIds; None: there are none
    cdef object clock
    cdef bint is_monotonic
    cdef bytes separator
    cdef char separator_byte

    cdef double time(self) except? -1.0
    cdef object admit_client(self, connection, credentials)
    cdef UserTotals totals_of(self, UserUsage user, credentials)
    cdef int leave_user(self, connection) except -1
    cdef object charge_packet(self, connection)
    cdef object charge_pattern(self, connection, bytes pattern)
    cdef int release_pattern(self, connection, bytes pattern) except -1
    cdef UserUsage user_of(self, connection)
    cdef UserUsage known_user(self, credentials, double now)
    cdef bint has_descriptor(self, UserUsage user) noexcept
    cdef long long free_half(self, UserUsage user) noexcept
    cdef int update_presence(self, UserUsage user, double now) except -1
    cdef bint take_control(self, Charge* charge, double now) noexcept nogil
    cdef bint take_subscription(self, Charge* charge, const char* pattern, size_t length) noexcept nogil
    cdef bint may_subscribe(self, Charge* charge, const char* pattern, size_t length) noexcept nogil
    cdef long long memory_for(self, const char* pattern, size_t length) noexcept nogil
