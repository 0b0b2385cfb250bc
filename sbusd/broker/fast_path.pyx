# cython: language_level=3
"""The compiled part of the broker: connect, `whoami`, ping, SUB, UNSUB and disconnect, which each short-lived client needs.

It rejects users that `admission` does not allow. Rules, rights and quotas are decided in `access`, `switch_rights` and `quotas`;
`refusals` sends errors. Other packets and ends are left to `sbusd.broker.broker.Broker`. Spec: sbus-protocol(7) §4, §6, §8.
"""

from sbusd.broker.roster cimport Client, Roster
from sbusd.broker.usage cimport UsageTable

from time import time

from sbusd.broker import log_messages
from sbusd.broker.switch_rights import MAX_ALLOWED, MAX_ALLOWED_BYTES
from sbusd.dataplane.contract import End
from sbusd.dataplane.peer import credentials_of
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
cdef bytes _RESERVED_HEAD = b"!/"       # patterns whose verdict depends on more than user and groups
cdef Py_ssize_t _MAX_ALLOWED_BYTES = MAX_ALLOWED_BYTES
cdef Py_ssize_t _MAX_ALLOWED = MAX_ALLOWED
cdef object _CONNECTED = log_messages.CLIENT_CONNECTED
cdef int _CONNECTED_PRIORITY = log_messages.CLIENT_CONNECTED.priority
cdef int _DISCONNECTED_PRIORITY = log_messages.CLIENT_DISCONNECTED.priority
cdef object _DESCRIPTORS = End.DESCRIPTORS
cdef object _HANGUP = End.HANGUP
cdef Py_ssize_t _MAX_PACKET_BYTES = MAX_PACKET_BYTES


cdef class FastPath:
    """The compiled part of a broker, which sets the attributes."""

    cdef public object switch "switch_object"   # `switch` is a keyword of C, which Cython before 3.1 does not escape
    cdef public object _ownership
    cdef public object _journal
    cdef public object _access
    cdef public Roster _roster
    cdef public UsageTable _quotas
    cdef public object _rights
    cdef public object _presence
    cdef public object _bindings
    cdef public object _process_watch
    cdef public object _refusals
    cdef public object _log
    cdef public object _change_log
    cdef public object _counts
    cdef public bint has_change_log             # changes are kept for a restart

    def connected(self, connection, int fd):
        """Add a new client, or reject the connection."""
        cdef Client client
        if self.has_change_log:
            self._change_log.numbered(connection)
        try:
            credentials = credentials_of(fd)
        except OSError as error:
            self._refusals.reject_unknown(connection, error)
            return
        uid = credentials.uid
        allowed = self._ownership.allowed
        if allowed is not None and uid not in allowed:
            # Never in the roster: a rejected user must not be the last client, whose disconnect stops a bus with option -c.
            self._refusals.reject_user(connection, credentials)
            return
        refusal = self._quotas.admit(connection, credentials)
        if refusal is not None:
            self._refusals.reject_for_quota(connection, credentials, refusal)
            return
        client = self._roster.add(connection, credentials, time(), fd)
        self._apply_rights(client)
        if self.has_change_log:
            self._change_log.opened(client)
        if self.has_listeners():
            self._presence.connected(client)
        if _CONNECTED_PRIORITY <= self._journal.level:
            self._log.record(_CONNECTED, client)

    def control(self, connection, bytes packet):
        """Handle a packet that is not a well-formed MSG."""
        cdef Client client = self._roster.client_of(connection)
        self._counts["control_packets"] += 1
        refusal = self._quotas.charge_control(connection)
        if refusal is not None:
            self._refusals.refuse_for_quota(client, refusal, packet)
            return
        try:
            # The most frequent packets are not parsed: their reply is an echo or a constant of the connection.
            if packet.startswith(_PING_HEAD):
                self.switch.send(connection, packet)
            elif packet == _WHOAMI:
                self.switch.send(connection, _WHOAMI_HEAD + client.cred)
            elif packet.startswith(_SUB_HEAD) and len(packet) <= _MAX_PACKET_BYTES:
                refusal = self._quotas.charge_change(connection) if self.has_change_log else None
                if refusal is None:
                    self._subscribe(client, packet[4:].partition(b"\0")[0])
                else:
                    self._refusals.refuse_for_quota(client, refusal, packet)
            else:
                self._handle(client, packet)
        except ProtocolError as error:
            self._refusals.refuse(client, error.code, error.words, packet)
        except Exception as error:
            self._fail(client, error)

    def ended(self, connection, end, counters):
        """Remove a client whose connection has ended."""
        if self._process_watch.by_connection:
            self._process_watch.forget(connection)
        if end is _DESCRIPTORS:
            self._counts["descriptor_senders"] += 1
        client = self._roster.remove(connection)
        if client is None:
            return
        if self.has_change_log:
            self._change_log.closed(client)
        if self.has_listeners():
            self._presence.disconnected(client, counters.queued_packets)
        if end is not _HANGUP or _DISCONNECTED_PRIORITY <= self._journal.level:
            self._log.ended(client, end, counters)
        if self._ownership.ends_when_empty and not len(self._roster):
            self.stop("the last client has left", for_good=True)

    def closed(self, connection):
        """Release what an ended connection used: its descriptor was open until now."""
        self._quotas.leave(connection)

    cdef bint has_listeners(self) except -1:
        """Return whether any client or tap receives events about connections."""
        return bool(self._presence.listening) or self.switch.is_tapped()

    cpdef _apply_rights(self, Client client):
        """Set the user, the rights and the limits of a client in the switch, which enforces them."""
        who = client.credentials
        uid = who.uid
        cache = self._rights
        found = cache.known.get((uid, who.gid, who.groups))
        if found is None:
            found = cache.find(who)
        (blocks_others, rules, sight), client.allowed = found
        client.cred = who.key(self._access.keyspace.prefix)
        self.switch.set_party(client.connection, uid, blocks_others=blocks_others, rules=rules, sight=sight, cred=client.cred)
        limits = self._quotas.user_of(client.connection).limits
        self.switch.set_user_limits(uid, limits.queued_packets, limits.queued_bytes)

    cpdef _subscribe(self, Client client, bytes pattern):
        """Store a pattern, or refuse it."""
        connection = client.connection
        if pattern not in client.allowed:
            verdict = self._access.subscription(pattern, client.credentials, connection)
            if verdict.code is not None:
                self._refusals.refuse_subscription(client, pattern, verdict)
                return
            if len(pattern) <= _MAX_ALLOWED_BYTES and not pattern.startswith(_RESERVED_HEAD):
                if len(client.allowed) >= _MAX_ALLOWED:
                    client.allowed.clear()
                client.allowed.add(pattern)
        refusal = self._quotas.charge_subscription(connection, pattern)
        if refusal is not None:
            self._refusals.refuse_for_quota(client, refusal, _SUB_HEAD + pattern)
            return
        if pattern.startswith(_SECRET_HEAD) and self._access.names_process(pattern) and not self._bindings.bind(client, pattern):
            self._quotas.release_subscription(connection, pattern)
            return
        self.switch.subscribe(connection, pattern)
        client.subscriptions += 1
        if self.has_change_log:
            self._change_log.subscribed(client, pattern)
        if self.has_listeners() or pattern.startswith(_EVENT_HEAD):
            self._presence.subscribed(client, pattern)

    def _unsubscribe(self, Client client, bytes pattern):
        """Remove one instance of a pattern and return True, or return False if there is none."""
        connection = client.connection
        if not self.switch.unsubscribe(connection, pattern):
            return False
        client.subscriptions -= 1
        if self.has_change_log:
            self._change_log.unsubscribed(client, pattern)
        self._quotas.release_subscription(connection, pattern)
        if self._process_watch.by_connection:
            self._bindings.release(client, pattern)
        if self.has_listeners():
            self._presence.unsubscribed(client, pattern)
        return True
