# How long the loop did not wait for events, by cause. See stalls.pxi.

from libc.stdint cimport int64_t, uint64_t
from libcpp.vector cimport vector


cdef enum Cause:
    IN_PYTHON                   # between turns, and time without another cause
    PACKETS                     # packets of one connection: read, routed and delivered
    INTERPRETER                 # waiting for the interpreter's lock, which the thread of the journal may hold
    ACCEPTING
    RECORDING_REFUSALS                    # recording the messages of a batch that were not routed
    LOSSES                      # recording discarded packets
    BLOCKS                      # unblocking publishers that have waited for too long
    ENDING                      # taking down one connection
    ERASING                     # patterns of connections that have ended
    BUFFER                      # giving pages of the receive buffer back
    FIXED_CAUSES


cdef struct Spent:
    uint64_t steps
    int64_t longest             # of one step; all times in nanoseconds
    int64_t turn                # in this turn
    int64_t worst_turn          # in one turn


cdef struct Moment:
    int64_t wall                # nanoseconds
    int64_t cpu                 # on a processor in the thread's life
    int64_t queued              # in the run queue in its life
    long sleeps                 # voluntary switches to another thread in its life


cdef class Stalls:
    cdef int schedstat          # the scheduler's statistics of this thread; -1: not there
    cdef bint is_awake
    cdef uint64_t turns
    cdef Moment woken                                   # when this turn began
    cdef Moment step                                    # when this step began; the other values may be from an earlier step
    cdef int64_t stall, wall, cpu, queued               # of the longest stall
    cdef bint has_slept                                 # in the longest stall
    cdef vector[Spent] spent                            # by cause
    cdef vector[int64_t] parts                          # of the longest stall, by cause
    cdef list names
    cdef dict numbers

    cdef void end_step(self, int cause) noexcept nogil
    cdef void note_control(self, bytes packet)
    cdef int number_of(self, name)
    cdef int64_t queued_until_now(self) noexcept nogil
    cdef void end_turn(self) noexcept nogil
    cdef void begin_turn(self) noexcept nogil
