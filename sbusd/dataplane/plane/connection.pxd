# One connection as the switch sees it. `new Connection()` sets every field to zero; acceptor.add_connection sets the others.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.vector cimport vector

from sbusd.dataplane.traffic cimport TrafficSums

from sbusd.dataplane.ancillary cimport Passing


cdef enum EndReason:            # the numbers of contract.End
    END_HANGUP = 0
    END_BROKEN = 1
    END_DISCONNECTED = 2
    END_QUEUE_FULL = 3
    END_DESCRIPTORS = 4
    END_FRAME = 5

cdef enum:
    SIGHT_ALL = 2               # contract.Sight.ALL: an owner of the bus
    MILLISECOND_NS = 1000000


cdef cppclass Reading:          # packets that the connection sends
    bint is_open                # False once the peer has shut down its sending side
    bint is_at_end              # the peer has closed; the connection ends once its packets are routed
    bint is_served              # a batch of its packets is being handled; `turn.serve` looks at its end afterwards
    bint is_drained             # nothing is unread in its socket and nothing can come, so it can simply be closed
    Passing passing             # whether descriptors can be among its unread packets
    bint has_descriptors        # they are; the connection ends once the packets before them are routed
    HalfFrame* half             # of a stream: the frame whose end has not come yet; NULL: none
    bint has_fault              # of a stream: a frame of a wrong length comes next; the connection ends once the packets before it are routed
    int resets                  # ECONNRESET in a row
    uint32_t reads              # packets read from its socket at once, a batch is one packet here; of a stream: units of 1 KiB
    Backlog* backlog            # read and not handled yet; NULL: nothing
    bint is_pending             # the backlog can be handled now
    bint waits_for_user         # not read until its user's backlogs are shorter; counted in `blockers`
    bint is_held                # not read until the control plane knows its unit; counted in `blockers`
    bint is_unwatched           # epoll does not watch it meanwhile, because a hangup cannot be masked
    uint32_t blockers           # reasons not to read it: recipients it waits for, waits_for_user and is_held
    uint32_t turn               # the last turn in which it was ready
    uint64_t packets
    uint64_t bytes
    uint64_t refused


cdef cppclass Publishing:       # a publisher that waits for recipients
    bint is_paced               # it asked to wait for slow recipients
    uint32_t recipients         # recipients that it waits for now
    int64_t blocked_ns          # how long it has waited, less the time of the monotonic clock while it waits
    vector[Hold] holds          # for how long recipients of each other user have blocked it


cdef cppclass Blocking:         # a recipient for which publishers wait
    bint of_others              # it may block publishers of other users
    vector[Blocked] publishers  # those that wait
    int64_t blocked_ns          # how long publishers have waited, less the time of the monotonic clock for each that waits now
    int64_t since               # milliseconds of the monotonic clock; -1: no publisher waits
    int64_t progress_at         # milliseconds: when its socket last took something, as far as the switch knows; -1: never looked
    uint64_t progress_mark      # packets delivered at that time
    bint has_fallen_back        # it has blocked publishers for too long, and blocks none until its queue has drained


cdef cppclass Connection


cdef cppclass Member:           # a connection in a queue group
    uint32_t slot               # of its patterns in the router; no connection has it
    Connection* connection
    Group* group
    uint64_t instances          # of patterns that it has joined with
    uint64_t served             # when it last got a message, in numbers of `Routing.served`


cdef cppclass Group:            # connections of one user, of which one gets each message
    string name                 # the uid, in four bytes, and the name
    string head                 # sent before each of its messages
    Account* account            # its user, while that has a member; NULL: unknown
    uint64_t members
    Member* chosen              # of those that the current packet matches; NULL: none
    uint64_t load               # what that one has to read
    bint is_open                # the last packet that it matched was added to the share of a member


cdef struct MemberPlace:
    uint32_t place              # in `BatchShare.packets`
    Member* member


cdef cppclass BatchShare:       # the part of the current batch that goes to the connection
    vector[uint32_t] packets
    vector[MemberPlace] members # those of them that it gets as a member of a group
    uint64_t measured_batch     # the batch in which `load` was measured
    uint64_t load               # bytes that it has not read, and those in its share as a member
    uint64_t closed_batch       # the last batch of which packets were discarded without a look at its queue
    size_t closed_cost          # the lowest cost of such a packet


cdef cppclass Party:            # what the broker has said about the client
    int sight                   # contract.Sight: what it may know about other connections
    uint64_t rules              # bit i: publish rule i applies to it
    bint may_vouch              # it may publish messages in the name of others
    bint may_deliver            # it may publish to one connection alone
    string cred                 # its credentials
    string head_text            # names it as a sender; empty until a recipient wants that
    Head head                   # the same, for outboxes


cdef cppclass Connection:
    uint64_t id
    uint32_t slot
    uint32_t interest           # events that epoll watches
    Outbox out
    Reading reading
    Publishing publishing
    Blocking blocking
    BatchShare share
    ConnectionTime time
    Party party
    Receipt receipt
    bint echo                   # it receives its own messages
    bint wants_senders
    Item* patterns              # each with its number of instances, `avl.Stored`; NULL: none
    uint64_t instances          # of all patterns
    cpp_map[string, Member*]* members   # its groups, by name; NULL: none
    bint is_ending              # it is taken down at the end of this turn, because of `end`
    int end                     # EndReason
    bint is_destroyed           # only patterns in the router are left, and therefore its slot
    bint is_closed              # its socket is closed: once the last pattern is erased, its user has all its quota back
    void* client                # what the control plane keeps about it; NULL: nothing


cdef void add_traffic(TrafficSums* sums, Connection* connection, int64_t now) noexcept nogil
