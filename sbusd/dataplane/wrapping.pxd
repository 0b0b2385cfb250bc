# The shape of packets that go out several in one. See wrapping.pyx.

from libc.stdint cimport uint32_t

from sbusd.dataplane.libc cimport iovec, mmsghdr
from sbusd.dataplane.outbox cimport BATCH_PACKETS

cdef struct Wrapping:
    mmsghdr headers[BATCH_PACKETS]      # what is sent: batches, and packets that go alone
    uint32_t packets[BATCH_PACKETS]     # how many are in each
    size_t count
    iovec pieces[4 * BATCH_PACKETS]     # of the batches: each its head, and of each packet at most its length and two parts
    uint32_t lengths[BATCH_PACKETS]     # of packets with a head of their own, which nothing has room in front of


cdef void wrap(Wrapping* wrapping, mmsghdr* lines, size_t count, size_t limit) noexcept nogil
cdef size_t length_of(mmsghdr* line) noexcept nogil
