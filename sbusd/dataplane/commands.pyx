# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""What the control plane changes of a connection: its user, rights and patterns, the packets of the bus itself, its end.

A compiled control plane calls these functions; `sbusd.dataplane.switch` has them as methods.
"""

from cython.operator cimport dereference
from libcpp.unordered_map cimport unordered_map

from sbusd.dataplane.avl cimport remove_stored, store_instance
from sbusd.dataplane.backpressure cimport after_send
from sbusd.dataplane.connection cimport END_BROKEN, END_DISCONNECTED, uid_of
from sbusd.dataplane.fairness cimport take_absent
from sbusd.dataplane.groups cimport route_to, stop_routing_to
from sbusd.dataplane.outbox cimport assign, post, send_last_words, waiting_count
from sbusd.dataplane.readiness cimport finish, remove_blocker, update_interest, update_pending
from sbusd.dataplane.receipts cimport Disclosure


cdef Account* account_of(Plane plane, uint32_t uid) noexcept nogil:
    """Return a user that is charged, or NULL if it is charged for no connection."""
    cdef unordered_map[uint32_t, Account*].iterator found = plane.accounts.find(uid)
    if found == plane.accounts.end():
        return NULL
    return dereference(found).second


cdef int set_user(Plane plane, Connection* connection, uint32_t uid, uint32_t charged) except -1:
    """Set the user of a connection, and the uid that is charged for it; once it has both, they stay. Raises ValueError if it has packets or
    another user."""
    cdef Account* account
    if uid_of(connection) == uid:
        return 0
    if waiting_count(&connection.out) or connection.out.account is not NULL or connection.reading.backlog is not NULL:
        raise ValueError(f"connection {connection.id} has a user already")
    account = account_of(plane, charged)
    if account is NULL:
        account = new Account()         # all fields are zero
        account.uid = charged
        account.time = take_absent(&plane.schedule, <uint64_t>charged + 1)
        account.room.packets_limit = account.room.bytes_limit = <uint64_t>1 << 62
        plane.accounts[charged] = account
    account.connections += 1
    assign(&connection.out, uid, account)
    return 0


cdef void set_rights(Connection* connection, bint blocks_others, uint64_t rules, int sight, bint may_vouch, bint may_deliver) noexcept nogil:
    """Set whether a connection may block other users, which publish rules apply to it, what it may know, and whether it may vouch and
    send direct messages."""
    connection.blocking.of_others = blocks_others
    connection.party.rules = rules
    connection.party.sight = sight
    connection.party.may_vouch = may_vouch
    connection.party.may_deliver = may_deliver
    # A message that was to be routed after this decision may be refused now. The decision does not apply to the next one.
    connection.receipt.disclosure = Disclosure.UNDECIDED


cdef void set_cred(Connection* connection, const char* cred, size_t length) noexcept nogil:
    """Set the credentials that name a connection as a sender."""
    connection.party.cred.assign(cred, length)
    connection.party.head_text.clear()


cdef void add_pattern(Plane plane, Connection* connection, const char* pattern, size_t length) noexcept nogil:
    """Store one more instance of a pattern; after a NUL it may have the name of a group."""
    store_instance(&connection.patterns, pattern, length)
    connection.instances += 1
    plane.counted.subscriptions += 1
    route_to(plane, connection, pattern, length)


cdef bint remove_pattern(Plane plane, Connection* connection, const char* pattern, size_t length) noexcept nogil:
    """Remove one instance of a pattern and return True, or return False if there is none."""
    if not remove_stored(&connection.patterns, pattern, length):
        return False
    connection.instances -= 1
    plane.counted.subscriptions -= 1
    stop_routing_to(plane, connection, pattern, length)
    return True


cdef void send_packet(Plane plane, Connection* connection, const char* packet, size_t length) noexcept nogil:
    """Send a packet to a connection, after all that is in its queue."""
    if not connection.is_ending:
        post(&connection.out, packet, length)
        after_send(plane, connection)


cdef void hold_reading(Plane plane, Connection* connection) noexcept nogil:
    """Handle no packet of a connection, also none that it has sent already, until `resume_reading`."""
    if connection.reading.is_held or connection.is_ending:
        return
    connection.reading.is_held = True
    connection.reading.blockers += 1
    if not update_interest(plane, connection):
        finish(plane, connection, END_BROKEN)
    update_pending(plane, connection)


cdef void resume_reading(Plane plane, Connection* connection) noexcept nogil:
    """Handle the packets of a connection again."""
    if not connection.reading.is_held:
        return
    connection.reading.is_held = False
    if connection.reading.is_unwatched and not connection.is_ending and not update_interest(plane, connection):
        finish(plane, connection, END_BROKEN)
    remove_blocker(plane, connection)


cdef void disconnect(Plane plane, Connection* connection, const char* last_words, size_t length) noexcept nogil:
    """End a connection: offer its socket *last_words*, if any, and close it."""
    if connection.is_ending:
        return
    if length:
        send_last_words(&connection.out, last_words, length)
    finish(plane, connection, END_DISCONNECTED)
