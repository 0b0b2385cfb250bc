# Packets that the switch handles next, and backlogs. See intake.pxi.

from libc.stdint cimport uint32_t, uint64_t

from sbusd.dataplane.libc cimport iovec


cdef struct Intake:                 # the packets that are handled together
    iovec* parts                    # where they are, each with room for its length before it
    bint is_cut[BATCH_PACKETS]      # the kernel truncated it
    size_t count
    size_t limit                    # the maximum of count
    size_t offset                   # how far the last batch is split; 0: it is complete
    uint64_t batches                # completely split, in total


cdef struct Backlog:                # received and not handled yet; the records follow in the same allocation
    Backlog* next                   # the backlog after it, or NULL
    size_t size                     # bytes of all records
    size_t place                    # the place of the next record
    size_t offset                   # how far the batch in it is split; 0: not at all


cdef struct HalfFrame:              # the beginning of a frame, from its length on; the bytes follow in the same allocation
    size_t size                     # of the memory for bytes
    size_t filled                   # received


cdef struct Record:                 # before each packet of a backlog
    uint32_t length
    uint32_t is_cut
