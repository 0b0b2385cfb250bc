"""What the control plane changes of a connection: its user, rights and patterns, the packets of the bus itself, its end;
and what it asks about many connections.

A compiled control plane calls these functions; `sbusd.dataplane.switch` has them as methods.
"""

from cython.operator cimport dereference, preincrement
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr
from libcpp.map cimport map as cpp_map
from libcpp.unordered_map cimport unordered_map


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


cdef void add_holders(Plane plane, const char* pattern, size_t length, cpp_map[uint64_t, uint32_t]& holders) noexcept nogil:
    """Add the ids and slots of connections that have stored this very pattern."""
    cdef bint has_star = memchr(pattern, c"*", length) is not NULL
    cdef Connection* holder
    cdef size_t i
    plane.router.find_holders(pattern, length)
    for i in range(plane.router.found.size()):
        holder = owner_of_slot(plane, plane.router.found[i])
        if holder.is_ending or holders.count(holder.id):
            continue
        # The router does not tell `a*` from `a**`.
        if not has_star or has_stored(plane, plane.router.found[i], pattern, length):
            holders[holder.id] = holder.slot


cdef void sum_traffic(Plane plane, unordered_map[uint32_t, TrafficSums]* of_users, TrafficSums* others) noexcept nogil:
    """Add what each connection has done to the sums of its user, or to *others*."""
    cdef unordered_map[uint64_t, Connection*].iterator place = plane.by_id.begin()
    cdef unordered_map[uint32_t, TrafficSums].iterator found
    cdef int64_t now = now_ns()
    cdef Connection* connection
    while place != plane.by_id.end():
        connection = dereference(place).second
        if connection.out.account is not NULL:
            found = of_users.find(uid_of(connection))
            add_traffic(others if found == of_users.end() else &dereference(found).second, connection, now)
        preincrement(place)


cdef void post_loss(Plane plane, Connection* holder, const char* packet, size_t length, uint64_t count, uint32_t uid) noexcept nogil:
    """Send a connection the notice of *count* messages, whose loss *uid* has reported."""
    cdef uint64_t lost = holder.out.lost_packets
    post_for(&holder.out, packet, length, uid, False)
    # If there was no room for the notice, the next one must count all that is missing.
    if holder.out.lost_packets != lost and count > 1:
        discard_unseen(&holder.out, count - 1)
    after_send(plane, holder)
