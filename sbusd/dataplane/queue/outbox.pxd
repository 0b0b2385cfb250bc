# Packets for one client, and the users and batches they belong to. See outbox.pxi.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.deque cimport deque
from libcpp.map cimport map as cpp_map
from libcpp.vector cimport vector

from sbusd.dataplane.libc cimport iovec


cdef enum:
    BATCH_PACKETS = 64      # packets in one recvmmsg(2) or sendmmsg(2)
    BATCH_PARTS = 136       # these, the refusals after them, and one of each packet with its key
    MISSED = 64             # contract.MISSED
    IN_BATCH = 1 << 30      # in `Packet.references`: the batch at hand holds the packet

cdef enum Mode:             # the numbers of SoftMode and HardMode
    MODE_QUEUE = 0
    MODE_DISCARD = 1
    MODE_BLOCK = 2
    MODE_ERROR = 3

cdef enum Waiting:          # why the publisher must wait
    NOT_WAITING = 0
    BLOCKED_BY_MODE = 1
    PACED = 2

cdef enum Sequence:         # the numbers of Order
    ORDER_QUEUE = 0
    ORDER_STACK = 1
    ORDER_RANDOM = 2
    ORDER_LATEST = 3
    ORDER_FAIR = 4

cdef struct Packet:         # its bytes follow in the same allocation
    Totals* totals          # where its memory is counted
    uint32_t references     # how many entries of queues hold it, and IN_BATCH
    uint32_t wire_length    # as in a batch, before the packet: little endian, and therefore last here


cdef struct Entry:
    Packet* packet
    Packet* head            # sent before it, in the same packet; NULL: none
    uint32_t payer          # the uid that is charged for the publisher


ctypedef deque[Entry] Entries   # grows without moving its entries: a vector of a million would be copied in one turn


cdef extern from *:
    """
    #ifndef SBUSD_KNOWN_KEY
    #define SBUSD_KNOWN_KEY
    #include <cstdint>
    #include <cstring>
    #include <functional>
    #include <string_view>
    struct KnownKey {
        uint64_t hash;              // so that keys with a long common prefix are not compared byte by byte
        mutable const char* data;   // of the message in the queue; its key ends with NUL
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


ctypedef cpp_map[KnownKey, uint64_t] Keys   # with the numbers of entries; sorted, because a hash table would grow in one turn


cdef cppclass Line:         # messages of the users that are charged as one in a queue with ORDER_FAIR
    uint32_t uid
    Entries* entries        # in order of arrival; NULL: none
    uint64_t noticed        # lost, as the loss notice says that is the last entry; 0: the last entry is none
    uint64_t unreported       # messages of this user lost after all entries, and not in a notice yet


cdef cppclass Lines:        # the queue with ORDER_FAIR, until the turns of its messages have come. Charged as any queue; a line itself is not,
    cpp_map[uint32_t, Line*] by_uid     # for there are at most as many as users
    deque[Line*] turns      # lines with entries, the one whose turn is next first
    deque[Line*] gaps       # lines with unreported losses
    bint is_closed          # the order has changed: new messages go to `later`
    Entries* later          # sent after all lines; NULL: none


cdef struct Head:           # sent before a packet of a batch, for recipients that asked for it
    iovec part
    Packet* kept            # its shared copy, made for the first queue; NULL: not made


cdef struct Blocked:        # a publisher that waits for a recipient
    uint32_t slot
    uint64_t id             # slots are used again, ids are not
    bint is_paced           # the publisher asked to wait, not the recipient
    uint32_t limited_by     # the uid of another user, whose recipients may block it for a part of each second; NO_USER: no limit
    int64_t since           # nanoseconds of the monotonic clock


cdef cppclass Account:      # a user that is charged: also for the connections of its subordinate ids
    uint32_t uid
    uint64_t connections
    uint32_t groups         # queue groups of its connections
    uint64_t lost_packets
    uint32_t blocked        # its publishers that wait for recipients now
    int64_t blocked_ns      # how long they have waited, less the time of the monotonic clock for each that waits now
    uint32_t blocked_others # waits of publishers for its recipients now
    int64_t blocked_others_ns   # likewise
    Pool room
    uint64_t leaving_bytes  # of abandoned queues, whose memory is not freed yet
    UserTime time
    size_t unread           # bytes of its connections' backlogs
    uint64_t frame_turn     # the last turn that sent frames to its streams,
    uint64_t frame_bytes    # and the bytes of them
    size_t half_read        # memory for frames of its connections whose ends have not come
    vector[Blocked] held_up # its connections that are not read until one of these is less


cdef struct FrameTurn:          # frames that are sent to streams in one turn
    uint64_t number             # of the turn
    uint64_t bytes              # sent so far
    uint64_t user_limit         # for all streams of a user
    bint is_cut_short           # some frames wait for the next turn


cdef struct Totals:         # of all outboxes of a switch; the fields of SwitchCounters
    uint64_t deliveries
    uint64_t delivered_packets
    uint64_t delivered_bytes
    uint64_t queued_packets
    uint64_t queued_bytes
    uint64_t lost_packets
    uint64_t abandoned_packets
    uint64_t delivered_batches  # batches sent,
    uint64_t batched_packets    # and the packets in them
    uint64_t replaced_packets
    uint64_t held_bytes         # memory of all packets in queues, each counted once, and of their entries
    uint64_t held_limit
    uint64_t half_read_bytes    # memory for frames above 4 KiB whose ends have not come
    FrameTurn frames
    Remains* remains            # abandoned queues


cdef struct Remains:            # an abandoned queue, until its memory is freed
    Entries* entries            # NULL: none
    Keys* keys                  # their keys; NULL: none
    Account* account            # the user who is charged until then; NULL: none
    uint32_t uid                # the user of the connection
    Remains* next


cdef struct Tally:              # what happened to one packet of a batch, in connections
    uint32_t handed
    uint32_t queued
    uint32_t discarded
    uint32_t foreign_losses     # discarded for connections of other users than the sender's
    uint32_t missed_count       # connections that it matched and did not reach
    uint64_t missed[MISSED]     # the numbers of the first ones


cdef struct Batch:
    uint32_t uid                # the uid of the sender
    uint32_t payer              # the uid that is charged for it
    bint is_tallied             # a tap or a receipt needs the tallies
    Tally tally[BATCH_PARTS]    # cleared before a packet is routed, if they are needed
    iovec parts[BATCH_PARTS]    # the packets where they were received, each with room for its length before it
    bint has_copies             # some of `kept` may not be NULL
    Packet* kept[BATCH_PARTS]   # the packets' shared copies, made for the first queue; NULL: not made


cdef cppclass Outbox:
    uint64_t connection         # the number of the client
    int fd
    int soft                    # Mode
    int hard                    # Mode
    int order                   # Sequence
    uint32_t batch_bytes        # the longest batch that it gets; 0: it gets none
    bint is_stream              # its socket is of type SOCK_STREAM, and packets are frames there
    Entry rest                  # of a stream: the packet whose frame the socket has taken in part; `packet` is NULL: none
    uint32_t rest_length        # its length, with its head
    uint32_t rest_left          # the last bytes of the frame, which the socket has not taken
    bint is_deferred            # of a stream: it has a queue because the bytes of a turn are limited; its socket has refused none
    bint is_broken              # the peer is gone; packets for it are abandoned
    bint is_failed              # it could not take a packet, and asked to be disconnected then
    int has_blocked             # Waiting: whether the current publisher must wait
    uint32_t uid                # its user; NO_USER until that is known
    Account* account            # the user that is charged; NULL until that is known
    Pool room
    Entries* waiting            # the queue, in order of arrival; NULL: empty
    Entries* notes              # packets of the bus itself that are not queued among messages; NULL: none
    uint64_t taken_out          # how many entries have left the front of `waiting`: the number of the first one there
    Lines* lines                # for ORDER_FAIR: messages after those in `waiting`; NULL: none
    Keys* keys                  # for ORDER_LATEST: the keys of messages in the queue; NULL: none
    uint64_t replaced_packets
    uint64_t unreported_replacements    # replaced, and not reported to the peer yet
    uint64_t delivered_packets
    uint64_t delivered_bytes
    uint64_t lost_packets
    uint64_t unreported_losses  # lost, and not reported to the peer yet
    uint64_t noticed_losses     # reported to the peer, and not to the sink yet
    uint64_t left_packets       # of the abandoned queue, and its bytes
    uint64_t left_bytes
    bint is_parted              # its last words were offered, and only these are in the queue
    Totals* totals
