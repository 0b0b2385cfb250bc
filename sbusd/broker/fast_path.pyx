# cython: language_level=3, cdivision=True
# distutils: language = c++
"""The compiled part of the broker: connect, `whoami`, ping, SUB, UNSUB and disconnect, which each short-lived client needs.

A packet that needs no new decision and no report is handled without the interpreter's lock.

It rejects users that `access` does not admit. Rules, rights and quotas are decided in `access`, `policy` and `quotas`; `refusals`
sends errors. Other packets and ends are left to `sbusd.broker.broker.Broker`. Spec: sbus-protocol(7) §4, §6, §8.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp
from libcpp.string cimport string

from sbusd.broker.roster cimport AllowedPatterns, Client, ClientState, EventListeners, Roster
from sbusd.broker.quota_usage cimport Charge, ConnectionUsage, UsageTable, UserUsage
from sbusd.broker.totals cimport UserTotals
from sbusd.dataplane.libc cimport clock_gettime, timespec
from sbusd.dataplane.switch cimport (
    END_DESCRIPTORS, END_HANGUP, ClientSink, Connection, Plane, Switch, add_pattern, add_traffic, end_of, find, hold_reading,
    last_counters, link_of, resume_reading, send_packet, set_cred, set_rights, set_user,
)

from sbusd.broker import log_messages
from sbusd.dataplane.peer import credentials_of
from sbus.protocol import controls
from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ProtocolError
from sbus.protocol.keys import EVENT_HEAD, SECRET_HEAD
from sbus.protocol.packets import MAX_PACKET_BYTES

cdef string _PING_HEAD = b"CMSG " + controls.PING + b"\0"
cdef string _WHOAMI = b"CMSG " + controls.WHOAMI
cdef extern from "<time.h>":
    int CLOCK_BOOTTIME

cdef bytes _SUB_HEAD = b"SUB "
cdef bytes _EVENT_HEAD = EVENT_HEAD
cdef bytes _SECRET_HEAD = SECRET_HEAD
cdef bytes _RESERVED_HEAD = b"!/"       # patterns whose verdict depends on more than user and groups
cdef object _new = tuple.__new__        # without the Python function around it
cdef object _CONNECTED = log_messages.CLIENT_CONNECTED
cdef int _CONNECTED_PRIORITY = log_messages.CLIENT_CONNECTED.priority
cdef int _DISCONNECTED_PRIORITY = log_messages.CLIENT_DISCONNECTED.priority
cdef Py_ssize_t _MAX_PACKET_BYTES = MAX_PACKET_BYTES


cdef double boot_seconds() noexcept nogil:
    """Return the seconds since boot, with the time of sleep."""
    cdef timespec now
    clock_gettime(CLOCK_BOOTTIME, &now)
    return now.tv_sec + now.tv_nsec / 1e9


cdef void append_id(string& text, uint32_t number, bint is_followed) noexcept nogil:
    """Append the digits of an id, and a ``/`` if more ids follow."""
    cdef char digits[11]
    cdef int place = 11
    if is_followed:
        place -= 1
        digits[place] = 47      # /
    while True:
        place -= 1
        digits[place] = 48 + number % 10
        number //= 10
        if number == 0:
            break
    text.append(&digits[place], 11 - place)


cdef class Decision:
    """What the rules of one cache decide about a user with certain groups. The latest one is kept: most users connect again and again."""

    cdef object cache
    cdef object groups
    cdef uint32_t uid
    cdef uint32_t gid
    cdef AllowedPatterns allowed
    cdef bint blocks_others
    cdef uint64_t rules
    cdef int sight
    cdef bint may_vouch
    cdef bint may_deliver
    cdef bint needs_unit
    cdef bint depends_on_unit   # of any user
    cdef object unit

    cdef bint is_about(self, cache, uint32_t uid, uint32_t gid, groups, unit):
        """Return whether this is the decision of *cache* about such a user in such a unit."""
        return (self.cache is cache and self.uid == uid and self.gid == gid and (self.groups is groups or self.groups == groups)
                and (not self.depends_on_unit or self.unit == unit))


cdef class FastPath(ClientSink):
    """The compiled part of a broker: the calls of the switch about clients. `start` comes first, then `configure`."""

    cdef object broker                          # what is not handled here is left to it
    cdef object switch "switch_object"          # `switch` is a keyword of C, which Cython before 3.1 does not escape
    cdef Plane plane
    cdef object admitted                        # the uids that may connect; None: all
    cdef bint ends_when_empty
    cdef object journal
    cdef object access
    cdef string cred_head                       # of all credentials
    cdef Roster roster
    cdef UsageTable quotas
    cdef object rights
    cdef object presence
    cdef EventListeners listeners
    cdef object bindings
    cdef object process_watch
    cdef dict watched                           # the watched processes, by connection
    cdef object units
    cdef dict awaited                           # the connections whose unit is being read
    cdef object refusals
    cdef object log
    cdef object change_log
    cdef object counts
    cdef bint has_change_log                    # changes are kept for a restart
    cdef Decision latest
    cdef string reply
    cdef uint64_t answered                      # packets that `answer` has handled and `counts` does not have yet

    def start(self, broker):
        """Work for *broker*, which has all its parts."""
        cdef Switch switch_used = broker.switch
        self.broker, self.switch, self.plane = broker, switch_used, switch_used.plane
        self.journal, self.access, self.roster, self.quotas = broker.journal, broker.access, broker.roster, broker.quotas
        self.presence, self.listeners = broker.presence, broker.presence.listeners
        self.bindings, self.process_watch = broker.bindings, broker.bindings.watch
        self.watched = self.process_watch.by_connection
        self.units, self.awaited = broker.units, broker.units.awaited
        self.refusals, self.log, self.counts = broker.refusals, broker.log, broker.counts
        prefix = self.access.keyspace.prefix
        self.cred_head = (prefix + b"/" if prefix else b"") + SECRET_HEAD

    def configure(self, ownership, rights):
        """Admit the users of *ownership*, and decide by *rights*: a cache, a new one for new rules."""
        self.admitted = ownership.allowed
        self.ends_when_empty = ownership.ends_when_empty
        self.rights = rights

    def keep_changes(self, change_log):
        """Write every change to *change_log* from now on."""
        self.change_log = change_log
        self.has_change_log = True

    def count_answered(self):
        """Bring the counter of control packets up to date."""
        self.counts["control_packets"] += self.answered
        self.answered = 0

    # -- clients that begin

    def connected(self, uint64_t connection, int fd):
        """Add a new client, or reject the connection."""
        self.begin(find(self.plane, connection))

    cdef int begin(self, Connection* connection) except -1:
        """Add a new client, or reject the connection."""
        cdef Client client
        cdef int fd = connection.out.fd
        number = connection.id
        if self.has_change_log:
            self.change_log.numbered(number)
        try:
            credentials = credentials_of(fd)
        except OSError as error:
            self.refusals.reject_unknown(number, error)
            return 0
        if self.admitted is not None and (<tuple>credentials)[1] not in self.admitted:
            # Never in the roster: a rejected user must not be the last client, whose disconnect stops a bus with option -c.
            self.refusals.reject_user(number, credentials)
            return 0
        refusal = self.quotas.admit_client(number, credentials)
        if refusal is not None:
            self.refusals.reject_for_quota(number, credentials, refusal)
            return 0
        client = self.roster.add(number, credentials, boot_seconds(), fd)
        self.locate(client)
        self.place(connection, client)
        if self.has_change_log:
            self.change_log.opened(client)
        if self.has_listeners():
            self.presence.connected(client)
        if _CONNECTED_PRIORITY <= self.journal.level:
            self.log.record(_CONNECTED, client)
        return 0

    cpdef int locate(self, Client client) except -1:
        """Look up the unit of a client, whose socket is open. If `awaits_unit` is set then, `set_place` follows."""
        if not self.rights.depends_on_unit and not self.plane.taps.count:
            client.awaits_unit = True
            if not self.units.is_looking:
                self.units.defer()
            return 0
        placement = self.units.find(client.connection, client.fd, client.credentials)
        if placement is None:
            client.awaits_unit = client.connection in self.awaited
            if not client.awaits_unit:
                self.counts["unknown_units"] += 1
        else:
            self.set_placement(client, placement)
        return 0

    cdef int set_placement(self, Client client, placement) except -1:
        """Set the unit of a client."""
        cdef tuple who = <tuple>client.credentials
        client.placement = placement
        client.credentials = _new(Credentials, (who[0], who[1], who[2], who[3], (<tuple>placement)[0]))
        return 0

    def set_place(self, Client client, placement):
        """Set the place of a client whose unit was being read; None: it remains unknown. Then its packets are handled by the new rights."""
        cdef Connection* connection = find(self.plane, client.connection)
        client.awaits_unit = client.is_unit_late = False
        if placement is not None:
            self.set_placement(client, placement)
            self.place(connection, client)
        resume_reading(self.plane, connection)

    def handle_unknown(self, Client client):
        """Handle the packets of a client whose unit is still being read, as if it remained unknown."""
        client.is_unit_late = True  # new rules do not make it wait again
        resume_reading(self.plane, find(self.plane, client.connection))

    def apply_rights(self, Client client):
        """Set the user, the rights and the limits of a client in the switch, which enforces them."""
        self.place(find(self.plane, client.connection), client)

    cdef int place(self, Connection* connection, Client client) except -1:
        """Set the user, the rights and the limits of a client in the switch, which enforces them."""
        cdef UserUsage user = self.quotas.user_of(client.connection)
        cdef Decision decision = self.decision_about(client.credentials)
        cdef string cred = self.cred_head
        append_id(cred, decision.gid, True)
        append_id(cred, decision.uid, True)
        append_id(cred, (<tuple>client.credentials)[0], False)
        client.allowed = decision.allowed
        client.state.allowed = &decision.allowed.patterns
        client.state.charge = &(<ConnectionUsage>user.connections[client.connection]).charge
        connection.client = &client.state
        set_user(self.plane, connection, decision.uid, <uint32_t>(<tuple>user.credentials)[1])
        set_rights(
            connection, decision.blocks_others, decision.rules, decision.sight, decision.may_vouch, decision.may_deliver)
        set_cred(connection, cred.data(), cred.size())
        if client.awaits_unit and decision.needs_unit and not client.is_unit_late:
            hold_reading(self.plane, connection)
        connection.out.account.room.packets_limit = user.charge.max_queued_packets
        connection.out.account.room.bytes_limit = user.charge.max_queued_bytes
        return 0

    cdef Decision decision_about(self, credentials):
        """Return what the rules decide about a client."""
        cdef uint32_t uid = (<tuple>credentials)[1], gid = (<tuple>credentials)[2]
        cdef Decision decision = self.latest
        if decision is None or not decision.is_about(self.rights, uid, gid, (<tuple>credentials)[3], (<tuple>credentials)[4]):
            decision = self.latest = Decision.__new__(Decision)
            decision.cache, decision.uid, decision.gid, decision.groups = self.rights, uid, gid, (<tuple>credentials)[3]
            decision.unit, decision.depends_on_unit = (<tuple>credentials)[4], self.rights.depends_on_unit
            rights, decision.allowed = self.rights.find(credentials)
            (decision.blocks_others, decision.rules, decision.sight, decision.may_vouch, decision.may_deliver,
             decision.needs_unit) = rights
        return decision

    # -- packets

    cdef bint answer(self, Connection* connection, const char* packet, size_t length, int64_t now) noexcept nogil:
        """Handle a ping, `whoami`, or a SUB that the rules are known to allow: the reply is an echo, a constant, or none."""
        cdef ClientState* client = <ClientState*>connection.client
        cdef const char* end
        if client is NULL:
            return False
        if length >= _PING_HEAD.size() and memcmp(packet, _PING_HEAD.data(), _PING_HEAD.size()) == 0:
            if not self.quotas.take_control(client.charge, now / 1e9):
                return False
            send_packet(self.plane, connection, packet, length)
        elif length == _WHOAMI.size() and memcmp(packet, _WHOAMI.data(), length) == 0:
            if not self.quotas.take_control(client.charge, now / 1e9):
                return False
            self.reply.assign(packet, length)
            self.reply.push_back(0)
            self.reply.append(connection.party.cred)
            send_packet(self.plane, connection, self.reply.data(), self.reply.size())
        elif length >= 4 and memcmp(packet, b"SUB ", 4) == 0:
            end = <const char*>memchr(packet, 0, length)
            if not self.subscribe_plain(connection, packet + 4, (length if end is NULL else end - packet) - 4, now):
                return False
        else:
            return False
        self.answered += 1
        return True

    cdef bint subscribe_plain(self, Connection* connection, const char* pattern, size_t length, int64_t now) noexcept nogil:
        """Store a pattern that the rules are known to allow and return True, or return False if there is more to decide or to report."""
        cdef ClientState* client = <ClientState*>connection.client
        if self.has_change_log or self.listeners.count or self.plane.taps.count or link_of(client.allowed, pattern, length) is NULL:
            return False
        if not self.quotas.may_subscribe(client.charge, pattern, length) or not self.quotas.take_control(client.charge, now / 1e9):
            return False
        self.quotas.take_subscription(client.charge, pattern, length)
        add_pattern(self.plane, connection, pattern, length)
        client.subscriptions += 1
        return True

    cdef int handle(self, Connection* connection, bytes packet) except -1:
        """Handle a packet that is not a well-formed MSG."""
        cdef Client client = self.roster.client_of(connection.id)
        self.answered += 1
        self.count_answered()
        refusal = self.quotas.charge_packet(client.connection)
        if refusal is not None:
            self.refusals.refuse_for_quota(client, refusal, packet)
            return 0
        try:
            if packet.startswith(_SUB_HEAD) and len(packet) <= _MAX_PACKET_BYTES:
                refusal = self.quotas.charge_change(client.connection) if self.has_change_log else None
                if refusal is None:
                    self.subscribe(connection, client, packet[4:].partition(b"\0")[0])
                else:
                    self.refusals.refuse_for_quota(client, refusal, packet)
            else:
                self.broker.handle(client, packet)
        except ProtocolError as error:
            self.refusals.refuse(client, error.code, error.words, packet)
        except Exception as error:
            self.broker.fail(client, error)
        return 0

    cdef int subscribe(self, Connection* connection, Client client, bytes pattern) except -1:
        """Store a pattern, or refuse it."""
        number = client.connection
        if pattern not in client.allowed:
            verdict = self.access.subscription(pattern, client.credentials, number)
            if verdict.code is not None:
                self.refusals.refuse_subscription(client, pattern, verdict)
                return 0
            if not pattern.startswith(_RESERVED_HEAD):
                client.allowed.add(pattern)
        refusal = self.quotas.charge_pattern(number, pattern)
        if refusal is not None:
            self.refusals.refuse_for_quota(client, refusal, _SUB_HEAD + pattern)
            return 0
        if pattern.startswith(_SECRET_HEAD) and self.access.names_process(pattern) and not self.bindings.bind(client, pattern):
            self.quotas.release_pattern(number, pattern)
            return 0
        add_pattern(self.plane, connection, pattern, len(pattern))
        client.state.subscriptions += 1
        if self.has_change_log:
            self.change_log.subscribed(client, pattern)
        if self.has_listeners() or pattern.startswith(_EVENT_HEAD):
            self.presence.subscribed(client, pattern)
        return 0

    def unsubscribe(self, Client client, bytes pattern):
        """Remove one instance of a pattern and return True, or return False if there is none."""
        connection = client.connection
        if not self.switch.unsubscribe(connection, pattern):
            return False
        client.subscriptions -= 1
        if self.has_change_log:
            self.change_log.unsubscribed(client, pattern)
        self.quotas.release_pattern(connection, pattern)
        if self.watched:
            self.bindings.release(client, pattern)
        if self.has_listeners():
            self.presence.unsubscribed(client, pattern)
        return True

    # -- clients that end

    cdef int end(self, Connection* connection, uint64_t lost) except -1:
        """Remove a client whose connection has ended."""
        cdef int reason = connection.end
        cdef UserTotals totals
        number = connection.id
        connection.client = NULL
        if lost:
            self.broker.lost(number, lost)
        if self.watched:
            self.process_watch.forget(number)
        if reason == END_DESCRIPTORS:
            self.counts["descriptor_senders"] += 1
        client = self.roster.remove(number)
        if client is None:
            return 0
        totals = self.quotas.totals_of(self.quotas.user_of(number), (<Client>client).credentials)
        add_traffic(&totals.ended, connection, 0)     # nothing waits for it any more
        if (<Client>client).awaits_unit:
            self.awaited.pop(number, None)
        if self.has_change_log:
            self.change_log.closed(client)
        if self.has_listeners():
            self.presence.disconnected(client, connection.out.left_packets, end_of(connection))
        if reason != END_HANGUP or _DISCONNECTED_PRIORITY <= self.journal.level:
            self.log.ended(client, end_of(connection), last_counters(connection))
        if self.ends_when_empty and not len(self.roster):
            self.broker.stop("the last client has left", for_good=True)
        return 0

    cdef int release(self, uint64_t connection) except -1:
        """Release what an ended connection used: its descriptor was open until now."""
        self.quotas.leave_user(connection)
        return 0

    cdef bint has_listeners(self) noexcept:
        """Return whether any client or tap receives events about connections."""
        return self.listeners.count != 0 or self.plane.taps.count != 0
