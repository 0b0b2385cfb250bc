# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""What the control plane changes of a connection: its user, rights and patterns, the packets of the bus itself, its end.

A compiled control plane calls these functions; `sbusd.dataplane.switch` has them as methods.
"""

from cython.operator cimport dereference
from libcpp.unordered_map cimport unordered_map

from sbusd.dataplane.avl cimport remove_stored, store_instance
from sbusd.dataplane.backpressure cimport after_send
from sbusd.dataplane.connection cimport END_DISCONNECTED, uid_of
from sbusd.dataplane.outbox cimport assign, post, send_last_words, waiting_count
from sbusd.dataplane.readiness cimport finish
from sbusd.dataplane.receipts cimport Disclosure


cdef Account* account_of(Plane plane, uint32_t uid) noexcept nogil:
    """Return a user, or NULL if it has no connection."""
    cdef unordered_map[uint32_t, Account*].iterator found = plane.accounts.find(uid)
    if found == plane.accounts.end():
        return NULL
    return dereference(found).second


cdef int set_user(Plane plane, Connection* connection, uint32_t uid) except -1:
    """Set the user of a connection. Raises ValueError if it has packets or another user."""
    cdef Account* account
    if uid_of(connection) == uid:
        return 0
    if waiting_count(&connection.out) or connection.out.account is not NULL or connection.reading.backlog is not NULL:
        raise ValueError(f"connection {connection.id} has a user already")
    account = account_of(plane, uid)
    if account is NULL:
        account = new Account()         # all fields are zero
        account.uid = uid
        account.time.number = <uint64_t>uid + 1
        account.room.packets_limit = account.room.bytes_limit = <uint64_t>1 << 62
        plane.accounts[uid] = account
    account.connections += 1
    assign(&connection.out, account)
    return 0


cdef void set_rights(Connection* connection, bint blocks_others, uint64_t rules, int sight, bint may_vouch) noexcept nogil:
    """Set whether a connection may block other users, which publish rules apply to it, what it may know, and whether it may vouch."""
    connection.blocking.of_others = blocks_others
    connection.party.rules = rules
    connection.party.sight = sight
    connection.party.may_vouch = may_vouch
    # A message that was to be routed after this decision may be refused now. The decision does not apply to the next one.
    connection.receipt.disclosure = Disclosure.UNDECIDED


cdef void set_cred(Connection* connection, const char* cred, size_t length) noexcept nogil:
    """Set the credentials that name a connection as a sender."""
    connection.party.cred.assign(cred, length)
    connection.party.head_text.clear()


cdef void add_pattern(Plane plane, Connection* connection, const char* pattern, size_t length) noexcept nogil:
    """Store one more instance of a pattern."""
    store_instance(&connection.patterns, pattern, length)
    connection.instances += 1
    plane.counted.subscriptions += 1
    plane.router.insert(connection.slot, pattern, length)


cdef bint remove_pattern(Plane plane, Connection* connection, const char* pattern, size_t length) noexcept nogil:
    """Remove one instance of a pattern and return True, or return False if there is none."""
    if not remove_stored(&connection.patterns, pattern, length):
        return False
    connection.instances -= 1
    plane.counted.subscriptions -= 1
    plane.router.erase(connection.slot, pattern, length)
    return True


cdef void send_packet(Plane plane, Connection* connection, const char* packet, size_t length) noexcept nogil:
    """Send a packet to a connection, after all that is in its queue."""
    if not connection.is_ending:
        post(&connection.out, packet, length)
        after_send(plane, connection)


cdef void disconnect(Plane plane, Connection* connection, const char* last_words, size_t length) noexcept nogil:
    """End a connection: offer its socket *last_words*, if any, and close it."""
    if connection.is_ending:
        return
    if length:
        send_last_words(&connection.out, last_words, length)
    finish(plane, connection, END_DISCONNECTED)
