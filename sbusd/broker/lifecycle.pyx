# cython: language_level=3
"""The control plane's most frequent work: to take in a client, answer `whoami` and a ping, store a subscription, and forget a client.

It is the part of `sbusd.broker.broker.Broker` that each short-lived client costs, and is compiled for that. It decides nothing: rules,
rights and quotas are those of Python's `acceptance`, `placement` and `quotas`. Whatever is refused, recorded or reported is the matter of
the broker, whose methods with a leading underscore are called for it. Spec: sbus-protocol(7) §4, §6, §8.
"""

from sbusd.broker.holdings cimport Holdings
from sbusd.broker.roster cimport Client, Roster

from time import time

from sbusd.broker import log_messages as messages
from sbusd.dataplane.contract import End
from sbusd.dataplane.peer import credentials_of
from sbusd.broker.enforcement import MAX_ALLOWED, MAX_ALLOWED_BYTES
from sbusd.protocol import controls
from sbusd.protocol.errors import ProtocolError
from sbusd.protocol.keys import EVENT_HEAD, SECRET_HEAD
from sbusd.protocol.limits import MAX_PACKET_BYTES

cdef bytes _PING_HEAD = b"CMSG " + controls.PING + b"\0"
cdef bytes _WHOAMI = b"CMSG " + controls.WHOAMI
cdef bytes _WHOAMI_HEAD = _WHOAMI + b"\0"
cdef bytes _SUB_HEAD = b"SUB "
cdef bytes _EVENT_HEAD = EVENT_HEAD
cdef bytes _SECRET_HEAD = SECRET_HEAD
cdef bytes _RESERVED_HEAD = b"!/"       # whether such a pattern is allowed depends on more than user and groups
cdef Py_ssize_t _LONGEST_ALLOWED = MAX_ALLOWED_BYTES
cdef Py_ssize_t _MOST_ALLOWED = MAX_ALLOWED
cdef object _CONNECTED = messages.CLIENT_CONNECTED
cdef int _CONNECTED_PRIORITY = messages.CLIENT_CONNECTED.priority
cdef int _DISCONNECTED_PRIORITY = messages.CLIENT_DISCONNECTED.priority
cdef object _DESCRIPTORS = End.DESCRIPTORS
cdef object _HANGUP = End.HANGUP
cdef Py_ssize_t _LONGEST = MAX_PACKET_BYTES


cdef class Reception:
    """The compiled part of a broker, which fills its fields."""

    cdef public object switch "switch_object"   # to C `switch` is a keyword, which Cython before 3.1 does not mind
    cdef public object _ownership
    cdef public object _journal
    cdef public object _acceptance
    cdef public Roster _roster
    cdef public Holdings _accounts
    cdef public object _placements
    cdef public object _presence
    cdef public object _lifelines
    cdef public object _change_log
    cdef public object _counts
    cdef public bint has_change_log             # whether changes are logged for after a crash

    def connected(self, connection, int fd):
        """Take note of a new client, or refuse it."""
        cdef Client client
        if self.has_change_log:
            self._change_log.numbered(connection)
        try:
            credentials = credentials_of(fd)
        except OSError as error:
            self._refuse_unknown(connection, error)
            return
        uid = credentials.uid
        allowed = self._ownership.allowed
        if allowed is not None and uid not in allowed:
            self._refuse_stranger(connection, credentials)
            return
        excess = self._accounts.admit(connection, credentials)
        if excess is not None:
            self._refuse_connection(connection, credentials, excess)
            return
        client = self._roster.add(connection, credentials, time(), fd)
        self._place(client)
        if self.has_change_log:
            self._change_log.opened(client)
        if self.is_heard():
            self._presence.connected(client)
        if _CONNECTED_PRIORITY <= self._journal.level:
            self._record(_CONNECTED, client)

    def control(self, connection, bytes packet):
        """Handle a packet that is not a well-formed MSG."""
        cdef Client client = self._roster.client_of(connection)
        self._counts["control_packets"] += 1
        excess = self._accounts.charge_control(connection)
        if excess is not None:
            self._tell_excess(client, excess, packet)
            return
        try:
            # A packet whose answer is an echo, or a constant of the connection, is not parsed: clients send these most.
            if packet.startswith(_PING_HEAD):
                self.switch.send(connection, packet)
            elif packet == _WHOAMI:
                self.switch.send(connection, _WHOAMI_HEAD + client.cred)
            elif packet.startswith(_SUB_HEAD) and len(packet) <= _LONGEST:
                excess = self._accounts.charge_change(connection) if self.has_change_log else None
                if excess is None:
                    self._subscribe(client, packet[4:].partition(b"\0")[0])
                else:
                    self._tell_excess(client, excess, packet)
            else:
                self._handle(client, packet)
        except ProtocolError as error:
            self._refuse(client, error.code, error.words, packet)
        except Exception as error:
            self._fail(client, error)

    def ended(self, connection, end, counters):
        """Forget a client."""
        if self._lifelines.by_connection:
            self._lifelines.forget(connection)
        if end is _DESCRIPTORS:
            self._counts["descriptor_senders"] += 1
        client = self._roster.remove(connection)
        if client is None:
            return
        if self.has_change_log:
            self._change_log.closed(client)
        if self.is_heard():
            self._presence.ended(client, counters.queued_packets)
        if end is not _HANGUP or _DISCONNECTED_PRIORITY <= self._journal.level:
            self._record_end(client, end, counters)
        if self._ownership.ends_when_empty and not len(self._roster):
            self.stop("the last client has left", for_good=True)

    def closed(self, connection):
        """Give back to its user what an ended connection held: until now it cost a descriptor."""
        self._accounts.leave(connection)

    cdef bint is_heard(self) except -1:
        """Return whether any client gets events about connections."""
        return bool(self._presence.listening) or self.switch.is_tapped()

    cpdef _place(self, Client client):
        """Tell the switch whose a client is, and what it needs to hold it to rules, rights and quotas by itself."""
        who = client.credentials
        uid = who.uid
        placements = self._placements
        found = placements.known.get((uid, who.gid, who.groups))
        if found is None:
            found = placements.find(who)
        (blocks_others, rules, sight), client.allowed = found
        client.cred = who.key(self._acceptance.keyspace.prefix)
        self.switch.set_party(client.connection, uid, blocks_others=blocks_others, rules=rules, sight=sight, cred=client.cred)
        quotas = self._accounts.account_of(client.connection).quotas
        self.switch.set_user_limits(uid, quotas.queued_packets, quotas.queued_bytes)

    cpdef _subscribe(self, Client client, bytes pattern):
        """Store a pattern, if the client may have it."""
        connection = client.connection
        if pattern not in client.allowed:
            verdict = self._acceptance.subscription(pattern, client.credentials, connection)
            if verdict.code is not None:
                self._refuse_subscription(client, pattern, verdict)
                return
            if len(pattern) <= _LONGEST_ALLOWED and not pattern.startswith(_RESERVED_HEAD):
                if len(client.allowed) >= _MOST_ALLOWED:
                    client.allowed.clear()
                client.allowed.add(pattern)
        excess = self._accounts.charge_subscription(connection, pattern)
        if excess is not None:
            self._tell_excess(client, excess, _SUB_HEAD + pattern)
            return
        if pattern.startswith(_SECRET_HEAD) and self._acceptance.names_process(pattern) and not self._bind(client, pattern):
            self._accounts.release_subscription(connection, pattern)
            return
        self.switch.subscribe(connection, pattern)
        client.subscriptions += 1
        if self.has_change_log:
            self._change_log.subscribed(client, pattern)
        if self.is_heard() or pattern.startswith(_EVENT_HEAD):
            self._presence.subscribed(client, pattern)
