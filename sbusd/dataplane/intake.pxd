# The shape of what a connection has sent and the switch handles next. See intake.pyx.

from libc.stdint cimport uint32_t, uint64_t

from sbusd.dataplane.libc cimport iovec
from sbusd.dataplane.outbox cimport BATCH_PACKETS

cdef enum:
    BATCH_HEAD_BYTES = 13           # CMSG !/batch NUL
    BATCH_LENGTH_BYTES = 4          # in front of each packet in a batch


cdef struct Intake:                 # the packets that are handled together
    iovec* parts                    # where they are, each with room for its length in front of it
    bint is_cut[BATCH_PACKETS]      # the kernel had no room for the whole of it
    size_t count
    size_t limit                    # no more than so many
    size_t offset                   # how far the batch is taken apart at which it stopped; 0: it stopped at none
    uint64_t batches                # that were taken apart to their ends, ever


cdef struct Backlog:                # received and not handled yet; its records follow it in the same allocation
    Backlog* next                   # what comes behind it, or NULL
    size_t size                     # bytes of them all
    size_t place                    # where the record is that comes next
    size_t offset                   # how far the batch in it is taken apart; 0: not at all


cdef struct Record:                 # in front of each packet of a backlog
    uint32_t length
    uint32_t is_cut


cdef bint take(Intake* intake, char* packet, size_t length, bint is_cut) noexcept nogil
cdef Backlog* new_backlog(size_t size) noexcept nogil
cdef size_t record_bytes(const char* packet, size_t length, size_t offset) noexcept nogil
cdef void store(Backlog* backlog, const char* packet, size_t length, bint is_cut, size_t offset) noexcept nogil
cdef Backlog* put_back(Intake* intake, size_t first, Backlog* following) noexcept nogil
cdef void resume(Backlog* backlog, Intake* intake) noexcept nogil
cdef list packets_of(Backlog* backlog)
