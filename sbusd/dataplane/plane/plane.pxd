# The state of the compiled switch, on which the functions of its modules work. See plane.pxi.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.deque cimport deque
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from sbusd.dataplane.libc cimport epoll_event, iovec, mmsghdr

cdef enum:
    READY_EVENTS = 64           # connections served in one turn; the kernel reports them in rotation
    PENDING_EVENTS = 64         # connections with a backlog served in one turn
    MESSAGE_REFUSALS = 4        # the first refusals are about messages, and the sink learns them
    REFUSALS = 8

cdef enum Refused:              # the numbers of contract.Refusal
    REFUSED_RESERVED = 0
    REFUSED_KEY_TOO_LONG = 1
    REFUSED_TRUNCATED = 2
    REFUSED_POLICY = 3
    REFUSED_NO_DESCRIPTOR = 4
    REFUSED_QUEUE_FULL = 5
    REFUSED_DESCRIPTORS = 6
    REFUSED_FRAME = 7

cdef enum:                      # kinds of epoll data; a smaller number is the slot of a connection
    LISTENER = 0x100000000
    WATCHED = 0x200000000


cdef struct Bounds:             # from the configuration
    size_t key_bytes
    bint has_secrets            # keys that begin with !/cred/ are secret
    uint64_t queue_packets
    uint64_t queue_bytes
    uint32_t low_water          # percent
    int64_t block_timeout       # milliseconds
    int64_t progress_timeout    # milliseconds
    int64_t pace_limit          # nanoseconds of a second


cdef struct Accepting:
    int spare                   # a descriptor that is closed to accept a connection when no other is free
    bint is_paused              # not even the spare descriptor is left, or too many sockets wait to be closed
    bint may_closer_be_full     # the closer has got a socket since it was last seen to have few
    int64_t resume_at           # nanoseconds: when to accept again at the latest
    int refusing                # the listener whose new connections refuse descriptors from the start; -1: not known
    int limit                   # connections accepted in the last turn that accepted any, at most
    uint64_t turn               # the number of that turn
    uint64_t accepted
    uint64_t failures


cdef cppclass Repeated:         # consecutive packets of a batch with one key, which have the same recipients
    int first                   # the first packet; -1: none
    size_t cost                 # what it costs in a queue
    vector[uint32_t] recipients # slots with a share of it,
    vector[uint32_t] members    # slots of members whose group chooses again for each packet,
    vector[uint32_t] excluded   # and slots for which it was discarded
    uint64_t uncounted          # later packets that are not yet counted as lost for `excluded`


cdef cppclass Routing:          # the batch that is being routed
    uint64_t number             # counts deliveries of batches from 1
    int64_t time                # nanoseconds that walks and recipients cost, by estimate
    int64_t control_time        # nanoseconds in the control plane
    bint is_cut_off             # the rest is for the next turn
    bint was_blocked            # the publisher was, when its batch was read
    size_t undelivered          # bytes of a paced publisher that are routed and not delivered
    bint meets_queue            # a recipient of those has a queue
    bint is_secret              # those have a secret key
    vector[pair[uint64_t, uint32_t]] touched    # ids and slots of connections with a share
    uint64_t served             # counts packets that members of groups got
    vector[Group*] groups       # those that the current packet matched
    Repeated repeated
    uint64_t refused[REFUSALS]
    size_t refused_first[REFUSALS]


cdef struct Counted:            # see contract.SwitchCounters
    uint64_t received_packets
    uint64_t received_bytes
    uint64_t messages
    uint64_t undeliverable
    uint64_t refused_packets
    uint64_t subscriptions
    uint64_t blocks
    uint64_t fallbacks
    uint64_t redelivered


cdef class Plane:
    cdef object sink
    cdef ClientSink clients                     # the same sink, for its calls about clients
    cdef object closer                          # closes sockets that this thread must not close
    cdef dict watched                           # callbacks by descriptor
    cdef list listeners
    cdef set stream_listeners                   # those of type SOCK_STREAM
    cdef tuple refusals                         # packets by contract.Refusal,
    cdef string refusal_texts                   # and again with room for a length before each; parts of `batch` point here
    cdef vector[string] keyed_refusals          # of packets of the batch, with room for a length; the last parts of `batch` point here
    cdef vector[string] rule_refusals           # by publish rule; empty: that of REFUSED_POLICY
    cdef Router router
    cdef Taps taps
    cdef Stalls stalls                          # measures the turns; None: nothing does
    cdef bint is_measured                       # stalls is not None
    cdef int epoll
    cdef bint has_event                         # this turn has seen a watched descriptor or a signal, so `run` returns
    cdef bint must_return                       # `return_soon` was called
    cdef Bounds bounds
    cdef Accepting accepting
    cdef Schedule schedule
    cdef Routing routing
    cdef Counted counted
    cdef Totals totals
    cdef char* buffer                           # packets are received here
    cdef bint is_buffer_large                   # large packets have committed pages of the buffer
    cdef mmsghdr inbound[BATCH_PACKETS]
    cdef iovec rooms[BATCH_PACKETS]             # places in the buffer
    cdef Intake intake                          # packets of the current batch
    cdef Batch batch
    cdef Vouching vouching
    cdef DirectMessages direct
    cdef epoll_event ready[READY_EVENTS + PENDING_EVENTS]
    cdef vector[Connection*] slots              # NULL where free
    cdef vector[uint32_t] free_slots
    cdef vector[Member*] members                # by slot; NULL where a connection or nothing is
    cdef unordered_map[string, Group*] groups   # by name
    cdef unordered_map[uint64_t, Connection*] by_id
    cdef uint64_t next_id
    cdef unordered_map[uint32_t, Account*] accounts
    cdef uint64_t allowing_rules                # bit i: publish rule i allows
    cdef cpp_map[uint64_t, uint32_t] pending    # ids and slots of connections whose backlog can be handled
    cdef uint64_t last_pending                  # the id of the last of them that was served
    cdef vector[uint32_t] blocking              # slots of recipients for which publishers wait
    cdef int64_t release_at                     # nanoseconds: no wait caused by another user is over before
    cdef vector[uint32_t] informed              # slots that were sent a loss notice in this turn
    cdef deque[uint32_t] ending                 # slots of connections that have ended
    cdef deque[uint32_t] destroyed              # slots of those that are only erased from the router
    cdef unordered_map[uint64_t, uint32_t] unclosed     # those whose socket is not closed yet, by id


cdef Connection* find(Plane plane, uint64_t number) except NULL
