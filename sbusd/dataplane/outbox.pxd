# What waits for one client, and how it gets there; used by the switch without the interpreter. See outbox.pyx.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.deque cimport deque
from libcpp.map cimport map as cpp_map
from libcpp.vector cimport vector

from sbusd.dataplane.fairness cimport UserTime
from sbusd.dataplane.libc cimport iovec, le32toh
from sbusd.dataplane.pools cimport NOBODY, Pool

cdef enum:
    BATCH_PACKETS = 64      # packets in one recvmmsg or sendmmsg
    BATCH_PARTS = 72        # those, and the prepared packets that a batch can refer to behind them
    MISSED = 64             # connections that are named as having missed a packet: as in contract.py

cdef enum Mode:             # the numbers of SoftMode and HardMode
    MODE_QUEUE = 0
    MODE_DISCARD = 1
    MODE_BLOCK = 2
    MODE_ERROR = 3

cdef enum Waiting:          # why the publisher that was just served must wait
    NOT_WAITING = 0
    BLOCKED_BY_MODE = 1
    PACED = 2

cdef enum Sequence:         # the numbers of Order
    ORDER_QUEUE = 0
    ORDER_STACK = 1
    ORDER_RANDOM = 2
    ORDER_LATEST = 3

cdef struct Packet:         # its bytes follow it in the same allocation
    Totals* totals          # where its memory is counted
    uint32_t references     # how many outboxes, and the batch, hold it
    uint32_t wire_length    # as it stands in front of it in a batch: little endian, and last here


cdef inline uint32_t bytes_in(Packet* packet) noexcept nogil:
    """Return how long a packet is."""
    return le32toh(packet.wire_length)


cdef struct Entry:
    Packet* packet
    Packet* head            # what goes out in front of it, in one packet with it; NULL: nothing
    uint32_t payer          # the uid of who published it


ctypedef deque[Entry] Entries   # grows without moving what is in it: a vector of a million would be copied in one turn


cdef extern from *:
    """
    #ifndef SBUSD_KNOWN_KEY
    #define SBUSD_KNOWN_KEY
    #include <cstdint>
    #include <cstring>
    #include <functional>
    #include <string_view>
    struct KnownKey {
        uint64_t hash;              // so that keys that begin alike are not compared byte by byte
        mutable const char* data;   // of the message that waits; its key ends with NUL
        KnownKey(const char* text = "") : hash(std::hash<std::string_view>{}(std::string_view(text))), data(text) {}
        bool operator<(const KnownKey& other) const {
            return hash != other.hash ? hash < other.hash : strcmp(data, other.data) < 0;
        }
    };
    #endif
    """
    cdef cppclass KnownKey:
        KnownKey() noexcept nogil
        KnownKey(const char*) noexcept nogil


ctypedef cpp_map[KnownKey, uint64_t] Keys   # and the number of the entry; in order, for a hash table would grow in one turn


cdef struct Head:           # what goes in front of a packet of a batch, for those who asked for it
    iovec part
    Packet* kept            # its shared copy, made when the first recipient has to wait for it; else NULL


cdef struct Blocked:        # a publisher that is not read
    uint32_t slot
    uint64_t id             # slots are used again, numbers are not
    bint is_paced           # it waits because it asked for that, not because the recipient did
    uint32_t limited_by     # the uid of another user, whose recipients may hold it up for a part of each second; NOBODY: no bound
    int64_t since           # nanoseconds of the monotonic clock


cdef cppclass Account:      # one user
    uint32_t uid
    uint64_t connections
    uint64_t lost_packets
    uint32_t blocked        # publishers of it that wait for recipients now
    int64_t blocked_ns      # how long they did, less the time of the monotonic clock once for each that waits
    uint32_t blocked_others # waits of publishers for its recipients now
    int64_t blocked_others_ns   # likewise
    Pool room
    uint64_t leaving_bytes  # of queues that were given up, whose memory is not free yet
    UserTime time
    size_t unread           # bytes of its connections' backlogs
    vector[Blocked] held_up # its connections that are not read until those are shorter


cdef struct Totals:         # of all outboxes of a switch; the fields of SwitchCounters
    uint64_t deliveries
    uint64_t delivered_packets
    uint64_t delivered_bytes
    uint64_t queued_packets
    uint64_t queued_bytes
    uint64_t lost_packets
    uint64_t abandoned_packets
    uint64_t delivered_batches  # what went out several in one,
    uint64_t batched_packets    # and how many those were
    uint64_t replaced_packets
    uint64_t held_bytes         # memory of all packets that wait, each counted once, and of their places in queues
    uint64_t held_limit
    Remains* remains            # queues that were given up


cdef struct Remains:            # what waited in a queue that was given up, until its memory is free
    Entries* entries            # NULL: none
    Keys* keys                  # what was known of them; NULL: nothing
    Account* account            # who is charged for it until then; NULL: nobody
    Remains* next


cdef struct Tally:              # what became of one packet of a batch: for how many connections it was each
    uint32_t handed
    uint32_t queued
    uint32_t discarded
    uint32_t foreign_losses     # of the discarded: for connections of other users than its sender
    uint32_t missed_count       # connections that it matched and did not reach
    uint64_t missed[MISSED]     # the numbers of the first ones


cdef inline void clear(Tally* tally) noexcept nogil:
    """Begin to count what becomes of a packet."""
    tally.handed = tally.queued = tally.discarded = tally.foreign_losses = tally.missed_count = 0


cdef inline void miss(Tally* tally, uint64_t connection) noexcept nogil:
    """Note a connection that a packet matched and did not reach."""
    if tally.missed_count < <uint32_t>MISSED:
        tally.missed[tally.missed_count] = connection
    tally.missed_count += 1


cdef struct Batch:
    uint32_t payer              # the uid of who sent it
    bint is_tallied             # somebody wants to know what became of its packets
    Tally tally[BATCH_PARTS]    # cleared before a packet is routed, where somebody wants to know
    iovec parts[BATCH_PARTS]    # the packets of this batch, where they were received, each with room for its length in front of it
    bint has_copies             # some of `kept` may be there
    Packet* kept[BATCH_PARTS]   # each one's shared copy, made when the first recipient has to wait for it; else NULL


cdef cppclass Outbox:
    uint64_t connection         # the number of the client
    int fd
    int soft                    # Mode
    int hard                    # Mode
    int order                   # Sequence
    uint32_t batch_bytes        # the longest batch that it is sent; 0: it is sent none
    bint is_broken              # the peer cannot be sent to any more; what comes is abandoned
    bint is_failed              # it could not take a packet, and asked to be ended then
    int has_blocked             # Waiting: whether it needs the publisher that was just served to wait
    Account* account            # whose it is; NULL until that is said
    Pool room
    Entries* waiting            # in order of arrival; NULL: nothing
    Entries* notes              # packets of the bus itself that do not wait their turn among messages; NULL: none
    uint64_t taken_out          # how many entries have left the front of `waiting`: the number of the first one there
    Keys* keys                  # of ORDER_LATEST: where messages wait that are; NULL: none
    uint64_t replaced_packets
    uint64_t untold_replaced    # replaced, and the peer is not told yet
    uint64_t delivered_packets
    uint64_t delivered_bytes
    uint64_t lost_packets
    uint64_t untold             # lost, and the peer is not told yet
    uint64_t told               # told, and the switch's sink is not told yet
    uint64_t left_packets       # what waited and was given up, and its bytes
    uint64_t left_bytes
    bint is_parted              # its last words were offered: what waits now is those
    Totals* totals


cdef void open_outbox(Outbox* box, uint64_t connection, int fd, Totals* totals, uint64_t packets_limit, uint64_t bytes_limit) noexcept nogil
cdef void assign(Outbox* box, Account* account) noexcept nogil
cdef void offer(Outbox* box, Batch* batch, const uint32_t* indexes, size_t count, bint may_block, bint is_paced, Head* heads, size_t stride) noexcept nogil
cdef void post(Outbox* box, const char* data, size_t length) noexcept nogil
cdef void post_for(Outbox* box, const char* data, size_t length, uint32_t payer) noexcept nogil
cdef void flush(Outbox* box) noexcept nogil
cdef bint is_shut(Outbox* box, uint32_t payer, size_t cost) noexcept nogil
cdef void abandon(Outbox* box) noexcept nogil
cdef void part(Outbox* box, const char* words, size_t length) noexcept nogil
cdef void keep(Outbox* box, Packet* packet, Packet* head, uint32_t payer, bint is_note) noexcept nogil
cdef void end_batch(Batch* batch) noexcept nogil
cdef void let_head_go(Head* head) noexcept nogil


cdef inline size_t waiting_count(Outbox* box) noexcept nogil:
    """Return how many packets wait."""
    return box.room.packets


cdef inline void lose(Outbox* box, uint64_t count) noexcept nogil:
    """Count packets that are discarded."""
    box.lost_packets += count
    box.untold += count
    box.totals.lost_packets += count
    if box.account is not NULL:
        box.account.lost_packets += count


cdef inline void forgo(Outbox* box, uint64_t count) noexcept nogil:
    """Discard packets for a client whose outbox is shut to them."""
    box.totals.deliveries += count
    lose(box, count)


cdef inline bint is_below(Outbox* box, uint32_t percent) noexcept nogil:
    """Return whether no more waits than that part of the queue's bounds."""
    return box.room.packets * 100 <= box.room.packets_limit * percent and box.room.bytes * 100 <= box.room.bytes_limit * percent
