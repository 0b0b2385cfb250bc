# What one process hands over to the next. See state_transfer.pyx.

from libc.stdint cimport uint32_t, uint64_t

from sbusd.dataplane.plane cimport Plane


cdef object progress_of(Plane plane, uint64_t number)
cdef tuple queues_of(Plane plane)
cdef object totals_of(Plane plane, dict counters)
cdef object waits_of_user(Plane plane, uint32_t uid)
cdef int restore_progress(Plane plane, uint64_t number, progress) except -1
cdef int restore_all(Plane plane, list packets, dict queues, totals, uint64_t next_connection) except -1
