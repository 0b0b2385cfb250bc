# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
# Longer than 500 lines, for one reason: a cdef class stands in one file, and its C state must not be reachable from others.
"""The compiled switch: what `sbusd.dataplane.contract` promises, with system calls in batches. Source: recvmmsg(2), sendmmsg(2), epoll(7).

A MSG never touches the interpreter: everything between `receive` and `deliver` is declared ``nogil``, and the compiler refuses
Python there. A readable connection is read with one recvmmsg(2) into a buffer that is committed page by page as packets need
it; each packet is routed, which only notes its number in the share of each recipient; then each recipient gets its share with
one sendmmsg(2), straight from that buffer. Connections are taken down at the end of a turn, so no pointer dies within one.
"""

from cython.operator cimport dereference, preincrement
from libc.errno cimport EAGAIN, EBUSY, ECONNRESET, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, strlen
from libcpp.algorithm cimport sort
from libcpp.deque cimport deque
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from sbusd.dataplane.ancillary cimport REFUSED, Passing, hang_up, receive_checked, refuse_passing, waiting_descriptors
from sbusd.dataplane.avl cimport Item, first, item_behind, text_of
from sbusd.dataplane.heads cimport append_sender
from sbusd.dataplane.intake cimport (
    BATCH_LENGTH_BYTES, Backlog, Intake, new_backlog, packets_of, put_back, record_bytes, resume, store, take,
)
from sbusd.dataplane.libc cimport *
from sbusd.dataplane.latest cimport replaceable_from, restore_keys, set_order
from sbusd.dataplane.outbox cimport (
    BATCH_PACKETS, MODE_BLOCK, NOT_WAITING, PACED, Account, Batch, Blocked, Entries, Entry, Head, Outbox, Packet, Tally, Totals, abandon, assign,
    bytes_in, clear, end_batch, flush, forgo, is_below, is_shut, keep, let_head_go, miss, offer, open_outbox, part, post, post_for, waiting_count,
)
from sbusd.dataplane.packets cimport cost_of, data_of, new_packet, release, release_remains
from sbusd.dataplane.pacing cimport NEVER_NS, PACED_BYTES, SECOND_NS, SLOTS, Hold, add_hold, begin_hold, end_hold, hold_of, is_crowded, spent_until
from sbusd.dataplane.pools cimport NOBODY
from sbusd.dataplane.receipts cimport Disclosure, Receipt, answer, arm
from sbusd.dataplane.stalls cimport (
    ACCEPTING, BLOCKS, BUFFER, ENDING, ERASING, INTERPRETER, LOSSES, PACKETS, REFUSALS as RECORDING_REFUSALS, Stalls,
)
from sbusd.dataplane.subscriptions cimport Stored, free_stored, instances_of, remove_stored, store_instance
from sbusd.dataplane.taps cimport Taps
from sbusd.dataplane.router cimport Route, Router

import os

from sbusd.dataplane.blocking import NAMED_WAITS, UserWaits, Wait, Waits
from sbusd.dataplane.closer import Closer
from sbusd.dataplane.contract import (
    ConnectionCounters, End, MAX_PUBLISH_RULES, Refusal, Sight, SwitchCounters, UNREAD_BYTES, UserCounters,
)
from sbusd.dataplane.connection_state import ConnectionProgress, ConnectionSettings, Queue, SwitchTotals
from sbusd.protocol.keys import SECRET_HEAD, KeySpace
from sbusd.protocol.limits import MAX_BATCH_BYTES, MAX_PACKET_BYTES

cdef enum:
    READY_EVENTS = 64           # connections served in one turn; the kernel hands them out round robin
    PENDING_EVENTS = 64         # and so many of those that go on with what they sent before
    ACCEPTS_PER_TURN = 16       # so that a flood of connects cannot keep traffic waiting
    REFUSALS = 7
    MESSAGE_REFUSALS = 4        # the first of them are about messages, and reported
    PAUSE_MS = 1000             # how long no connect is accepted when there is no descriptor even to turn one away
    RELEASE_MS = 100            # for how long nothing comes until what large packets took is given back: at each short pause it would cost
                                # more than the packets, whose pages would be faulted in anew (64 KiB: 19.7 us of CPU, without that 12.3)
    # Packets start at other cache lines of their page each: at the same one, 64 of them would fight for 8 places in the cache.
    SLOT_STAGGER = 192
    SLOT_HEAD = 16              # in front of each, of which its length in a batch takes the last four; where a line of the cache may begin
    SEND_BUFFER = 212992        # the kernel doubles it: enough for the largest packet; capped by net.core.wmem_max, socket(7)
    # What a packet costs beside its delivery, in nanoseconds, measured: a node of the trie, and a byte received and sent on.
    NODE_NS = 40
    QUARTERS_NS_PER_BYTE = 2    # in quarters
    SHARE_NS = 500              # to hand one packet to one recipient, beside its bytes
    FORGO_NS = 5                # to look at one recipient, and perhaps discard the packet for it
    MILLISECOND_NS = 1000000
    LOOKED_AT = 1000            # waits that are looked at to name those of one publisher
    ROUTING_TURNS = 10          # of turn_time; so long a batch may take to route, by estimate, before what is left waits for the next turn
    PENALTY = 4                 # who has taken more than its share of time gives way for so many times as long
    MAX_PENALTY_MS = 100
    MAX_USER_PENALTY_MS = 1000  # of a user with all connections, after a costly batch
    RECENT_NS = 1000000         # who was served within so long is about to come again: a costly packet would make him wait
    TURN_SHARES = 4             # of turn_time; so long a user's connections are served one after another until it is looked who else is there
    COMPANY_NS = 100000000      # within so long after another user was served there is somebody to be held up
    RELEASED_PACKETS = 256      # so many are freed until it is looked whether the time is over
    GIVEN_TURNS = 1             # for who gives way to nobody: somebody may be about to come, and looking costs a microsecond
    LARGE_BYTES = 65536         # packets from this size on make it worth giving the buffer's pages back
    KEPT_HEAP_BYTES = 8388608   # so much freed memory is kept for the next packets
    MAPPED_BYTES = 1048576      # blocks from this size on have pages of their own: no packet, which would be faulted in each time

cdef uint64_t LISTENER = <uint64_t>1 << 32      # kinds of epoll data; below them, a connection's slot
cdef uint64_t WATCHED = <uint64_t>2 << 32

cdef size_t PACKET_BYTES = MAX_PACKET_BYTES
cdef size_t SLOT_BYTES = MAX_PACKET_BYTES + SLOT_STAGGER
cdef uint32_t BATCH_BYTES = MAX_BATCH_BYTES
cdef size_t BACKLOG_BYTES = UNREAD_BYTES
cdef bytes _SECRET_HEAD = SECRET_HEAD
cdef const char* SECRET_HEAD_TEXT = _SECRET_HEAD
cdef size_t SECRET_HEAD_BYTES = len(_SECRET_HEAD)
cdef int KEY_TOO_LONG = Refusal.KEY_TOO_LONG
cdef int TRUNCATED = Refusal.TRUNCATED
cdef int POLICY = Refusal.POLICY
cdef int NO_DESCRIPTOR = Refusal.NO_DESCRIPTOR
cdef tuple _ENDS = tuple(End)         # by their numbers
cdef object _new_tuple = tuple.__new__      # without the function of Python's around it
cdef int SIGHT_ALL = Sight.ALL     # an owner, who could do worse to the bus anyway
cdef int HANGUP = End.HANGUP, BROKEN = End.BROKEN, DISCONNECTED = End.DISCONNECTED
cdef int QUEUE_FULL = End.QUEUE_FULL, DESCRIPTORS = End.DESCRIPTORS


cdef cppclass Connection:
    Outbox out
    uint64_t id
    uint32_t slot
    uint32_t interest           # what epoll watches it for
    bint echo
    bint is_reading             # False once the peer has shut down its sending side
    bint is_at_end              # the peer has closed; taken down once what it sent before is routed
    bint is_drained             # nothing is unread in its socket, and nothing can come any more: it is simply closed
    Passing passing             # whether descriptors can be among its unread packets
    bint has_descriptors        # they are; ended once what it sent before is routed
    bint is_ending              # to be taken down at the end of this turn, as `end`
    bint is_buried              # it has been; what is left are patterns in the router, and so its slot
    bint is_closed              # its socket is: when the last pattern is erased, its user has everything back
    int end
    int resets                  # ECONNRESET in a row
    bint blocks_others          # it may block publishers of other users
    int sight                   # what it may know of others: a Sight
    uint64_t rules              # bit i: publish rule i is about it
    uint32_t batch_limit        # packets handled of it in a turn
    uint32_t reads              # packets read from its socket at once; batches are packets here
    Backlog* backlog            # what was read and is not handled yet; NULL: nothing
    bint is_pending             # it can go on with that
    bint is_held_up             # not read until its user's backlogs are shorter; counted in `blockers`
    bint is_unwatched           # epoll does not watch it meanwhile, for it has hung up, which cannot be masked
    uint32_t turn               # the last in which it was ready
    int64_t gives_way_until     # nanoseconds of the monotonic clock: until then, others go first
    bint is_costly              # its last batch took too long for what its packets are, not for how many they were
    uint32_t blockers           # reasons not to read it: recipients that it waits for, and being held up
    uint32_t waits              # of those, recipients
    int64_t blocked_ns          # how long it waited for any, less the time of the monotonic clock while it does
    int64_t blocked_others_ns   # how long publishers waited for it, less that time once for each that does
    vector[Blocked] blocked     # publishers that wait for it
    int64_t blocking_since      # milliseconds of the monotonic clock; -1: it blocks nobody
    int64_t progress_at         # the same: when its socket took anything last, as far as that was looked at; -1: nobody has waited for it yet
    uint64_t progress_mark      # what it had been delivered then
    bint is_paced               # it waits for slow recipients
    vector[Hold] holds          # for how long those of other users have held it up
    bint has_fallen_back        # it has blocked publishers for too long, and blocks none until its queue has drained
    vector[uint32_t] share      # packets of the batch at hand that go to it
    uint64_t shut_batch         # the last batch of which packets were discarded for it at once,
    size_t shut_cost            # and the least that one of those costs
    Receipt receipt
    string cred                 # its credentials, as it is told them itself
    string head_text            # what names it as a sender; empty until somebody wants that
    Head head                   # the same, for outboxes
    bint wants_senders
    Item* patterns              # each with how many instances are stored, see `subscriptions`; NULL: none
    uint64_t instances          # of all of them
    uint64_t received_packets
    uint64_t received_bytes
    uint64_t refused_packets


cdef int64_t now_ns() noexcept nogil:
    """Return the monotonic clock in nanoseconds."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef int64_t now_ms() noexcept nogil:
    """Return the monotonic clock, some milliseconds coarse."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef bint may_go_on(Outbox* box, uint32_t payer, bint is_paced, uint32_t low_water) noexcept nogil:
    """Return whether enough has drained for a publisher that waits."""
    if waiting_count(box) == 0:
        return True
    if box.soft == MODE_BLOCK:
        return False
    return not is_crowded(box, payer, 0, 0) if is_paced else is_below(box, low_water)


cdef class Switch:
    """The compiled data plane; see `sbusd.dataplane.contract.Switch` for every method."""

    kind = "compiled"

    cdef object sink
    cdef Router router
    cdef Taps taps
    cdef dict watched                           # callbacks by descriptor
    cdef list listeners
    cdef tuple refusals
    cdef string words                           # the same, each with room for its length in front of it; the batch's last parts point here
    cdef int epoll
    cdef int spare                              # a descriptor to give up when there is none left to accept with
    cdef bint is_paused                         # no accepting: even the spare descriptor is gone, or too many sockets wait to be closed
    cdef int64_t resume_at                      # nanoseconds: when accepting is tried again, whatever else happens
    cdef char* buffer
    cdef bint is_buffer_large                   # large packets have committed pages of the buffer
    cdef mmsghdr inbound[BATCH_PACKETS]
    cdef iovec rooms[BATCH_PACKETS]             # where packets are received
    cdef Intake intake                          # of the batch at hand
    cdef Batch batch
    cdef epoll_event ready[READY_EVENTS + PENDING_EVENTS]
    cdef vector[Connection*] slots              # NULL where free
    cdef vector[uint32_t] free_slots
    cdef unordered_map[uint64_t, Connection*] by_id
    cdef vector[pair[uint64_t, uint32_t]] touched   # numbers and slots of those with a share of the batch at hand
    cdef deque[uint32_t] ending
    cdef deque[uint32_t] buried                 # slots of those with patterns that are still to be erased
    cdef dict unerased                          # the same, by number
    cdef unordered_map[uint32_t, Account*] accounts
    cdef vector[uint32_t] blocking              # slots that block someone
    cdef cpp_map[uint64_t, uint32_t] pending    # numbers and slots of those who go on without anything new from their sockets
    cdef uint64_t last_pending                  # the number of the last of them that was let go on
    cdef uint64_t allowing_rules                # bit i: publish rule i allows
    cdef object closer                          # of sockets that this thread must not close
    cdef int words_of_end[5]                    # of ends that the switch decides on: their numbers among the refusals
    cdef bint is_cut_short                      # the last turn was too long for all that was ready
    cdef uint32_t users_readable                # users of whom anything can be read in this turn
    cdef int64_t clock                          # nanoseconds: when what was served last ended
    cdef Account* served_account                # whose packets were read last
    cdef int64_t served_at, other_at            # when those were, and when another user's before
    cdef bint is_disturbed                      # `run` is to return after this turn, in which a descriptor or signal was seen
    cdef bint is_asked                          # the same, by `return_soon`
    cdef int64_t turn_time                      # nanoseconds that one connection may take before it gives way
    cdef uint64_t control_time                  # nanoseconds in the control plane, of the batch at hand
    cdef int64_t routing_time                   # nanoseconds that walks and recipients of the batch at hand cost, by estimate
    cdef bint is_cut_off                        # the batch at hand ends early, for its time or a recipient: the rest is for the next turn
    cdef int64_t block_timeout                  # milliseconds
    cdef int64_t progress_timeout               # milliseconds
    cdef uint64_t blocks, fallbacks
    cdef int64_t pace_limit                     # nanoseconds of a second
    cdef int64_t release_at                     # nanoseconds: when the first wait that another user causes is over, or before that
    cdef size_t undelivered                     # bytes that are routed and not delivered, of a paced publisher
    cdef bint meets_queue                       # something waits for a recipient of those
    cdef bint was_blocked                       # the publisher at hand, when its batch was taken
    cdef bint is_secret                         # what is delivered has a secret key
    cdef uint64_t delivered_batch               # counts what was delivered
    cdef int first_alike                        # the first of a run of packets of the batch with one key, -1 for none; its recipients
    cdef vector[uint32_t] open_to, shut_to      # with a share of it, and those for whom it was discarded;
    cdef size_t alike_cost                      # what it costs at them,
    cdef uint64_t alike                         # and how many have come since that are not accounted for at the latter
    cdef uint32_t low_water                     # percent
    cdef vector[uint32_t] informed              # slots that were told of a loss in this turn
    cdef uint64_t refused[REFUSALS]             # of the batch at hand
    cdef size_t refused_first[REFUSALS]
    cdef int accepts                            # connects taken at most in the last turn that had any
    cdef uint64_t accepted_turn                 # and its number
    cdef uint64_t next_id
    cdef Totals totals
    cdef size_t key_bytes
    cdef bint has_secrets                       # keys that begin with !/cred/ are secret
    cdef uint32_t batch_packets
    cdef uint64_t queue_packets, queue_bytes
    cdef uint64_t accepted, accept_failures, received_packets, received_bytes, messages, undeliverable, refused_packets, subscriptions, turns
    cdef uint64_t received_batches
    cdef Stalls stalls                          # measures the turns; None: they are not measured
    cdef bint is_measured                       # it is not None

    def __cinit__(self, sink, keyspace, limits, refusals):
        self.epoll = self.spare = -1
        self.buffer = NULL
        self.unerased = {}

    def __init__(self, sink, keyspace, limits, tuple refusals):
        cdef int i
        # What was freed into fast bins is merged all at once by whichever large allocation comes next: 9 to 18 ms after the end of a
        # connection with many patterns. Source: mallopt(3), malloc_consolidate in glibc.
        mallopt(M_MXFAST, 0)
        # Else what a queue drains is given back to the kernel 128 KiB at a time, and faulted in again for the next packets.
        mallopt(M_TRIM_THRESHOLD, KEPT_HEAP_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        self.sink = sink
        self.router = Router(keyspace, limits.cache_bytes)
        self.taps = Taps(KeySpace(keyspace.separator, is_guarded=False), limits.cache_bytes)
        self.watched = {}
        self.listeners = []
        self.refusals = refusals
        self.key_bytes = limits.key_bytes
        self.has_secrets = bool(keyspace.namespaces)
        self.batch_packets = min(limits.batch_packets, <int>BATCH_PACKETS)
        self.queue_packets = limits.queue_packets
        self.queue_bytes = limits.queue_bytes
        self.totals.held_limit = limits.queued_memory
        self.block_timeout = round(limits.block_timeout * 1000)
        self.progress_timeout = round(limits.progress_timeout * 1000)
        self.pace_limit = round(limits.pace_limit * 1e9)
        self.delivered_batch = 1    # connections begin with 0
        self.first_alike = -1
        self.low_water = limits.low_water
        self.turn_time = round(limits.turn_time * 1e9)
        for end in (End.QUEUE_FULL, End.DESCRIPTORS):
            self.words_of_end[<int>end] = Refusal[end.name]
        self.next_id = 1
        self.accepts = 1
        self.release_at = NEVER_NS
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.spare = open(b"/dev/null", O_RDONLY | O_CLOEXEC)
        self.buffer = <char*>mmap(NULL, SLOT_BYTES * BATCH_PACKETS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if self.epoll < 0 or self.spare < 0 or self.buffer == MAP_FAILED:
            raise OSError(errno, f"the switch cannot start: {os.strerror(errno)}")
        # A huge page would commit five slots for one byte in one of them.
        madvise(self.buffer, SLOT_BYTES * BATCH_PACKETS, MADV_NOHUGEPAGE)
        for i in range(BATCH_PACKETS):
            self.rooms[i].iov_base = self.buffer + i * SLOT_BYTES + SLOT_HEAD
            self.rooms[i].iov_len = PACKET_BYTES
            self.inbound[i].msg_hdr.msg_iov = &self.rooms[i]
            self.inbound[i].msg_hdr.msg_iovlen = 1
        self.intake.parts = self.batch.parts
        self.place_words()
        self.closer = Closer()
        try:
            self.watch(self.closer.fileno(), self.report_closed)
        except OSError:
            self.watched.clear()        # a cycle: the switch would keep its descriptors until the next collection of garbage
            self.closer.close()
            raise

    cdef void place_words(self):
        """Put the bus's own words where they can be sent in a batch too."""
        cdef size_t place = 0, i
        self.words = b"".join([bytes(BATCH_LENGTH_BYTES) + words for words in self.refusals])
        for i in range(REFUSALS):
            self.batch.parts[BATCH_PACKETS + i].iov_base = <char*>self.words.data() + place + BATCH_LENGTH_BYTES
            self.batch.parts[BATCH_PACKETS + i].iov_len = len(self.refusals[i])
            place += BATCH_LENGTH_BYTES + len(self.refusals[i])

    def __dealloc__(self):
        if self.buffer is not NULL and self.buffer != MAP_FAILED:
            munmap(self.buffer, SLOT_BYTES * BATCH_PACKETS)
        # Open still where the switch could not start, or was not closed.
        if self.epoll >= 0:
            close(self.epoll)
        if self.spare >= 0:
            close(self.spare)

    # -- descriptors

    def listen(self, int fd):
        """Accept connections from the listening socket *fd*."""
        self.listeners.append(fd)
        refuse_passing(fd, False)       # the sockets of those who connect from now on have the option from the start
        self.control_epoll(EPOLL_CTL_ADD, fd, EPOLLIN, LISTENER | <uint64_t>fd)

    def watch(self, int fd, callback):
        """Call *callback* in each turn in which *fd* is readable."""
        self.watched[fd] = callback
        self.control_epoll(EPOLL_CTL_ADD, fd, EPOLLIN, WATCHED | <uint64_t>fd)

    def unwatch(self, int fd):
        """Stop watching *fd*."""
        del self.watched[fd]
        self.control_epoll(EPOLL_CTL_DEL, fd, 0, 0)

    cdef int control_epoll(self, int operation, int fd, uint32_t interest, uint64_t data) except -1:
        """Call epoll_ctl(2)."""
        cdef epoll_event event
        event.events = interest
        event.data.u64 = data
        if epoll_ctl(self.epoll, operation, fd, &event) < 0:
            raise OSError(errno, f"epoll_ctl: {os.strerror(errno)}")
        return 0

    def adopt(self, int fd, uint64_t connection):
        """Take over the connected socket *fd* as number *connection*."""
        self.enter(fd, connection, False)

    cdef int enter(self, int fd, uint64_t connection, bint is_new) except -1:
        """Take over a connected socket, which *is_new* if it was just accepted."""
        cdef Connection* fresh
        cdef uint32_t slot
        cdef int size = SEND_BUFFER
        if self.by_id.count(connection):
            raise ValueError(f"connection {connection} exists")
        slot = self.free_slots.back() if self.free_slots.size() else self.slots.size()
        self.control_epoll(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP, slot)
        # Best effort: with a smaller wmem_max the largest packets are lost to this client, which it is told.
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size))
        fresh = new Connection()
        open_outbox(&fresh.out, connection, fd, &self.totals, self.queue_packets, self.queue_bytes)
        fresh.id = connection
        fresh.slot = slot
        fresh.interest = EPOLLIN | EPOLLRDHUP
        fresh.receipt.is_armed = fresh.wants_senders = False
        fresh.receipt.disclosure = Disclosure.UNDECIDED
        fresh.head.kept = NULL
        fresh.echo = fresh.is_reading = True
        fresh.is_ending = fresh.is_at_end = fresh.has_descriptors = fresh.is_buried = fresh.is_closed = fresh.is_drained = False
        fresh.patterns = NULL
        fresh.instances = 0
        fresh.passing = refuse_passing(fd, is_new)
        # The process before may have looked at a packet of no bytes, which the next look then passes over: nothing is taken out any more.
        fresh.has_descriptors = not is_new and fresh.passing != REFUSED and waiting_descriptors(fd) > 0
        fresh.resets = 0
        fresh.blocks_others = False
        fresh.sight = 0
        fresh.rules = 0
        fresh.batch_limit = self.batch_packets
        fresh.reads = BATCH_PACKETS
        fresh.backlog = NULL
        fresh.is_pending = fresh.is_held_up = fresh.is_unwatched = False
        fresh.turn = 0
        fresh.gives_way_until = 0
        fresh.is_costly = False
        fresh.blockers = fresh.waits = 0
        fresh.blocked_ns = fresh.blocked_others_ns = 0
        fresh.shut_batch = fresh.shut_cost = 0
        fresh.blocking_since = fresh.progress_at = -1
        fresh.progress_mark = 0
        fresh.has_fallen_back = fresh.is_paced = False
        fresh.received_packets = fresh.received_bytes = fresh.refused_packets = 0
        if self.free_slots.size():
            self.free_slots.pop_back()
            self.slots[slot] = fresh
        else:
            self.slots.push_back(fresh)
        self.by_id[connection] = fresh
        self.next_id = max(self.next_id, connection + 1)
        return 0

    cdef int accept_some(self, int listener) except -1:
        """Accept what waits at a listener, a bounded number of times and for about turn_time: a connection costs more than a message."""
        cdef int fd, i
        cdef uint64_t connection
        cdef int64_t end = now_ns() + self.turn_time
        if self.closer.is_crowded:
            # Of those that are refused no quota counts the descriptors, and peers can send faster what sleeps than threads can close it.
            return self.pause(EBUSY)
        # One at first: to look for a second connect costs as much as another turn. A flood doubles the number each turn.
        self.accepts = min(self.accepts * 2, <int>ACCEPTS_PER_TURN) if self.accepted_turn + 1 >= self.turns else 1
        self.accepted_turn = self.turns
        for i in range(self.accepts):
            fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)
            if fd >= 0:
                connection = self.next_id
                try:
                    self.enter(fd, connection, True)
                except OSError as error:
                    self.turn_away(fd, error.errno)
                    continue
                self.accepted += 1
                self.sink.connected(connection, fd)
            elif errno == EMFILE or errno == ENFILE:
                self.accept_with_spare(listener, errno)
            elif errno == ENOBUFS or errno == ENOMEM:
                self.pause(errno)
            elif errno == EAGAIN:
                break
            # Anything else is the fate of that one connection, accept(2): the next may be fine.
            if self.is_paused or now_ns() > end:
                break
        return 0

    cdef int accept_with_spare(self, int listener, int failure) except -1:
        """Give up the spare descriptor to accept a peer and tell it that there is none for it; else it would wait for ever."""
        cdef int fd
        if self.spare < 0:
            return self.pause(failure)
        close(self.spare)
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)
        if fd >= 0:
            self.turn_away(fd, failure)
        self.spare = open(b"/dev/null", O_RDONLY | O_CLOEXEC)
        if self.spare < 0:
            self.pause(errno)
        return 0

    cdef int turn_away(self, int fd, int failure) except -1:
        """Tell a peer that it cannot be served, and close."""
        cdef bytes words = self.refusals[NO_DESCRIPTOR]
        send(fd, <const char*>words, len(words), MSG_DONTWAIT | MSG_NOSIGNAL)
        self.end_socket(fd, refuse_passing(fd, True), 0)
        self.accept_failures += 1
        self.sink.accept_failed(failure)
        return 0

    cdef int pause(self, int failure) except -1:
        """Stop accepting until a connection ends or some time has passed: the listener stays readable, and would spin."""
        self.is_paused = True
        self.resume_at = now_ns() + <int64_t>PAUSE_MS * 1000000
        self.accept_failures += 1
        self.watch_listeners(0)
        self.sink.accept_failed(failure)
        return 0

    cdef int resume(self) except -1 with gil:
        """Accept again."""
        if self.spare < 0:
            self.spare = open(b"/dev/null", O_RDONLY | O_CLOEXEC)
        self.is_paused = not self.watch_listeners(EPOLLIN)
        # Connects have piled up meanwhile: to take one at first would leave who is not the cause of the pause behind those who are.
        self.accepts = ACCEPTS_PER_TURN
        self.accepted_turn = self.turns
        return 0

    cdef bint watch_listeners(self, uint32_t interest) except -1:
        """Tell epoll what to watch the listeners for; return whether it does."""
        cdef epoll_event event
        cdef bint is_done = True
        for fd in self.listeners:
            event.events = interest
            event.data.u64 = LISTENER | <uint64_t>fd
            is_done = epoll_ctl(self.epoll, EPOLL_CTL_MOD, fd, &event) == 0 and is_done
        return is_done

    # -- turns

    def measure(self, Stalls stalls):
        """Let *stalls* measure every turn from now on."""
        self.stalls = stalls
        self.is_measured = True

    cdef int sleep(self, int timeout_ms) noexcept nogil:
        """Call epoll_wait(2), and return what it does."""
        cdef int count, failure
        if not self.is_measured:
            return epoll_wait(self.epoll, self.ready, READY_EVENTS, timeout_ms)
        self.stalls.end_turn()
        count = epoll_wait(self.epoll, self.ready, READY_EVENTS, timeout_ms)
        failure = errno
        self.stalls.begin_turn()
        set_errno(failure)
        return count

    def turn(self, int timeout_ms):
        """Wait for readiness, handle what is ready, and return how many descriptors were; at least 1 while there is more to do."""
        cdef int count
        with nogil:
            count = self.take_turn(timeout_ms)
        self.is_asked = False
        is_done = self.ending.empty() and self.buried.empty() and self.totals.remains is NULL
        return count if is_done else max(1, count)

    def run(self, int timeout_ms):
        """Take turns until a signal or a watched descriptor was seen, `return_soon` was called, or the time is over."""
        cdef int64_t end = now_ns() + <int64_t>timeout_ms * 1000000
        cdef int left = 0 if self.is_asked else timeout_ms
        with nogil:
            self.is_disturbed = False
            while True:
                self.take_turn(left)
                if timeout_ms >= 0:
                    left = <int>((end - self.clock + 999999) // 1000000)
                if self.is_disturbed or self.is_asked or (timeout_ms >= 0 and left <= 0):
                    break
        self.is_asked = False

    def return_soon(self):
        """Let `run` return after this turn, or after the next if none is under way."""
        self.is_asked = True

    cdef int take_turn(self, int timeout_ms) except -1 nogil:
        """Take one turn, with the interpreter's lock only for what is not traffic."""
        cdef int count, i, n, start, giving_way = 0, served = 0
        cdef int64_t end
        cdef uint64_t data
        if self.is_paused and (timeout_ms < 0 or timeout_ms > PAUSE_MS):
            timeout_ms = PAUSE_MS
        count = self.wait(self.until_deadline(timeout_ms) if self.is_idle() else 0)
        self.clock = now_ns()
        if count < 0:
            self.is_disturbed = True
            if errno == EINTR:
                return 0
            with gil:
                raise OSError(errno, f"epoll_wait: {os.strerror(errno)}")
        if self.is_paused and (count == 0 or self.clock >= self.resume_at):
            self.resume()
        self.turns += 1
        count = self.add_pending(count)
        self.count_readable(count)
        end = self.clock + TURN_SHARES * self.turn_time
        # After a turn that was too long another is the first each time: epoll names them in the same order again.
        start = <int>(self.turns % <uint64_t>count) if self.is_cut_short and count else 0
        self.is_cut_short = False
        for n in range(count):
            i = (n + start) % count
            data = self.ready[i].data.u64
            if data >= LISTENER:
                self.serve_other(data)
                self.clock = now_ns()       # what strangers cost must not be laid at the door of who is served next
            elif self.gives_way(self.slots[data]) or self.must_stop(self.slots[data], end):
                # It is not read now; what waits for it goes out all the same.
                giving_way += 1
                if self.ready[i].events & EPOLLOUT:
                    flush(&self.slots[data].out)
                    self.settle(self.slots[data])
            else:
                self.serve(self.slots[data], self.ready[i].events)
                served += 1
                if self.is_measured:
                    self.stalls.end_step(PACKETS)
        if giving_way and not served:
            self.serve_giving_way(count)
        if self.is_measured:
            self.stalls.end_step(PACKETS)
        self.end_blocks()
        if self.is_measured:
            self.stalls.end_step(BLOCKS)
        if self.informed.size():
            self.report_losses()
            if self.is_measured:
                self.stalls.end_step(LOSSES)
        self.take_down_some()
        return count

    cdef bint is_idle(self) noexcept nogil:
        """Return whether nothing is left to do but what descriptors bring."""
        return self.pending.empty() and self.ending.empty() and self.buried.empty() and self.totals.remains is NULL

    cdef int take_down_some(self) except -1 nogil:
        """Take down connections that have ended, the first first, erase their patterns, and free what waited for them, each for
        turn_time at most: many may end in one turn, and of one as much can be left as its user's quotas allow."""
        cdef int64_t end
        if self.ending.size():
            end = now_ns() + self.turn_time
            while self.ending.size():
                self.bury()
                if self.buried.size() == 1:
                    self.erase_some(end)
                if self.is_measured:
                    self.stalls.end_step(ENDING)
                if now_ns() > end:
                    break
        if self.buried.size():
            self.erase_some(now_ns() + self.turn_time)
            if self.is_measured:
                self.stalls.end_step(ERASING)
        if self.totals.remains is not NULL:
            self.release_some(now_ns() + self.turn_time)
            if self.is_measured:
                self.stalls.end_step(ENDING)
        return 0

    def take_down(self):
        """Take down all connections that have ended."""
        while self.ending.size():
            self.bury()

    cdef void release_some(self, int64_t end) noexcept nogil:
        """Free what waited in queues that were given up, some of it at least, until the time is *end*; 0: all."""
        cdef Account* account
        while self.totals.remains is not NULL:
            account = release_remains(&self.totals, RELEASED_PACKETS)
            if account is not NULL:
                self.forget_user(account)
            if end and now_ns() > end:
                break

    cdef int wait(self, int timeout_ms) noexcept nogil:
        """Wait for readiness, and give back meanwhile what large packets took; return what epoll_wait(2) does."""
        cdef int count, idle
        if self.is_buffer_large and timeout_ms != 0:
            idle = RELEASE_MS if timeout_ms < 0 or timeout_ms > RELEASE_MS else timeout_ms
            count = self.sleep(idle)
            if count != 0:
                return count
            self.release_buffer()
            if self.is_measured:
                self.stalls.end_step(BUFFER)
            timeout_ms -= idle if timeout_ms > 0 else 0
        return self.sleep(timeout_ms)

    cdef int serve_other(self, uint64_t data) except -1 with gil:
        """Handle the readiness of what is not a connection."""
        self.is_disturbed = self.is_disturbed or data >= WATCHED
        if self.is_measured:
            self.stalls.end_step(INTERPRETER)
        if data & LISTENER:
            self.accept_some(<int>(data & 0xFFFFFFFF))
            if self.is_measured:
                self.stalls.end_step(ACCEPTING)
        # A callback may have ended the watch of another descriptor that was ready too.
        elif (callback := self.watched.get(<int>(data & 0xFFFFFFFF))) is not None:
            callback()
            if self.is_measured:
                self.stalls.note("callback " + getattr(callback, "__qualname__", type(callback).__name__))
        return 0

    cdef int add_pending(self, int count) noexcept nogil:
        """Add to what is ready those who go on with what they sent before; return how many that makes."""
        cdef int i
        cdef Connection* connection
        cdef cpp_map[uint64_t, uint32_t].iterator each
        if self.pending.empty():
            return count
        for i in range(count):
            if self.ready[i].data.u64 < LISTENER:
                self.slots[self.ready[i].data.u64].turn = <uint32_t>self.turns
        # The oldest first; where they are too many for one turn, those behind the last ones.
        each = self.pending.begin() if self.pending.size() <= PENDING_EVENTS else self.pending.upper_bound(self.last_pending)
        for i in range(min(<int>self.pending.size(), <int>PENDING_EVENTS)):
            if each == self.pending.end():
                each = self.pending.begin()
            self.last_pending = dereference(each).first
            connection = self.slots[dereference(each).second]
            preincrement(each)
            if connection.turn != <uint32_t>self.turns:
                self.ready[count].events = EPOLLIN
                self.ready[count].data.u64 = connection.slot
                count += 1
        return count

    cdef bint gives_way(self, Connection* connection) noexcept nogil:
        """Return whether a connection, or its user, has taken so much that others go first."""
        cdef Account* account = connection.out.account
        return connection.gives_way_until > self.clock or (account is not NULL and account.gives_way_until > self.clock)

    cdef int serve_giving_way(self, int count) except -1 nogil:
        """Serve those who give way, for nobody else has anything to do: for a moment only, since somebody may have meanwhile."""
        cdef int64_t end = self.clock + GIVEN_TURNS * self.turn_time
        cdef int i
        cdef uint64_t data
        for i in range(count):
            # Each time another is the first: epoll names them in the same order again, and who comes last may not be reached.
            data = self.ready[(i + self.turns) % count].data.u64
            if data < LISTENER and not self.is_held(self.slots[data]):
                self.serve(self.slots[data], self.ready[(i + self.turns) % count].events)
                if self.clock > end:
                    break
        return 0

    cdef bint must_stop(self, Connection* connection, int64_t end) noexcept nogil:
        """Return whether the turn has gone on past its *end* and the connection's user was served in it already, and note it if so.

        Many connections of a user have the bus's time together for as long as nobody else is ready; but somebody who gets ready
        meanwhile must not wait for all of them.
        """
        cdef Account* account = connection.out.account
        if self.clock <= end or account is NULL or account.served_turn != self.turns:
            return False
        self.is_cut_short = True
        return True

    cdef bint is_held(self, Connection* connection) noexcept nogil:
        """Return whether a connection that gives way is not even served while nobody else is ready, and note that it was if not.

        A packet cannot be interrupted: served in the moment in which another user works on what he has just got, one that takes
        200 microseconds costs him as many, again and again. So time stands still for it instead, while others come and go.
        """
        cdef Account* account = connection.out.account
        if not connection.is_costly or account is NULL or not self.gives_way(connection):
            return False
        return self.since_other(account) < RECENT_NS

    cdef int64_t since_other(self, Account* account) noexcept nogil:
        """Return for how many nanoseconds no user but that of *account* has been served."""
        return self.clock - (self.other_at if account is self.served_account else self.served_at)

    cdef void note_served(self, Account* account) noexcept nogil:
        """Remember when which user was served last, and when another than that."""
        if account is not NULL:
            account.served_turn = self.turns
        if account is not self.served_account:
            self.other_at = self.served_at
            self.served_account = account
        self.served_at = self.clock

    cdef void count_readable(self, int count) noexcept nogil:
        """Count of whom anything can be read in this turn, and of how many connections of each."""
        cdef int i
        cdef Account* account
        self.users_readable = 0
        for i in range(count):
            if self.ready[i].data.u64 >= LISTENER or not self.ready[i].events & EPOLLIN:
                continue
            account = self.slots[self.ready[i].data.u64].out.account
            if account is NULL or account.turn != self.turns:
                self.users_readable += 1
                if account is not NULL:
                    account.turn = self.turns
                    account.readable = 0
            if account is not NULL:
                account.readable += 1

    cdef uint32_t batch_of(self, Connection* connection) noexcept nogil:
        """Return how many packets are read from a connection now: those of one user share a batch while others wait, or the user
        with most connections would have most of the bus."""
        cdef Account* account = connection.out.account
        if self.users_readable < 2 or account is NULL or account.turn != self.turns:
            return connection.batch_limit
        return max(<uint32_t>1, min(connection.batch_limit, self.batch_packets // max(<uint32_t>1, account.readable)))

    cdef int release_buffer(self) noexcept nogil:
        """Give the receive buffer's pages back: a burst of large packets must not stay in memory for ever."""
        self.is_buffer_large = False
        madvise(self.buffer, SLOT_BYTES * BATCH_PACKETS, MADV_DONTNEED)
        return 0

    cdef int serve(self, Connection* connection, uint32_t events) except -1 nogil:
        """Handle one connection's readiness."""
        cdef size_t count, i = 0
        cdef uint64_t walked, received
        if connection.is_ending:
            return 0
        if events & EPOLLOUT:
            flush(&connection.out)
            self.settle(connection)
        # Who waits for a recipient is not read, unless it has hung up: then what is left is bounded, and it must be seen to have gone.
        if connection.blockers and not events & (EPOLLHUP | EPOLLERR):
            return 0
        if connection.backlog is not NULL or (connection.is_reading and events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)):
            if connection.backlog is NULL and connection.has_descriptors:
                self.dismiss(connection, DESCRIPTORS)
                return 0
            if connection.backlog is NULL and self.must_wait(connection, events):
                return 0
            walked, received = self.router.visited, self.received_bytes
            self.control_time = 0
            self.routing_time = 0
            self.is_cut_off = False
            self.was_blocked = connection.blockers != 0
            count = self.receive(connection, events)
            if count and not connection.is_ending:
                i = self.route(connection, 0, count)
                if self.is_measured:
                    self.stalls.end_step(PACKETS)
                if i < count and not self.is_cut_off:
                    i = self.obey(connection, i, count)
            if self.refused[0] or self.refused[1] or self.refused[2] or self.refused[3]:
                self.report_refusals(connection)
                if self.is_measured:
                    self.stalls.end_step(RECORDING_REFUSALS)
            if i < count and not connection.is_ending:
                self.keep_unhandled(connection, i)
                count = i
            self.assess(
                connection,
                count,
                (self.router.visited - walked) * NODE_NS,
                (self.received_bytes - received) * QUARTERS_NS_PER_BYTE // 4 + self.control_time,
            )
            self.settle_backlog(connection)
            if connection.is_at_end and connection.backlog is NULL:
                self.finish(connection, HANGUP)
        elif not connection.is_reading and events & (EPOLLHUP | EPOLLERR):
            self.finish(connection, HANGUP)
        return 0

    cdef ssize_t obey(self, Connection* connection, size_t i, size_t count) except -1 with gil:
        """Hand the *i*-th packet of a batch to the control plane, and go on with those behind it until the time is over: one costly
        question may stand in front of 63 others. Return the number of the first packet that is not handled."""
        cdef int64_t started
        cdef bytes packet
        if self.is_measured:
            self.stalls.end_step(INTERPRETER)
        while i < count:
            started = now_ns()
            packet = self.inbound_bytes(i)
            if connection.receipt.disclosure == Disclosure.ASKED:
                self.decide_receipt(connection, i)
            else:
                self.sink.control(connection.id, packet)
                i += 1
            self.control_time += now_ns() - started
            if self.is_measured:
                self.stalls.note_control(packet)
            if connection.is_ending or self.control_time > <uint64_t>self.turn_time:
                break
            i = self.route(connection, i, count)
            if self.is_measured:
                self.stalls.end_step(PACKETS)
            if self.is_cut_off:
                break
        return i

    cdef int decide_receipt(self, Connection* connection, size_t i) except -1:
        """Ask the control plane whether the sender of the *i*-th packet, a MSG to a secret key, may know what its receipt says."""
        cdef bytes key = self.inbound_bytes(i)[4:].partition(b"\0")[0]
        connection.receipt.disclosure = Disclosure.WITHHELD
        if self.sink.may_know_recipients(connection.id, key):
            connection.receipt.disclosure = Disclosure.TOLD
        return 0

    cdef void assess(self, Connection* connection, size_t count, uint64_t walk_cost, uint64_t own_cost) noexcept nogil:
        """Let a connection that costs much be read in smaller batches, and give way to others after a long one.

        What its batch of *count* packets took beside deliveries, which larger batches make cheaper, in nanoseconds: *walk_cost* for
        patterns, which may be other users', and *own_cost* for its packets' bytes and its questions, which nobody else chose.
        """
        cdef uint64_t cost = walk_cost + own_cost
        cdef int64_t now = now_ns(), taken = now - self.clock, penalty
        cdef uint32_t limit = self.batch_packets
        self.clock = now
        if count and cost > <uint64_t>self.turn_time:
            limit = max(<uint32_t>1, <uint32_t>(count * <uint64_t>self.turn_time // cost))
        if self.is_cut_off and self.routing_time > ROUTING_TURNS * self.turn_time:
            # What is put back is copied. A paced publisher that waits puts back too, but is not what takes long.
            limit = max(<uint32_t>1, min(limit, <uint32_t>count))
        # It grows again by doubling, so that an expensive batch behind a cheap one does not pay.
        connection.batch_limit = min(limit, min(connection.batch_limit * 2, self.batch_packets))
        connection.gives_way_until = 0
        connection.is_costly = cost > <uint64_t>self.turn_time
        if count:
            self.note_served(connection.out.account)
        if taken > self.turn_time:
            connection.gives_way_until = now + min(taken * PENALTY, <int64_t>MAX_PENALTY_MS * 1000000)
        if own_cost > <uint64_t>self.turn_time and connection.sight < SIGHT_ALL and connection.out.account is not NULL:
            # A user who asks, or sends huge packets, by many connections would else have a turn's time for each. An estimate is not
            # believed beyond the time that was taken.
            penalty = min(min(<int64_t>own_cost, taken) * PENALTY, <int64_t>MAX_USER_PENALTY_MS * 1000000)
            connection.out.account.gives_way_until = max(connection.out.account.gives_way_until, now + penalty)

    cdef bytes inbound_bytes(self, size_t index):
        """Return a copy of a received packet."""
        return (<char*>self.batch.parts[index].iov_base)[:self.batch.parts[index].iov_len]

    cdef size_t receive(self, Connection* connection, uint32_t events) noexcept nogil:
        """Take the batch of packets that is handled now: of the backlog, else from the socket; return how many they are."""
        cdef size_t i
        cdef uint64_t length = 0
        cdef int unread = 0
        self.intake.count = self.intake.offset = 0
        self.intake.limit = self.batch_of(connection)
        if connection.backlog is NULL:
            if events & (EPOLLHUP | EPOLLRDHUP) and ioctl(connection.out.fd, FIONREAD, &unread) == 0 and unread == 0:
                if events & EPOLLHUP and connection.passing == REFUSED:
                    # The kernel has said it before: neither side of the peer's is open, so nothing has come since.
                    connection.is_at_end = connection.is_drained = True
                    return 0
                self.intake.limit = 1       # recvmmsg(2) would find the end of the stream as often as there is room for packets
            self.read(connection, events)
        else:
            resume(connection.backlog, &self.intake)
        for i in range(self.intake.count):
            length += self.batch.parts[i].iov_len
        connection.received_bytes += length
        self.received_bytes += length
        connection.received_packets += self.intake.count
        self.received_packets += self.intake.count
        return self.intake.count

    cdef void read(self, Connection* connection, uint32_t events) noexcept nogil:
        """Take what the socket has, and keep what is more than is handled now: batches hold as many packets as their sender likes."""
        cdef int count, i = 0, taken = 0
        cdef size_t before
        # Looked at after each packet: who sends large ones fills the socket again while it is read, and 64 of them are milliseconds.
        # Without others nobody is held up by that, and the look would cost a round trip more than a hundredth.
        cdef timespec span
        span.tv_sec = self.turn_time // 1000000000
        span.tv_nsec = self.turn_time % 1000000000
        cdef timespec* limit = &span if self.since_other(connection.out.account) < COMPANY_NS else NULL
        cdef uint32_t most = min(<uint32_t>self.intake.limit, connection.reads)
        if connection.passing == REFUSED:
            count = recvmmsg(connection.out.fd, self.inbound, most, MSG_DONTWAIT, limit)
        else:
            count = receive_checked(connection.out.fd, self.inbound, most, limit, &connection.passing, &connection.has_descriptors)
        if count == -2:
            self.finish(connection, BROKEN)
            return
        if count < 0:
            self.receive_failed(connection)
            return
        connection.resets = 0
        for i in range(count):
            if self.inbound[i].msg_len == 0 and self.at_end(connection, events):
                count = i
                break
            if self.inbound[i].msg_len >= LARGE_BYTES:
                self.is_buffer_large = True
        while taken < count and self.intake.count < self.intake.limit:
            before = self.intake.count
            if not take(&self.intake, <char*>self.rooms[taken].iov_base, self.inbound[taken].msg_len,
                        self.inbound[taken].msg_hdr.msg_flags & MSG_TRUNC):
                break
            taken += 1
        # Who sends batches is read in small bites, or most of what is read would be copied to be kept.
        if taken < count:
            connection.reads = 1
            self.keep_rest(connection, taken, count)
        else:
            connection.reads = min(connection.reads * 2, <uint32_t>BATCH_PACKETS)

    cdef void keep_rest(self, Connection* connection, int first, int count) noexcept nogil:
        """Keep what was received and is not handled now."""
        cdef size_t size = 0, offset = self.intake.offset
        cdef int i
        for i in range(first, count):
            size += record_bytes(<char*>self.rooms[i].iov_base, self.inbound[i].msg_len, offset if i == first else 0)
        connection.backlog = new_backlog(size)
        if connection.backlog is NULL:
            self.finish(connection, BROKEN)     # what it sent cannot be kept: better no connection than one with a gap that nobody knows of
            return
        for i in range(first, count):
            store(connection.backlog, <char*>self.rooms[i].iov_base, self.inbound[i].msg_len,
                  self.inbound[i].msg_hdr.msg_flags & MSG_TRUNC, offset if i == first else 0)
        self.open_backlog(connection)

    cdef void keep_unhandled(self, Connection* connection, size_t first) noexcept nogil:
        """Keep the packets of the batch at hand from *first* on, as if they had not been received yet, in front of what is kept already."""
        cdef Backlog* kept = put_back(&self.intake, first, connection.backlog)
        cdef size_t i
        cdef uint64_t length = 0
        if kept is NULL:
            self.finish(connection, BROKEN)     # as in keep_rest
            return
        for i in range(first, self.intake.count):
            length += self.batch.parts[i].iov_len
        connection.received_bytes -= length
        self.received_bytes -= length
        connection.received_packets -= self.intake.count - first
        self.received_packets -= self.intake.count - first
        connection.backlog = kept
        if connection.out.account is not NULL:
            connection.out.account.unread += kept.size
        # What is handled behind it would else stay until all is: who is paced puts back again and again.
        while kept.next is not NULL and kept.next.place == kept.next.size:
            kept.next = self.end_piece(connection, kept.next)

    cdef void open_backlog(self, Connection* connection) noexcept nogil:
        """Go to the start of a backlog, and count it."""
        connection.backlog.place = 0
        if connection.out.account is not NULL:
            connection.out.account.unread += connection.backlog.size

    cdef void settle_backlog(self, Connection* connection) noexcept nogil:
        """After some of a backlog was handled: end it if that was all, or if nobody will go on with it."""
        while connection.backlog is not NULL and (connection.backlog.place == connection.backlog.size or connection.is_ending):
            connection.backlog = self.end_piece(connection, connection.backlog)
        self.note_pending(connection)

    cdef Backlog* end_piece(self, Connection* connection, Backlog* ended) noexcept nogil:
        """Free a piece of a connection's backlog, and return what comes behind it."""
        cdef Account* account = connection.out.account
        cdef Backlog* following = ended.next
        if account is not NULL:
            account.unread -= ended.size
        free(ended)
        if account is not NULL and account.held_up.size() and account.unread < BACKLOG_BYTES:
            self.let_read(account)
        return following

    cdef void note_pending(self, Connection* connection) noexcept nogil:
        """Note whether a connection has a backlog with which it can go on."""
        cdef bint can_go_on = connection.backlog is not NULL and connection.blockers == 0
        if can_go_on == connection.is_pending:
            return
        connection.is_pending = can_go_on
        if can_go_on:
            self.pending[connection.id] = connection.slot
        else:
            self.pending.erase(connection.id)

    cdef bint must_wait(self, Connection* connection, uint32_t events) noexcept nogil:
        """Return whether a connection is not read now, for other connections of its user hold as much unhandled as a user may."""
        cdef Account* account = connection.out.account
        cdef Blocked entry
        if account is NULL or account.unread < BACKLOG_BYTES:
            return False
        if not connection.is_held_up:
            entry.slot = connection.slot
            entry.id = connection.id
            account.held_up.push_back(entry)
            connection.is_held_up = True
            connection.blockers += 1
            if not self.set_interest(connection):
                self.finish(connection, BROKEN)
        if events & (EPOLLHUP | EPOLLERR):
            # epoll reports these whatever it is asked for, so the loop would never sleep.
            connection.is_unwatched = epoll_ctl(self.epoll, EPOLL_CTL_DEL, connection.out.fd, NULL) == 0
        return True

    cdef void let_read(self, Account* account) noexcept nogil:
        """Let a user's connections be read again."""
        cdef vector[Blocked] freed
        cdef Connection* connection
        cdef size_t i
        freed.swap(account.held_up)
        for i in range(freed.size()):
            connection = self.slots[freed[i].slot]
            if connection is not NULL and connection.id == freed[i].id:
                connection.is_held_up = False
                if connection.is_unwatched and not connection.is_ending and not self.set_interest(connection):
                    self.finish(connection, BROKEN)
                self.let_go_on(connection)

    cdef void let_go_on(self, Connection* publisher) noexcept nogil:
        """Take away one of the reasons not to read a connection."""
        publisher.blockers -= 1
        if publisher.blockers == 0 and not publisher.is_ending:
            if not self.set_interest(publisher):
                self.finish(publisher, BROKEN)
            self.note_pending(publisher)

    cdef void receive_failed(self, Connection* connection) noexcept nogil:
        """Settle an error of recvmmsg(2)."""
        if errno == EAGAIN or errno == EINTR or errno == ENOBUFS or errno == ENOMEM:
            return
        # A peer that closed before it had read everything leaves ECONNRESET in front of the packets that it sent: they come next.
        connection.resets += 1
        if errno != ECONNRESET or connection.resets > 2:
            self.finish(connection, BROKEN)

    cdef bint at_end(self, Connection* connection, uint32_t events) noexcept nogil:
        """Settle a read of nothing: the end of the stream, unless it is a packet of no bytes, for which False is returned."""
        cdef pollfd state
        state.fd = connection.out.fd
        state.events = POLLRDHUP
        state.revents = 0
        if not events & EPOLLHUP:
            while poll(&state, 1, 0) < 0:
                if errno != EINTR:
                    connection.is_at_end = True     # it cannot be told from the end, which would come again and again
                    return True
            if not state.revents:
                return False
            events = state.revents
        if events & EPOLLHUP or connection.out.is_broken:
            connection.is_at_end = True
        else:
            connection.is_reading = False
            connection.is_at_end = not self.set_interest(connection)
        return True

    cdef size_t route(self, Connection* sender, size_t i, size_t count) noexcept nogil:
        """Route packets from the *i*-th on and hand them over.

        Return the number of the first that is for the control plane, or of whose receipt the control plane has to decide, or that
        is to be kept for the next turn, because those before it took so long: then `is_cut_off` is set.
        """
        cdef const char* packet
        cdef const char* end
        cdef size_t length
        cdef uint64_t visited
        cdef uint32_t shares
        cdef Route found
        while i < count:
            packet = <const char*>self.batch.parts[i].iov_base
            length = self.batch.parts[i].iov_len
            if self.taps.count or sender.receipt.is_armed:
                clear(&self.batch.tally[i])
            if self.intake.is_cut[i]:
                self.refuse(sender, TRUNCATED, i)
                if sender.receipt.is_armed and memcmp(packet, b"MSG ", 4) == 0:
                    self.acknowledge(sender, i)
                i += 1
                continue
            if length < 5 or memcmp(packet, b"MSG ", 4) != 0:
                break
            end = <const char*>memchr(packet + 4, 0, length - 4)
            if end is NULL:
                break
            if <size_t>(end - packet) - 4 > self.key_bytes:
                self.refuse(sender, KEY_TOO_LONG, i)
            else:
                visited = self.router.visited
                found = self.router.route(packet + 4, end - packet - 4)
                self.routing_time += <int64_t>(self.router.visited - visited) * NODE_NS
                if found.refusal >= 0:
                    self.refuse(sender, found.refusal, i)
                elif self.is_denied(sender, found.rules) or self.is_denied(sender, found.inner_rules):
                    self.refuse(sender, POLICY, i)
                else:
                    if self.is_undecided(sender, packet + 4, end - packet - 4):
                        sender.receipt.disclosure = Disclosure.ASKED
                        break
                    if sender.is_paced and self.is_secret_key(packet + 4, end - packet - 4):
                        self.deliver(sender)
                        self.is_secret = True   # it is delivered apart from others: see may_pace
                    shares = self.share_out(sender, found, i)
                    self.routing_time += found.count * <int64_t>FORGO_NS + shares * <int64_t>(SHARE_NS + length * QUARTERS_NS_PER_BYTE // 4)
                    if self.taps.count:
                        self.taps.note(packet + 4, end - packet - 4, i, &self.batch)
            if sender.receipt.is_armed:
                self.acknowledge(sender, i)
            i += 1
            if sender.is_paced:
                # What its slow recipients are offered at once must fit: so it waits behind the packet that fills a queue.
                self.undelivered += length
                if self.meets_queue or self.is_secret or self.undelivered > PACED_BYTES:
                    self.deliver(sender)
                self.is_secret = False
                if sender.blockers and not self.was_blocked:
                    self.is_cut_off = True
                    break
            if self.routing_time > ROUTING_TURNS * self.turn_time:
                self.is_cut_off = True
                break
        self.deliver(sender)
        return i

    cdef void acknowledge(self, Connection* sender, size_t index) noexcept nogil:
        """Hand over what has been routed up to a packet of which its sender wants to know, and tell it."""
        cdef Tally* tally = &self.batch.tally[index]
        self.batch.is_tallied = True
        self.deliver(sender)
        if sender.is_ending:
            sender.receipt.is_armed = False
            return
        # Whether another user's queue is full is a secret: else who fills it by a secret key learns whether that has a subscriber.
        answer(&sender.receipt, &sender.out, tally.handed + tally.queued + (0 if sender.sight >= SIGHT_ALL else tally.foreign_losses))
        self.settle(sender)

    cdef bint is_undecided(self, Connection* sender, const char* key, size_t length) noexcept nogil:
        """Return whether a sender wants a receipt for a message to a secret key, and the control plane has not decided yet."""
        return (sender.receipt.is_armed and sender.receipt.disclosure == Disclosure.UNDECIDED
                and self.is_secret_key(key, length))

    cdef bint is_secret_key(self, const char* key, size_t length) noexcept nogil:
        """Return whether who gets a message with a key is a part of a secret."""
        return self.has_secrets and length >= SECRET_HEAD_BYTES and memcmp(key, SECRET_HEAD_TEXT, SECRET_HEAD_BYTES) == 0

    cdef bint is_denied(self, Connection* sender, uint64_t rules) noexcept nogil:
        """Return whether the first publish rule that is about both the sender and the key denies."""
        cdef uint64_t both = sender.rules & rules
        return both != 0 and (both & (~both + 1) & self.allowing_rules) == 0

    cdef uint32_t share_out(self, Connection* sender, Route found, uint32_t index) noexcept nogil:
        """Note a packet in the share of each of its recipients, and return of how many."""
        cdef uint32_t n, uid = self.uid_of(sender)
        cdef bint reached = False
        cdef Connection* recipient
        # Who wants to know what becomes of each packet is told, and who waits for recipients looks at each.
        cdef bint may_forgo = not (self.taps.count or sender.receipt.is_armed or sender.is_paced)
        cdef size_t cost = cost_of(self.batch.parts[index].iov_len, 0)
        self.messages += 1
        if may_forgo and self.is_alike(index, cost):
            for n in range(self.open_to.size()):
                self.give(self.slots[self.open_to[n]], index)
            self.alike += 1
            self.undeliverable += self.open_to.empty() and self.shut_to.empty()
            return <uint32_t>self.open_to.size()
        self.end_alike()
        for n in range(found.count):
            recipient = self.slots[found.slots[n]]
            if recipient.is_ending or (recipient is sender and not sender.echo):
                if self.taps.count:
                    miss(&self.batch.tally[index], recipient.id)
                continue
            reached = True
            if sender.is_paced and recipient is not sender and waiting_count(&recipient.out):
                self.meets_queue = True
            if may_forgo and recipient.share.empty() and waiting_count(&recipient.out) and self.is_shut_to(recipient, uid, cost):
                forgo(&recipient.out, 1)
                self.shut_to.push_back(recipient.slot)
                continue
            self.give(recipient, index)
            self.open_to.push_back(recipient.slot)
        self.undeliverable += not reached
        self.first_alike = <int>index if may_forgo else -1
        self.alike_cost = cost
        return <uint32_t>self.open_to.size()

    cdef void give(self, Connection* recipient, uint32_t index) noexcept nogil:
        """Note a packet in the share of a recipient."""
        if recipient.share.empty():
            self.touch(recipient)
        recipient.share.push_back(index)

    cdef bint is_alike(self, uint32_t index, size_t cost) noexcept nogil:
        """Return whether a packet goes to the same recipients as the last one that was shared out, by its key, and costs no less."""
        cdef const char* packet = <const char*>self.batch.parts[index].iov_base
        cdef const char* first
        cdef size_t length
        if self.first_alike < 0 or cost < self.alike_cost:
            return False
        first = <const char*>self.batch.parts[self.first_alike].iov_base
        length = strlen(first) + 1
        return self.batch.parts[index].iov_len >= length and memcmp(packet, first, length) == 0

    cdef void end_alike(self) noexcept nogil:
        """Account for the packets that were discarded because they are like the first of them."""
        cdef size_t i
        if self.alike:
            for i in range(self.shut_to.size()):
                forgo(&self.slots[self.shut_to[i]].out, self.alike)
        self.alike = 0
        self.first_alike = -1
        self.open_to.clear()
        self.shut_to.clear()

    cdef bint is_shut_to(self, Connection* recipient, uint32_t uid, size_t cost) noexcept nogil:
        """Return whether packets of the batch at hand that cost so much or more are discarded for a recipient, while it has no share of it.

        Its outbox is asked once for most batches: what else is delivered meanwhile cannot give it room.
        """
        if recipient.shut_batch == self.delivered_batch and cost >= recipient.shut_cost:
            return True
        if not is_shut(&recipient.out, uid, cost):
            return False
        recipient.shut_batch = self.delivered_batch
        recipient.shut_cost = cost
        return True

    cdef void touch(self, Connection* recipient) noexcept nogil:
        """Note that a connection has a share of the batch at hand."""
        cdef pair[uint64_t, uint32_t] entry
        entry.first = recipient.id
        entry.second = recipient.slot
        self.touched.push_back(entry)

    cdef void refuse(self, Connection* sender, int refusal, size_t index) noexcept nogil:
        """Count a packet that is not routed, and put the words for it into the sender's share, in their place."""
        self.end_alike()    # what its sender lost so far stands in front of this
        if self.refused[refusal] == 0:
            self.refused_first[refusal] = index
        self.refused[refusal] += 1
        sender.refused_packets += 1
        self.refused_packets += 1
        if sender.share.empty():
            self.touch(sender)
        sender.share.push_back(<uint32_t>BATCH_PACKETS + refusal)

    cdef void deliver(self, Connection* sender) noexcept nogil:
        """Hand each recipient its share of the batch."""
        cdef size_t i
        cdef Connection* recipient
        cdef uint32_t uid = self.uid_of(sender)
        self.end_alike()
        self.batch.payer = uid
        self.undelivered = 0
        self.meets_queue = False
        if self.touched.size() > 1:
            # The oldest first: what a user has left of its room must not go to whom the trie happens to name first.
            sort(self.touched.begin(), self.touched.end())
        for i in range(self.touched.size()):
            recipient = self.slots[self.touched[i].second]
            offer(&recipient.out, &self.batch, recipient.share.data(), recipient.share.size(),
                  uid != NOBODY and not recipient.has_fallen_back and (recipient.blocks_others or uid == self.uid_of(recipient)),
                  sender.is_paced and self.may_pace(sender, recipient),
                  self.name_of(sender) if recipient.wants_senders else <Head*>NULL, 0)
            recipient.share.clear()
            if recipient.out.has_blocked != NOT_WAITING:
                self.block(recipient, sender, recipient.out.has_blocked == PACED)
                recipient.out.has_blocked = NOT_WAITING
            self.settle(recipient)
        if sender.head.kept is not NULL:
            let_head_go(&sender.head)
        self.batch.is_tallied = False
        if self.taps.noted.size():
            self.taps.deliver(&self.batch, sender.id, sender.cred)
            self.settle_taps()
        end_batch(&self.batch)
        self.touched.clear()
        self.delivered_batch += 1

    cdef Head* name_of(self, Connection* sender) noexcept nogil:
        """Return what goes in front of messages for those who want to know their sender."""
        if sender.head_text.empty():
            append_sender(sender.head_text, sender.id, sender.cred)
            sender.head.part.iov_base = <void*>sender.head_text.data()
            sender.head.part.iov_len = sender.head_text.size()
        return &sender.head

    cdef void settle_taps(self) noexcept nogil:
        """Settle those who were told as taps."""
        cdef size_t i
        for i in range(self.taps.touched.size()):
            self.settle(self.slots[self.taps.touched[i].second])
        self.taps.touched.clear()

    cdef uint32_t uid_of(self, Connection* connection) noexcept nogil:
        """Return whose a connection is."""
        return NOBODY if connection.out.account is NULL else connection.out.account.uid

    # -- blocking

    cdef bint may_pace(self, Connection* publisher, Connection* recipient) noexcept nogil:
        """Return whether a paced publisher waits for a recipient: for those of another user only for a part of each second."""
        cdef uint32_t uid = self.uid_of(recipient)
        cdef Hold* hold
        if recipient.has_fallen_back or uid == NOBODY or self.uid_of(publisher) == NOBODY:
            return False
        if uid == self.uid_of(publisher):
            return True
        if self.is_secret and publisher.sight < SIGHT_ALL:
            return False    # that it waits would tell it that the key has a subscriber
        if self.pace_limit >= SECOND_NS:
            return True
        hold = hold_of(&publisher.holds, uid)
        return self.pace_limit > 0 if hold is NULL else spent_until(hold, now_ns()) < self.pace_limit

    cdef Connection* waiting_publisher(self, Blocked entry) noexcept nogil:
        """Return the publisher that waits, or NULL if it has ended."""
        cdef Connection* publisher = self.slots[entry.slot]
        # One that is buried has its slot until its patterns are erased, and is nobody's.
        return publisher if publisher is not NULL and publisher.id == entry.id and not publisher.is_buried else NULL

    cdef Hold* limit_of(self, Blocked entry) noexcept nogil:
        """Return what bounds a wait, which another user causes; NULL: nothing does, or the publisher has ended."""
        cdef Connection* publisher
        if entry.limited_by == NOBODY:
            return NULL
        publisher = self.waiting_publisher(entry)
        if publisher is NULL:
            return NULL
        return hold_of(&publisher.holds, entry.limited_by)

    cdef void block(self, Connection* recipient, Connection* publisher, bint is_paced) noexcept nogil:
        """Let a publisher wait until a recipient has drained."""
        cdef Blocked entry
        cdef size_t i
        for i in range(recipient.blocked.size()):
            if recipient.blocked[i].slot == publisher.slot and recipient.blocked[i].id == publisher.id:
                return
        entry.slot = publisher.slot
        entry.id = publisher.id
        entry.is_paced = is_paced
        self.begin_wait(recipient, publisher, entry)
        if recipient.blocking_since < 0:
            recipient.blocking_since = now_ms()
            self.blocking.push_back(recipient.slot)
            if recipient.progress_at < 0 or recipient.progress_mark != recipient.out.delivered_packets:
                self.note_progress(recipient)
        self.blocks += 1
        publisher.blockers += 1
        if not self.set_interest(publisher):
            self.finish(publisher, BROKEN)
        self.note_pending(publisher)

    cdef void begin_wait(self, Connection* recipient, Connection* publisher, Blocked entry) noexcept nogil:
        """Note that a publisher begins to wait for a recipient."""
        cdef int64_t now = now_ns()
        cdef Account* account = recipient.out.account
        cdef Hold* hold
        entry.since = now
        # It is remembered, for a connection that ends is nobody's before its waits are over.
        entry.limited_by = self.uid_of(recipient) if entry.is_paced and self.uid_of(recipient) != self.uid_of(publisher) else NOBODY
        recipient.blocked.push_back(entry)
        if entry.limited_by != NOBODY:
            hold = add_hold(&publisher.holds, entry.limited_by, now)
            begin_hold(hold, self.pace_limit, now)
            self.release_at = min(self.release_at, hold.until)
        recipient.blocked_others_ns -= now
        if account is not NULL:
            account.blocked_others += 1
            account.blocked_others_ns -= now
        publisher.waits += 1
        account = publisher.out.account
        if publisher.waits == 1:
            publisher.blocked_ns -= now
            if account is not NULL:
                account.blocked += 1
                account.blocked_ns -= now

    cdef void end_wait(self, Connection* recipient, Connection* publisher) noexcept nogil:
        """Note that a publisher, NULL for one that has ended, waits for a recipient no more."""
        cdef int64_t now = now_ns()
        cdef Account* account = recipient.out.account
        recipient.blocked_others_ns += now
        if account is not NULL:
            account.blocked_others -= 1
            account.blocked_others_ns += now
        if publisher is not NULL and publisher.waits:
            publisher.waits -= 1
            if publisher.waits == 0:
                self.end_waiting(publisher)

    cdef void end_waiting(self, Connection* publisher) noexcept nogil:
        """Note that a publisher waits for no recipient any more."""
        cdef int64_t now = now_ns()
        cdef Account* account = publisher.out.account
        publisher.waits = 0
        publisher.blocked_ns += now
        if account is not NULL:
            account.blocked -= 1
            account.blocked_ns += now

    cdef void settle_blocks(self, Connection* recipient) noexcept nogil:
        """Note whether a recipient's socket has taken anything, and let go on who waits for it when its queue has drained."""
        cdef bint has_moved = recipient.out.delivered_packets != recipient.progress_mark
        if has_moved and not recipient.has_fallen_back:
            self.note_progress(recipient)
        if has_moved and is_below(&recipient.out, 0 if recipient.out.soft == MODE_BLOCK else self.low_water):
            recipient.has_fallen_back = False
        if recipient.blocking_since >= 0:
            self.let_drained_go(recipient)

    cdef void let_drained_go(self, Connection* recipient) noexcept nogil:
        """Let those go on for whom a recipient's queue has drained enough."""
        cdef size_t i = 0
        cdef Connection* publisher
        while i < recipient.blocked.size():
            publisher = self.waiting_publisher(recipient.blocked[i])
            if publisher is NULL or may_go_on(&recipient.out, self.uid_of(publisher), recipient.blocked[i].is_paced, self.low_water):
                self.unblock_one(recipient, i)
            else:
                i += 1

    cdef void let_held_go(self, Connection* recipient) noexcept nogil:
        """Let paced publishers go on that the recipient's user has held up for as long as it may, and note when the next one does."""
        cdef size_t i = 0
        cdef Hold* hold
        cdef int64_t now = now_ns()
        while i < recipient.blocked.size():
            hold = self.limit_of(recipient.blocked[i])
            if hold is not NULL and hold.until <= now:
                self.unblock_one(recipient, i)
                continue
            if hold is not NULL:
                self.release_at = min(self.release_at, hold.until)
            i += 1

    cdef void unblock_one(self, Connection* recipient, size_t i) noexcept nogil:
        """Let the *i*-th of those go on that wait for a recipient."""
        cdef Blocked entry = recipient.blocked[i]
        cdef Connection* publisher = self.waiting_publisher(entry)
        cdef Hold* hold = self.limit_of(entry)
        recipient.blocked.erase(recipient.blocked.begin() + i)
        self.end_wait(recipient, publisher)
        if hold is not NULL:
            end_hold(hold, now_ns())
        if publisher is not NULL:
            self.let_go_on(publisher)
        if recipient.blocked.empty():
            self.stop_blocking(recipient)

    cdef void note_progress(self, Connection* recipient) noexcept nogil:
        """Note that a recipient's socket has taken something just now."""
        recipient.progress_mark = recipient.out.delivered_packets
        recipient.progress_at = now_ms()

    cdef void unblock(self, Connection* recipient) noexcept nogil:
        """Let all go on that wait for a recipient."""
        while recipient.blocked.size():
            self.unblock_one(recipient, 0)

    cdef void stop_blocking(self, Connection* recipient) noexcept nogil:
        """Note that no publisher waits for a recipient."""
        cdef size_t i
        recipient.blocking_since = -1
        for i in range(self.blocking.size()):
            if self.blocking[i] == recipient.slot:
                self.blocking[i] = self.blocking.back()
                self.blocking.pop_back()
                break

    cdef int until_deadline(self, int timeout_ms) noexcept nogil:
        """Return how long a turn may wait, so that who is blocked for too long goes on in time."""
        cdef size_t i
        cdef int64_t left, now
        if self.blocking.empty():
            return timeout_ms
        now = now_ms()
        for i in range(self.blocking.size()):
            left = self.blocking_until(self.slots[self.blocking[i]]) - now + 1
            if left < 0:
                left = 0
            if timeout_ms < 0 or left < timeout_ms:
                timeout_ms = <int>left
        if self.release_at < NEVER_NS:
            left = max(<int64_t>0, (self.release_at - now_ns()) // 1000000 + 1)
            timeout_ms = <int>min(left, <int64_t>timeout_ms)
        return timeout_ms

    cdef void end_blocks(self) noexcept nogil:
        """Let publishers go on that have been blocked for too long."""
        cdef size_t i = 0
        cdef Connection* recipient
        cdef int64_t now
        cdef bint is_release_due
        if self.blocking.empty():
            return
        now = now_ms()
        # All waits are looked at only when one is over: a user can have as many as its publishers times its recipients.
        is_release_due = now_ns() >= self.release_at
        if is_release_due:
            self.release_at = NEVER_NS
        while i < self.blocking.size():
            recipient = self.slots[self.blocking[i]]
            if now > recipient.progress_at + self.progress_timeout:
                # epoll reports room only when most of the socket is free: a slow reader makes progress before.
                flush(&recipient.out)
                self.settle(recipient)
            if recipient.blocking_since >= 0 and now > self.blocking_until(recipient):
                self.fall_back(recipient)
            if is_release_due:
                self.let_held_go(recipient)
            if i < self.blocking.size() and self.slots[self.blocking[i]] is recipient:
                i += 1

    cdef int64_t blocking_until(self, Connection* recipient) noexcept nogil:
        """Return until when a recipient may block publishers, by what is known now: milliseconds of the monotonic clock."""
        return min(recipient.blocking_since + self.block_timeout, recipient.progress_at + self.progress_timeout)

    cdef void fall_back(self, Connection* recipient) noexcept nogil:
        """Let all go on that wait for a recipient, and no one wait for it until its queue has drained."""
        self.fallbacks += 1
        recipient.has_fallen_back = True
        recipient.progress_mark = recipient.out.delivered_packets
        self.unblock(recipient)

    cdef void dismiss(self, Connection* connection, int end) noexcept nogil:
        """End a client that misbehaves, and tell it if that can be."""
        cdef int words = <int>BATCH_PACKETS + self.words_of_end[end]
        if connection.is_ending:
            return
        self.finish(connection, end)
        part(&connection.out, <const char*>self.batch.parts[words].iov_base, self.batch.parts[words].iov_len)

    cdef void settle(self, Connection* connection) noexcept nogil:
        """After anything was offered to a connection: watch for room while something waits, and note what it was told."""
        if connection.out.told:
            self.informed.push_back(connection.slot)
        if connection.out.is_failed:
            connection.out.is_failed = False
            self.dismiss(connection, QUEUE_FULL)
        if connection.blocking_since >= 0 or connection.has_fallen_back:
            self.settle_blocks(connection)
        if (waiting_count(&connection.out) != 0) != ((connection.interest & EPOLLOUT) != 0) and not self.set_interest(connection):
            self.finish(connection, BROKEN)
        if connection.out.is_broken and not connection.is_reading:
            self.finish(connection, HANGUP)

    cdef bint set_interest(self, Connection* connection) noexcept nogil:
        """Tell epoll what a connection waits for; return False if it does not take that, so that what waits would wait for ever."""
        cdef epoll_event event
        event.events = (EPOLLIN | EPOLLRDHUP) if connection.is_reading and connection.blockers == 0 else 0
        if waiting_count(&connection.out):
            event.events |= EPOLLOUT
        event.data.u64 = connection.slot
        connection.interest = event.events
        if connection.is_unwatched:
            if connection.is_held_up:
                return True
            connection.is_unwatched = False
            return epoll_ctl(self.epoll, EPOLL_CTL_ADD, connection.out.fd, &event) == 0
        return epoll_ctl(self.epoll, EPOLL_CTL_MOD, connection.out.fd, &event) == 0

    cdef void finish(self, Connection* connection, int end) noexcept nogil:
        """Mark a connection for the end of the turn."""
        if not connection.is_ending:
            connection.is_ending = True
            connection.end = end
            self.taps.remove(connection.slot)
            self.ending.push_back(connection.slot)

    cdef int report_refusals(self, Connection* sender) except -1 with gil:
        """Tell the sink, once for each reason, which packets of the batch were not routed."""
        cdef int refusal
        cdef uint64_t count
        cdef bytes packet
        for refusal in range(MESSAGE_REFUSALS):
            count = self.refused[refusal]
            if count:
                self.refused[refusal] = 0
                packet = self.inbound_bytes(self.refused_first[refusal])
                self.sink.refused(sender.id, Refusal(refusal), packet[4:].partition(b"\0")[0], count)
        return 0

    cdef int report_losses(self) except -1 with gil:
        """Tell the sink which connections were told of a loss."""
        cdef uint64_t told
        cdef Connection* connection
        while self.informed.size():
            connection = self.slots[self.informed.back()]
            self.informed.pop_back()
            if connection is NULL:
                continue        # told between turns, and ended since
            told = connection.out.told
            connection.out.told = 0
            if told:
                self.sink.lost(connection.id, told)
        return 0

    cdef int bury(self) except -1 with gil:
        """Take down one connection that has ended, and tell the sink."""
        cdef Connection* connection = self.slots[self.ending.front()]
        cdef uint64_t number = connection.id
        self.ending.pop_front()
        self.subscriptions -= connection.instances
        end = _ENDS[connection.end]
        abandon(&connection.out)
        counters = counters_of(connection, connection.out.left_packets, connection.out.left_bytes)
        # What it lost and was not told of any more.
        lost = connection.out.told + connection.out.untold
        if connection.blocking_since >= 0:
            self.unblock(connection)
        if connection.waits:
            self.end_waiting(connection)
        self.settle_backlog(connection)
        self.leave_account(connection)
        connection.out.told = connection.out.untold = 0
        self.by_id.erase(number)
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, connection.out.fd, NULL)
        if connection.is_drained:
            # Its peer sees the end already, and has left nothing of which the end could be hidden behind an error.
            close(connection.out.fd)
            connection.is_closed = True
        else:
            connection.is_closed = self.end_socket(connection.out.fd, connection.passing, number)
        connection.is_buried = True
        self.buried.push_back(connection.slot)
        self.unerased[number] = connection.slot
        if self.is_paused and not self.closer.is_crowded:
            self.resume()
        if lost:
            self.sink.lost(number, lost)
        self.sink.ended(number, end, counters)
        return 0

    cdef int erase_some(self, int64_t end) except -1 nogil:
        """Erase patterns of those who are buried, the first first, one at least, until the time is *end*."""
        cdef Connection* connection
        cdef Item* pattern
        cdef bint is_over = False
        while self.buried.size() and not is_over:
            connection = self.slots[self.buried.front()]
            while connection.patterns is not NULL and not is_over:
                pattern = first(connection.patterns)
                self.router.erase(connection.slot, text_of(pattern), pattern.length)
                remove_stored(&connection.patterns, text_of(pattern), pattern.length)
                is_over = now_ns() > end
            if connection.patterns is NULL:
                self.buried.pop_front()
                self.forget(connection)
                is_over = now_ns() > end
        return 0

    cdef int forget(self, Connection* connection) except -1 with gil:
        """Forget one who is buried and has no patterns any more. What they cost is its user's until then."""
        cdef uint64_t number = connection.id
        cdef bint is_closed = connection.is_closed
        self.slots[connection.slot] = NULL
        self.free_slots.push_back(connection.slot)
        del connection
        del self.unerased[number]
        if is_closed:
            self.sink.closed(number)
        return 0

    cdef bint end_socket(self, int fd, Passing passing, uint64_t connection) except -1:
        """Close a socket, or let the closer do that and report *connection*, if that is not 0, later; return whether it is closed."""
        if hang_up(fd, passing):
            return True
        self.closer.add(fd, connection or None)
        return False

    def report_closed(self):
        """Tell the sink which connections are closed at last."""
        for number in self.closer.take_closed():
            slot = self.unerased.get(number)
            if slot is None:
                self.sink.closed(number)
            else:
                self.slots[<uint32_t>slot].is_closed = True
        if self.is_paused and not self.closer.is_crowded:
            self.resume()

    def closing(self):
        """Return the descriptors of connections that have ended and are not closed yet."""
        return self.closer.waiting()

    cdef void leave_account(self, Connection* connection) noexcept nogil:
        """Forget a user with its last connection."""
        cdef Account* account = connection.out.account
        if account is NULL:
            return
        connection.out.account = NULL
        account.connections -= 1
        if account.connections == 0:
            account.lost_packets = 0
            account.blocked_ns = account.blocked_others_ns = 0
            if account.leaving_bytes == 0:
                self.forget_user(account)

    cdef void forget_user(self, Account* account) noexcept nogil:
        """Forget a user of whom nothing is left."""
        self.accounts.erase(account.uid)
        if account is self.served_account:
            self.served_account = NULL
        del account

    # -- what the control plane asks for

    def set_party(self, uint64_t connection, uint32_t uid, *, bint blocks_others=False, uint64_t rules=0, int sight=0, bytes cred=b""):
        """Say whose a connection is, whom it may block, which publish rules are about it, what it may know, and how it is named."""
        cdef Connection* party = self.find(connection)
        cdef Account* account
        cdef unordered_map[uint32_t, Account*].iterator found
        party.blocks_others = blocks_others
        party.rules = rules
        party.sight = sight
        party.cred.assign(<const char*>cred, len(cred))
        party.head_text.clear()
        if self.uid_of(party) == uid:
            return
        if waiting_count(&party.out) or party.out.account is not NULL or party.backlog is not NULL:
            raise ValueError(f"connection {connection} is already somebody's")
        found = self.accounts.find(uid)
        if found == self.accounts.end():
            account = new Account()
            account.uid = uid
            account.connections = account.lost_packets = account.turn = account.served_turn = account.readable = 0
            account.gives_way_until = 0
            account.unread = account.leaving_bytes = 0
            account.blocked = account.blocked_others = 0
            account.blocked_ns = account.blocked_others_ns = 0
            account.room.packets = account.room.bytes = 0
            account.room.packets_limit = account.room.bytes_limit = <uint64_t>1 << 62
            self.accounts[uid] = account
        else:
            account = dereference(found).second
        account.connections += 1
        assign(&party.out, account)

    def set_user_limits(self, uint32_t uid, uint64_t packets, uint64_t size):
        """Bound what may wait for all connections of a user together."""
        cdef unordered_map[uint32_t, Account*].iterator found = self.accounts.find(uid)
        if found == self.accounts.end():
            raise KeyError(uid)
        dereference(found).second.room.packets_limit = packets
        dereference(found).second.room.bytes_limit = size

    def user_counters(self, uint32_t uid):
        """Return the counters of a user."""
        cdef unordered_map[uint32_t, Account*].iterator found = self.accounts.find(uid)
        cdef Account* account
        if found == self.accounts.end():
            return UserCounters(0, 0, 0)
        account = dereference(found).second
        return UserCounters(account.room.packets, account.room.bytes, account.lost_packets)

    def user_waits(self, uint32_t uid):
        """Return for how long a user's publishers and recipients were part of waits."""
        cdef unordered_map[uint32_t, Account*].iterator found = self.accounts.find(uid)
        cdef Account* account
        if found == self.accounts.end():
            return UserWaits(0, 0)
        account = dereference(found).second
        return UserWaits((account.blocked_ns + account.blocked * now_ns()) // MILLISECOND_NS,
                         (account.blocked_others_ns + account.blocked_others * now_ns()) // MILLISECOND_NS)

    def blockers(self, uint32_t most):
        """Return some connections that publishers wait for now."""
        return sorted([self.slots[self.blocking[i]].id for i in range(min(self.blocking.size(), <size_t>most))])

    def waits(self, uint64_t connection):
        """Return whom a connection waits for, and who waits for it."""
        cdef Connection* asked = self.find(connection)
        cdef int64_t now = now_ns()
        cdef size_t i = 0, j, looked_at = 0
        cdef Connection* recipient
        blocks = [(asked.blocked[i].id, asked.blocked[i].is_paced, (now - asked.blocked[i].since) // MILLISECOND_NS)
                  for i in range(min(asked.blocked.size(), <size_t>NAMED_WAITS))]
        blocked_by = []
        i = 0
        while asked.waits > len(blocked_by) and len(blocked_by) < NAMED_WAITS and i < self.blocking.size() and looked_at < LOOKED_AT:
            recipient = self.slots[self.blocking[i]]
            looked_at += recipient.blocked.size()
            for j in range(recipient.blocked.size()):
                if recipient.blocked[j].slot == asked.slot and recipient.blocked[j].id == asked.id:
                    blocked_by.append((recipient.id, recipient.blocked[j].is_paced, (now - recipient.blocked[j].since) // MILLISECOND_NS))
            i += 1
        return Waits(asked.is_paced, asked.waits, asked.blocked.size(), blocked_ms(asked), blocked_others_ms(asked),
                     tuple([Wait(*each) for each in sorted(blocked_by)]), tuple([Wait(*each) for each in sorted(blocks)]))

    def set_publish_rules(self, tuple rules):
        """Set the rules for MSG."""
        if len(rules) > MAX_PUBLISH_RULES:
            raise ValueError(f"{len(rules)} publish rules; {MAX_PUBLISH_RULES} at most")
        self.allowing_rules = 0
        for i, rule in enumerate(rules):
            if rule.is_allowed:
                self.allowing_rules |= <uint64_t>1 << <int>i
        self.router.set_rules(rules)

    def set_soft(self, uint64_t connection, int mode):
        """Set what becomes of packets that the socket does not take."""
        self.find(connection).out.soft = mode

    def set_hard(self, uint64_t connection, int mode):
        """Set what becomes of packets that the queue does not take."""
        self.find(connection).out.hard = mode

    def set_order(self, uint64_t connection, int order):
        """Set the order of messages that wait."""
        set_order(&self.find(connection).out, order)

    cdef Connection* find(self, uint64_t number) except NULL:
        """Return a connection by its number."""
        cdef unordered_map[uint64_t, Connection*].iterator found = self.by_id.find(number)
        if found == self.by_id.end():
            raise KeyError(number)
        return dereference(found).second

    def subscribe(self, uint64_t connection, bytes pattern):
        """Store one more instance of *pattern*."""
        cdef Connection* subscriber = self.find(connection)
        store_instance(&subscriber.patterns, pattern, len(pattern))
        subscriber.instances += 1
        self.subscriptions += 1
        self.router.insert(subscriber.slot, pattern, len(pattern))

    def unsubscribe(self, uint64_t connection, bytes pattern):
        """Remove one instance of *pattern* and return True, or return False if there is none."""
        cdef Connection* subscriber = self.find(connection)
        if not remove_stored(&subscriber.patterns, pattern, len(pattern)):
            return False
        subscriber.instances -= 1
        self.subscriptions -= 1
        self.router.erase(subscriber.slot, pattern, len(pattern))
        return True

    def instances(self, uint64_t connection, bytes pattern):
        """Return how many instances of *pattern* the connection has stored."""
        cdef Connection* subscriber = self.find(connection)
        return instances_of(&subscriber.patterns, pattern, len(pattern))

    def send(self, uint64_t connection, bytes packet):
        """Hand *packet* to the connection, behind all that waits for it."""
        cdef Connection* recipient = self.find(connection)
        if not recipient.is_ending:
            post(&recipient.out, packet, len(packet))
            self.settle(recipient)

    def announce(self, bytes packet, *, int sight, uint32_t uid, bytes cred=b""):
        """Hand a MSG of the bus itself, whose credentials are *cred*, to those with a pattern that takes its key who may know of it."""
        cdef const char* data = packet
        cdef const char* end = <const char*>memchr(data + 4, 0, len(packet) - 4)
        cdef Route found = self.router.route(data + 4, end - data - 4)
        cdef vector[pair[uint64_t, uint32_t]] informed
        cdef pair[uint64_t, uint32_t] entry
        cdef Connection* recipient
        cdef string signed
        cdef size_t i
        append_sender(signed, 0, <string>cred)
        signed.append(data, len(packet))
        for i in range(found.count):
            recipient = self.slots[found.slots[i]]
            if not recipient.is_ending and (recipient.sight >= sight or self.uid_of(recipient) == uid):
                entry.first = recipient.id
                entry.second = recipient.slot
                informed.push_back(entry)
        sort(informed.begin(), informed.end())
        for i in range(informed.size()):
            recipient = self.slots[informed[i].second]
            if recipient.wants_senders:
                post_for(&recipient.out, signed.data(), signed.size(), uid)
            else:
                post_for(&recipient.out, data, len(packet), uid)
            self.settle(recipient)

    def set_sender(self, uint64_t connection, bint on):
        """Set whether messages come to the connection with their senders."""
        self.find(connection).wants_senders = on

    def set_batch(self, uint64_t connection, bint on):
        """Set whether several packets may come to the connection in one."""
        self.find(connection).out.batch_bytes = BATCH_BYTES if on else 0

    def set_pace(self, uint64_t connection, bint on):
        """Set whether messages of the connection wait for slow recipients."""
        self.find(connection).is_paced = on

    def set_tap(self, uint64_t connection, bytes pattern):
        """Let the connection be told of what *pattern* takes, or with None of nothing."""
        cdef Connection* tapper = self.find(connection)
        if pattern is None or tapper.is_ending:
            self.taps.remove(tapper.slot)
        else:
            self.taps.add(tapper.slot, connection, &tapper.out, pattern, len(pattern))

    def is_tapped(self):
        """Return whether any connection has a tap."""
        return self.taps.count != 0

    def report(self, bytes key, bytes packet, *, uint32_t uid):
        """Hand a packet of the bus itself, which *uid* has caused, to the taps whose pattern takes *key*."""
        self.taps.report(key, len(key), packet, len(packet), uid)
        self.settle_taps()

    def arm_receipt(self, uint64_t connection, bytes token, *, bint always):
        """Tell the connection what becomes of its next MSG."""
        arm(&self.find(connection).receipt, token, len(token), always)

    def set_echo(self, uint64_t connection, bint on):
        """Set whether the connection gets its own messages."""
        self.find(connection).echo = on

    def disconnect(self, uint64_t connection, bytes last_words=b""):
        """End a connection: offer its socket *last_words*, and close."""
        cdef Connection* ended = self.find(connection)
        if ended.is_ending:
            return
        if last_words:
            part(&ended.out, last_words, len(last_words))
        self.finish(ended, DISCONNECTED)

    def connections(self):
        """Return the numbers of all connections, oldest first."""
        return sorted([entry.first for entry in self.by_id])

    def patterns(self, uint64_t connection):
        """Return the connection's patterns, each with how many instances are stored."""
        cdef Connection* holder = self.find(connection)
        cdef Item* pattern = first(holder.patterns)
        found = {}
        while pattern is not NULL:
            found[text_of(pattern)[:pattern.length]] = (<Stored*>pattern).instances
            pattern = item_behind(holder.patterns, text_of(pattern), pattern.length)
        return found

    def patterns_after(self, uint64_t connection, bytes after, uint32_t most):
        """Return up to *most* of the connection's patterns behind *after* in the order of their bytes; None: the first."""
        cdef Connection* holder = self.find(connection)
        cdef Item* pattern
        found = []
        if after is None:
            pattern = first(holder.patterns)
        else:
            pattern = item_behind(holder.patterns, after, len(after))
        while pattern is not NULL and len(found) < most:
            found.append(text_of(pattern)[:pattern.length])
            pattern = item_behind(holder.patterns, text_of(pattern), pattern.length)
        return found

    def recipients(self, bytes key):
        """Return the connections with a pattern that takes *key*."""
        cdef Route found = self.router.route(key, len(key))
        cdef uint32_t i
        if found.refusal >= 0:
            return []
        return sorted([self.slots[found.slots[i]].id for i in range(found.count) if not self.slots[found.slots[i]].is_buried])

    def connection_counters(self, uint64_t connection):
        """Return the counters of one connection."""
        cdef Connection* counted = self.find(connection)
        return counters_of(counted, waiting_count(&counted.out), counted.out.room.bytes)

    def counters(self):
        """Return the counters of the switch."""
        return SwitchCounters(
            connections=self.by_id.size(), accepted=self.accepted, accept_failures=self.accept_failures,
            received_packets=self.received_packets, received_bytes=self.received_bytes, messages=self.messages,
            undeliverable=self.undeliverable, deliveries=self.totals.deliveries,
            delivered_packets=self.totals.delivered_packets, delivered_bytes=self.totals.delivered_bytes,
            queued_packets=self.totals.queued_packets, queued_bytes=self.totals.queued_bytes,
            lost_packets=self.totals.lost_packets, abandoned_packets=self.totals.abandoned_packets,
            refused_packets=self.refused_packets, subscriptions=self.subscriptions,
            cache_hits=self.router.hits, cache_misses=self.router.misses, turns=self.turns,
            received_batches=self.intake.batches, delivered_batches=self.totals.delivered_batches,
            batched_packets=self.totals.batched_packets, blocks=self.blocks, fallbacks=self.fallbacks,
            replaced_packets=self.totals.replaced_packets,
        )

    # -- what survives it

    def settings(self, uint64_t connection):
        """Return what the connection has asked for itself."""
        cdef Connection* asked = self.find(connection)
        return ConnectionSettings(echo=asked.echo, soft=asked.out.soft, hard=asked.out.hard, order=asked.out.order,
                                  sender=asked.wants_senders, batch=asked.out.batch_bytes != 0, pace=asked.is_paced)

    def progress(self, uint64_t connection):
        """Return what the connection has done."""
        cdef Connection* done = self.find(connection)
        return ConnectionProgress(
            received_packets=done.received_packets, received_bytes=done.received_bytes, refused_packets=done.refused_packets,
            delivered_packets=done.out.delivered_packets, delivered_bytes=done.out.delivered_bytes, lost_packets=done.out.lost_packets,
            replaced_packets=done.out.replaced_packets, untold_replaced=done.out.untold_replaced,
            untold=done.out.untold, unreported=done.out.told, blocks=tuple([each.id for each in done.blocked]),
            blocking_ms=0 if done.blocking_since < 0 else now_ms() - done.blocking_since,
            idle_ms=0 if done.blocking_since < 0 else now_ms() - done.progress_at,
            progress_mark=done.progress_mark, has_fallen_back=done.has_fallen_back,
            receipt_token=(<bytes>done.receipt.token).decode("latin-1") if done.receipt.is_armed else None,
            paces=tuple([each.id for each in done.blocked if each.is_paced]),
            held_us={each.uid: spent_until(&each, now_ns()) // 1000 for each in done.holds},
            reads=done.reads, receipt_always=done.receipt.is_armed and done.receipt.always,
            blocked_ms=blocked_ms(done), blocked_others_ms=blocked_others_ms(done),
        )

    def queues(self):
        """Return the packets that wait, each once, and what of them waits for whom."""
        cdef unordered_map[uint64_t, size_t] places     # of packets, by their addresses
        cdef Connection* connection
        packets = []
        queues = {}
        for number in self.connections():
            connection = self.find(number)
            queue = Queue(queue_of(connection.out.waiting, &places, packets), queue_of(connection.out.notes, &places, packets),
                          unread_of(connection.backlog, packets), replaceable_from(&connection.out))
            if not queue.is_empty:
                queues[number] = queue
        return packets, queues

    def tally(self):
        """Return what the switch has done."""
        counters = self.counters()._asdict()
        for name in ("connections", "queued_packets", "queued_bytes", "subscriptions"):
            del counters[name]
        present = [entry.first for entry in self.accounts if entry.second.connections]
        return SwitchTotals(**counters, lost_by_user={uid: self.user_counters(uid).lost_packets for uid in present},
                            blocked_by_user={uid: tuple(self.user_waits(uid)) for uid in present})

    def next_connection(self):
        """Return the number that the next connection will get."""
        return self.next_id

    def restore(self, uint64_t connection, settings, progress):
        """Let an adopted connection go on where it was."""
        cdef Connection* restored = self.find(connection)
        cdef Blocked publisher
        cdef Hold* hold
        restored.echo, restored.wants_senders, restored.is_paced = settings.echo, settings.sender, settings.pace
        self.set_batch(connection, settings.batch)
        restored.out.soft, restored.out.hard, restored.out.order = settings.soft, settings.hard, settings.order
        restored.received_packets, restored.received_bytes = progress.received_packets, progress.received_bytes
        restored.refused_packets = progress.refused_packets
        restored.out.delivered_packets, restored.out.delivered_bytes = progress.delivered_packets, progress.delivered_bytes
        restored.out.lost_packets, restored.out.untold = progress.lost_packets, progress.untold
        restored.out.told = progress.unreported
        restored.out.replaced_packets, restored.out.untold_replaced = progress.replaced_packets, progress.untold_replaced
        restored.reads = progress.reads
        if progress.receipt_token is not None:
            self.arm_receipt(connection, progress.receipt_token.encode("latin-1"), always=progress.receipt_always)
        for number in progress.blocks:
            publisher.id = number
            publisher.slot = 0          # known once all are there
            publisher.is_paced = number in progress.paces
            restored.blocked.push_back(publisher)
        for uid, spent in progress.held_us.items():
            # As if all of it had been just now.
            hold = add_hold(&restored.holds, uid, now_ns())
            hold.spent[hold.slot % SLOTS] = min(<int64_t>spent * 1000, <int64_t>SECOND_NS)
        if restored.blocked.size():
            restored.blocking_since = now_ms() - <int64_t>progress.blocking_ms
        restored.progress_at = now_ms() - <int64_t>progress.idle_ms
        restored.blocked_ns = <int64_t>progress.blocked_ms * MILLISECOND_NS
        restored.blocked_others_ns = <int64_t>progress.blocked_others_ms * MILLISECOND_NS
        restored.progress_mark, restored.has_fallen_back = progress.progress_mark, progress.has_fallen_back

    def restore_all(self, list packets, dict queues, totals, uint64_t next_connection):
        """Let the switch go on where another was."""
        cdef unordered_map[uint64_t, Connection*].iterator each = self.by_id.begin()
        self.next_id = max(self.next_id, next_connection)
        self.restore_totals(totals)
        self.restore_queues(packets, queues)
        while each != self.by_id.end():
            self.restore_blocks(dereference(each).second)
            preincrement(each)
        each = self.by_id.begin()
        while each != self.by_id.end():
            if not self.set_interest(dereference(each).second):
                self.finish(dereference(each).second, BROKEN)
            self.note_pending(dereference(each).second)
            if dereference(each).second.out.told:
                self.informed.push_back(dereference(each).second.slot)
            preincrement(each)

    cdef int restore_totals(self, totals) except -1:
        """Add what another switch has done to this one's counters."""
        cdef unordered_map[uint32_t, Account*].iterator found
        self.accepted += totals.accepted
        self.accept_failures += totals.accept_failures
        self.received_packets += totals.received_packets
        self.received_bytes += totals.received_bytes
        self.messages += totals.messages
        self.undeliverable += totals.undeliverable
        self.refused_packets += totals.refused_packets
        self.turns += totals.turns
        self.intake.batches += totals.received_batches
        self.blocks += totals.blocks
        self.fallbacks += totals.fallbacks
        self.totals.delivered_batches += totals.delivered_batches
        self.totals.batched_packets += totals.batched_packets
        self.totals.replaced_packets += totals.replaced_packets
        self.router.hits += totals.cache_hits
        self.router.misses += totals.cache_misses
        self.totals.deliveries += totals.deliveries
        self.totals.delivered_packets += totals.delivered_packets
        self.totals.delivered_bytes += totals.delivered_bytes
        self.totals.lost_packets += totals.lost_packets
        self.totals.abandoned_packets += totals.abandoned_packets
        for uid, lost in totals.lost_by_user.items():
            found = self.accounts.find(uid)
            if found != self.accounts.end():
                dereference(found).second.lost_packets = lost
        for uid, (blocked, others) in totals.blocked_by_user.items():
            found = self.accounts.find(uid)
            if found != self.accounts.end():
                dereference(found).second.blocked_ns += <int64_t>blocked * MILLISECOND_NS
                dereference(found).second.blocked_others_ns += <int64_t>others * MILLISECOND_NS
        return 0

    cdef int restore_queues(self, list packets, dict queues) except -1:
        """Let wait again what waited for another switch's clients; a packet of several queues is shared as it was."""
        cdef vector[Packet*] shared
        cdef Connection* connection
        cdef Packet* packet
        cdef Packet* front
        cdef size_t i
        for data in packets:
            packet = new_packet(<bytes>data, len(<bytes>data), &self.totals)
            if packet is NULL:
                raise MemoryError
            packet.references = 1       # ours, until all is done
            shared.push_back(packet)
        for number, queue in queues.items():
            if not self.by_id.count(number):
                # It was given up with its connection, which did not come back.
                self.totals.abandoned_packets += len(queue.waiting) + len(queue.notes)
                continue
            connection = self.find(number)
            self.restore_backlog(connection, [(packets[place], is_cut) for place, is_cut in queue.unread])
            for entries, is_note in ((queue.waiting, False), (queue.notes, True)):
                for place, head, payer in entries:
                    front = NULL
                    if head is not None:
                        front = shared[<size_t>head]
                    keep(&connection.out, shared[<size_t>place], front,
                         <uint32_t>NOBODY if payer is None else <uint32_t>payer, is_note)
            restore_keys(&connection.out, queue.fixed)
        for i in range(shared.size()):
            release(shared[i])
        return 0

    cdef int restore_backlog(self, Connection* connection, list unread) except -1:
        """Let a connection go on with what another switch has received from it."""
        cdef size_t size = 0
        for packet, _ in unread:
            size += record_bytes(packet, len(packet), 0)
        if size:
            connection.backlog = new_backlog(size)
            if connection.backlog is NULL:
                raise MemoryError
            for packet, is_cut in unread:
                store(connection.backlog, packet, len(packet), is_cut, 0)
            self.open_backlog(connection)
        return 0

    cdef int restore_blocks(self, Connection* recipient) except -1:
        """Let publishers wait again that waited for a connection, those who came back."""
        cdef vector[Blocked] named = recipient.blocked
        cdef unordered_map[uint64_t, Connection*].iterator found
        cdef Blocked entry
        cdef size_t i
        recipient.blocked.clear()
        for i in range(named.size()):
            found = self.by_id.find(named[i].id)
            if found != self.by_id.end():
                entry.id = named[i].id
                entry.slot = dereference(found).second.slot
                entry.is_paced = named[i].is_paced
                self.begin_wait(recipient, dereference(found).second, entry)
                dereference(found).second.blockers += 1
        if recipient.blocked.size():
            self.blocking.push_back(recipient.slot)
        else:
            recipient.blocking_since = -1
        return 0

    def close(self, *, bint keeps_connections=False):
        """Close every connection without telling the sink, and the switch's own descriptors."""
        cdef uint32_t slot
        cdef Backlog* unread
        self.is_measured = False
        self.stalls = None
        for slot in range(self.slots.size()):
            if self.slots[slot] is not NULL:
                free_stored(&self.slots[slot].patterns)
            if self.slots[slot] is not NULL and self.slots[slot].is_buried:
                del self.slots[slot]
                self.slots[slot] = NULL
            if self.slots[slot] is not NULL:
                abandon(&self.slots[slot].out)
                while self.slots[slot].backlog is not NULL:
                    unread = self.slots[slot].backlog
                    self.slots[slot].backlog = unread.next
                    free(unread)
                self.leave_account(self.slots[slot])
                if keeps_connections:
                    close(self.slots[slot].out.fd)
                else:
                    self.end_socket(self.slots[slot].out.fd, self.slots[slot].passing, 0)
                del self.slots[slot]
                self.slots[slot] = NULL
        self.release_some(0)
        self.by_id.clear()
        self.watched.clear()
        self.closer.close()
        if self.epoll >= 0:
            close(self.epoll)
            close(self.spare)
            self.epoll = self.spare = -1


cdef int64_t blocked_ms(Connection* connection) noexcept nogil:
    """Return for how many milliseconds a connection has waited for recipients."""
    return (connection.blocked_ns + (now_ns() if connection.waits else 0)) // MILLISECOND_NS


cdef int64_t blocked_others_ms(Connection* connection) noexcept nogil:
    """Return for how many milliseconds publishers have waited for a connection, those of all of them added up."""
    return (connection.blocked_others_ns + <int64_t>connection.blocked.size() * now_ns()) // MILLISECOND_NS


cdef object counters_of(Connection* connection, uint64_t queued_packets, uint64_t queued_bytes):
    """Return a connection's counters, of which those of its queue are the caller's."""
    # In the order of the fields: by their names it takes four times as long, and each client has counters when it ends.
    return _new_tuple(ConnectionCounters, (
        connection.received_packets, connection.received_bytes, connection.out.delivered_packets, connection.out.delivered_bytes,
        queued_packets, queued_bytes, connection.out.lost_packets, connection.refused_packets, connection.out.replaced_packets,
    ))


cdef tuple queue_of(Entries* entries, unordered_map[uint64_t, size_t]* places, list packets):
    """Return what *entries* hold, as places in *packets*, to which what is not in it yet is added."""
    cdef size_t i
    cdef Entry entry
    found = []
    for i in range(0 if entries is NULL else entries.size()):
        entry = dereference(entries)[i]
        found.append((
            place_of(entry.packet, places, packets),
            None if entry.head is NULL else place_of(entry.head, places, packets),
            None if entry.payer == <uint32_t>NOBODY else entry.payer,
        ))
    return tuple(found)


cdef tuple unread_of(Backlog* backlog, list packets):
    """Return what of a connection's packets is not handled yet, as places in *packets*, to which they are added."""
    found = []
    if backlog is not NULL:
        for packet, is_cut in packets_of(backlog):
            found.append((len(packets), is_cut))
            packets.append(packet)
    return tuple(found)


cdef size_t place_of(Packet* packet, unordered_map[uint64_t, size_t]* places, list packets) except? 0:
    """Return where a packet is in *packets*, to which it is added if it is not in it yet."""
    cdef uint64_t address = <uint64_t>packet
    if not places.count(address):
        dereference(places)[address] = len(packets)
        packets.append(data_of(packet)[:bytes_in(packet)])
    return dereference(places)[address]
