# For how long the recipients of one user have blocked a paced publisher of another. Spec: sbus-protocol(7) §7.

from libc.stdint cimport int64_t, uint32_t


cdef enum:
    SLOTS = 17                  # enough to cover any second
    SLOT_NS = 62500000
    SECOND_NS = 1000000000
    PACED_BYTES = 32768         # of a paced publisher that are routed before the next look at its recipients

cdef enum:                      # a separate enum, because it needs 64 bits
    NEVER_NS = 0x2000000000000000


cdef struct Hold:               # all times in nanoseconds of the monotonic clock
    uint32_t uid                # whose recipients
    uint32_t count              # of them that the publisher waits for now
    int64_t since               # when it began to wait for the first of those
    int64_t until               # when the wait ends at the latest
    int64_t slot                # the newest slot, by its number since the clock began
    int64_t spent[SLOTS]        # waited in each slot, counted in the one in which the wait ended
