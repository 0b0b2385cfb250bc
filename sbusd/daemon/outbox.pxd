# What waits for one client, and how it gets there; used by the switch without the interpreter. See outbox.pyx.

from libc.stdint cimport uint32_t, uint64_t
from libcpp.vector cimport vector

from sbusd.daemon.libc cimport iovec

cdef enum:
    BATCH_PACKETS = 64      # packets in one recvmmsg or sendmmsg
    BATCH_PARTS = 72        # those, and the prepared packets that a batch can refer to behind them


cdef struct Packet:         # its bytes follow it in the same allocation
    uint32_t references     # how many outboxes, and the batch, hold it
    uint32_t length


cdef struct Totals:         # of all outboxes of a switch; the fields of SwitchCounters
    uint64_t deliveries
    uint64_t delivered_packets
    uint64_t delivered_bytes
    uint64_t queued_packets
    uint64_t queued_bytes
    uint64_t lost_packets
    uint64_t abandoned_packets


cdef struct Batch:
    iovec parts[BATCH_PARTS]    # the packets of this batch, where they were received
    Packet* kept[BATCH_PARTS]   # each one's shared copy, made when the first recipient has to wait for it; else NULL


cdef cppclass Outbox:
    int fd
    bint is_broken              # the peer cannot be sent to any more; what comes is abandoned
    vector[Packet*] waiting     # in order, from `first` on
    size_t first
    uint64_t waiting_bytes
    uint64_t packets_limit
    uint64_t bytes_limit
    uint64_t delivered_packets
    uint64_t delivered_bytes
    uint64_t lost_packets
    uint64_t untold             # lost, and the peer is not told yet
    uint64_t told               # told, and the switch's sink is not told yet
    Totals* totals


cdef void open_outbox(Outbox* box, int fd, Totals* totals, uint64_t packets_limit, uint64_t bytes_limit) noexcept nogil
cdef void offer(Outbox* box, Batch* batch, const uint32_t* indexes, size_t count) noexcept nogil
cdef void post(Outbox* box, const char* data, size_t length) noexcept nogil
cdef void flush(Outbox* box) noexcept nogil
cdef void abandon(Outbox* box) noexcept nogil
cdef void end_batch(Batch* batch, size_t count) noexcept nogil
cdef size_t waiting_count(Outbox* box) noexcept nogil
