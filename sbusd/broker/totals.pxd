# cython: language_level=3
"""What each user has done since the bus started, for other compiled modules; see `totals.pyx`."""

from sbusd.dataplane.traffic cimport TrafficSums


cdef class UserTotals:
    cdef TrafficSums ended      # of its connections that have ended
    cdef readonly dict refused  # refusals for each quota, by name
    cdef unsigned long long refusals
    cdef bint is_subordinate
    cdef public object credentials  # of the latest connection; None: it has had none since the bus started

    cpdef add_traffic(self, traffic)
    cpdef add_refusals(self, quota, long long count)


cdef class TotalsTable:
    cdef readonly dict by_uid
    cdef readonly UserTotals other
    cdef public long long forgotten
    cdef public object subordinates  # SubordinateIds; None: there are none
    cdef object marked               # those by which the users are marked

    cdef UserTotals find(self, uid, dict present)
    cdef bint forget_one(self, dict present) except -1
    cdef int mark(self) except -1
