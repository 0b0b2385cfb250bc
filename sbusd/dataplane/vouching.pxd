# Messages of the current batch for which their publisher vouches. See vouching.pyx.

from libc.stdint cimport uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from sbusd.dataplane.libc cimport iovec
from sbusd.dataplane.outbox cimport BATCH_PACKETS, Batch, Head


cdef cppclass Vouching:
    bint is_used                        # the batch has, or had, such a message
    vector[string] origins              # by packet: `<words>/<cred>`; empty: the publisher does not vouch for it
    iovec outer[BATCH_PACKETS]          # the packets as they were received
    vector[string] texts                # of the heads
    bint has_heads                      # they are written
    Head heads[BATCH_PACKETS]           # by packet, of all packets of the batch


cdef bint is_vouched(const char* packet, size_t length) noexcept nogil
cdef bint unwrap(Vouching* vouching, Batch* batch, size_t i) noexcept nogil
cdef void wrap_again(Vouching* vouching, Batch* batch, size_t i) noexcept nogil
cdef Head* heads_of(Vouching* vouching, const string& sender_head, size_t count) noexcept nogil
cdef void release_heads(Vouching* vouching, size_t count) noexcept nogil
cdef void forget_origins(Vouching* vouching) noexcept nogil
cdef void append_sender(string& text, uint64_t connection, const string& cred) noexcept nogil
