"""The monotonic clock, exact and coarse. Source: clock_gettime(2)."""

from libc.stdint cimport int64_t
from posix.time cimport timespec

from sbusd.dataplane.libc cimport CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, clock_gettime


cdef inline int64_t now_ns() noexcept nogil:
    """Return the time in nanoseconds."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline int64_t now_ms() noexcept nogil:
    """Return the time in milliseconds. It may be some milliseconds late, and costs less."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000
