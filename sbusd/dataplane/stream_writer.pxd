# How packets go to a client's stream socket. See stream_writer.pyx.

from libc.stdint cimport uint32_t

from sbusd.dataplane.libc cimport mmsghdr
from sbusd.dataplane.outbox cimport Batch, Entry, Head, Outbox
from sbusd.dataplane.sending cimport Outcome


cdef enum:
    FRAME_BYTES_PER_US = 640    # how fast the kernel takes long frames for many sockets, measured: 500; for one, 13,000
    FRAME_BYTES = 4096          # which a call sends at least, if it may send anything


cdef size_t transmit_frames(Outbox* box, mmsghdr* lines, size_t count, uint32_t payer, Outcome* outcome) noexcept nogil
cdef size_t allowance(Outbox* box, bint is_first) noexcept nogil
cdef Outcome keep_rest(Outbox* box, Entry entry) noexcept nogil
cdef Outcome keep_shared(Outbox* box, Batch* batch, uint32_t index, Head* head) noexcept nogil
cdef Outcome keep_copy(Outbox* box, const char* data, size_t length, uint32_t payer) noexcept nogil
cdef void restore_rest(Outbox* box, Entry entry, uint32_t length, uint32_t left, bint is_deferred) noexcept nogil
cdef bint has_begun(Outbox* box) noexcept nogil
cdef Outcome send_rest(Outbox* box, size_t most) noexcept nogil
cdef void abandon_rest(Outbox* box) noexcept nogil
