"""The state of the compiled switch: its connections, its users, the batch that it works on, and its counters.

It is a class, because the router, the taps and the sink are Python objects. It has no methods: each module of the switch is a set of
functions that take the plane.
"""

from cython.operator cimport dereference
from libc.errno cimport errno
from libcpp.unordered_map cimport unordered_map

from sbusd.dataplane.libc cimport (
    EPOLL_CLOEXEC, M_MMAP_THRESHOLD, M_MXFAST, M_TRIM_THRESHOLD, MADV_DONTNEED, MADV_NOHUGEPAGE, MAP_ANONYMOUS, MAP_FAILED,
    MAP_NORESERVE, MAP_PRIVATE, O_CLOEXEC, O_RDONLY, PROT_READ, PROT_WRITE, close, epoll_create1, epoll_ctl, madvise, mallopt, mmap,
    munmap, open,
)

import os

from sbusd.dataplane.socket_closer import Closer
from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import MAX_PACKET_BYTES

cdef enum:
    # Packets start in different cache lines of their pages. In the same one, 64 of them would compete for 8 places in the cache.
    SLOT_STAGGER = 192
    SLOT_HEAD = 16              # free bytes before each packet, the last four for its length in a batch; keeps packets on cache lines
    KEPT_HEAP_BYTES = 8388608   # freed memory that is kept for the next packets
    MAPPED_BYTES = 1048576      # larger blocks have pages of their own; packets must not, for the kernel would fault them in each time

cdef size_t PACKET_BYTES = MAX_PACKET_BYTES
cdef size_t SLOT_BYTES = MAX_PACKET_BYTES + SLOT_STAGGER


cdef inline void end_step(Plane plane, int cause) noexcept nogil:
    """Charge the time since the last step to a cause, if the turns are measured."""
    if plane.is_measured:
        plane.stalls.end_step(cause)


cdef class Plane:
    """The state; only the modules of the switch use it."""

    def __cinit__(self, sink, keyspace, limits, refusals, clients):
        self.epoll = self.accepting.spare = self.accepting.refusing = -1
        self.buffer = NULL

    def __init__(self, sink, keyspace, limits, tuple refusals, ClientSink clients):
        # glibc merges all blocks of its fast bins during the next large allocation: 9 to 18 ms after the end of a connection with
        # many patterns. Source: mallopt(3), malloc_consolidate in glibc.
        mallopt(M_MXFAST, 0)
        # Otherwise each 128 KiB that a queue frees goes back to the kernel, and is faulted in for the next packets.
        mallopt(M_TRIM_THRESHOLD, KEPT_HEAP_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        self.sink = sink
        self.clients = PythonSink(sink) if clients is None else clients
        self.router = Router(keyspace, limits.cache_bytes)
        self.taps = Taps(KeySpace(keyspace.separator, is_guarded=False), limits.cache_bytes)
        self.watched = {}
        self.listeners = []
        self.stream_listeners = set()
        self.refusals = refusals
        set_bounds(self, keyspace, limits)
        self.routing.number = 1         # connections begin with 0
        self.routing.repeated.first = -1
        self.next_id = 1
        self.accepting.limit = 1
        self.release_at = NEVER_NS
        open_descriptors(self)
        self.intake.parts = self.batch.parts
        place_refusals(self)
        self.closer = Closer()

    def __dealloc__(self):
        if self.buffer is not NULL and self.buffer != MAP_FAILED:
            munmap(self.buffer, SLOT_BYTES * BATCH_PACKETS)
        # They are still open if the switch could not start, or was not closed.
        if self.epoll >= 0:
            close(self.epoll)
        if self.accepting.spare >= 0:
            close(self.accepting.spare)


cdef int set_bounds(Plane plane, keyspace, limits) except -1:
    """Set what the configuration bounds."""
    plane.schedule.turn_time = round(limits.turn_time * 1e9)
    plane.schedule.batch_packets = min(limits.batch_packets, <int>BATCH_PACKETS)
    plane.bounds.key_bytes = limits.key_bytes
    plane.bounds.has_secrets = bool(keyspace.namespaces)
    plane.bounds.queue_packets = limits.queue_packets
    plane.bounds.queue_bytes = limits.queue_bytes
    plane.bounds.low_water = limits.low_water
    plane.bounds.block_timeout = round(limits.block_timeout * 1000)
    plane.bounds.progress_timeout = round(limits.progress_timeout * 1000)
    plane.bounds.pace_limit = round(limits.pace_limit * 1e9)
    plane.totals.held_limit = limits.queued_memory
    plane.totals.frames.user_limit = max(<uint64_t>FRAME_BYTES, plane.schedule.turn_time * <uint64_t>FRAME_BYTES_PER_US // 1000)
    return 0


cdef int open_descriptors(Plane plane) except -1:
    """Open the plane's descriptors, and reserve the buffer for packets, whose pages are committed as packets need them."""
    cdef int i
    plane.epoll = epoll_create1(EPOLL_CLOEXEC)
    plane.accepting.spare = open(b"/dev/null", O_RDONLY | O_CLOEXEC)
    plane.buffer = <char*>mmap(
        NULL, SLOT_BYTES * BATCH_PACKETS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if plane.epoll < 0 or plane.accepting.spare < 0 or plane.buffer == MAP_FAILED:
        raise OSError(errno, f"the switch cannot start: {os.strerror(errno)}")
    # A huge page would commit five places for one byte in one of them.
    madvise(plane.buffer, SLOT_BYTES * BATCH_PACKETS, MADV_NOHUGEPAGE)
    for i in range(BATCH_PACKETS):
        plane.rooms[i].iov_base = plane.buffer + i * SLOT_BYTES + SLOT_HEAD
        plane.rooms[i].iov_len = PACKET_BYTES
        plane.inbound[i].msg_hdr.msg_iov = &plane.rooms[i]
        plane.inbound[i].msg_hdr.msg_iovlen = 1
    return 0


cdef int place_refusals(Plane plane) except -1:
    """Put the refusals after the packets of the batch, so that they can be sent with them."""
    cdef size_t place = 0, i
    plane.refusal_texts = b"".join([bytes(LENGTH_BYTES) + text for text in plane.refusals])
    for i in range(REFUSALS):
        plane.batch.parts[BATCH_PACKETS + i].iov_base = <char*>plane.refusal_texts.data() + place + LENGTH_BYTES
        plane.batch.parts[BATCH_PACKETS + i].iov_len = len(plane.refusals[i])
        place += LENGTH_BYTES + len(plane.refusals[i])
    plane.keyed_refusals.resize(BATCH_PACKETS)
    return 0


cdef Connection* find(Plane plane, uint64_t number) except NULL:
    """Return a connection by its number. Raises KeyError."""
    cdef unordered_map[uint64_t, Connection*].iterator found = plane.by_id.find(number)
    if found == plane.by_id.end():
        raise KeyError(number)
    return dereference(found).second


cdef int control_epoll(Plane plane, int operation, int fd, uint32_t interest, uint64_t data) except -1:
    """Call epoll_ctl(2)."""
    cdef epoll_event event
    event.events = interest
    event.data.u64 = data
    if epoll_ctl(plane.epoll, operation, fd, &event) < 0:
        raise OSError(errno, f"epoll_ctl: {os.strerror(errno)}")
    return 0


cdef bytes copy_packet(Plane plane, size_t index):
    """Return a copy of a packet of the current batch."""
    return (<char*>plane.batch.parts[index].iov_base)[:plane.batch.parts[index].iov_len]


cdef void release_buffer(Plane plane) noexcept nogil:
    """Give the buffer's pages back to the kernel, so that a burst of large packets does not keep them."""
    plane.is_buffer_large = False
    madvise(plane.buffer, SLOT_BYTES * BATCH_PACKETS, MADV_DONTNEED)
