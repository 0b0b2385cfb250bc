"""Queue groups: of all members with a matching pattern one gets each message, the one with the least to read.

The members of a group belong to one user, so that no other user can take its messages. A member has a slot of its own in the router, in
which `Plane.slots` has no connection. The pattern of a member is stored as the pattern, NUL and the name of the group. Each message
of a group has the head ``CMSG !/group/<name> NUL``, so that a client can tell it from the messages of its other patterns.

What a member has to read is its queue and what is unread in its socket, SIOCOUTQ in unix(7); among equals the one that has waited for
longest gets the message. If a member ends, another one gets the messages of its queue. Spec: sbus-protocol(7) §6.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector
from cython.operator cimport dereference, preincrement

from sbusd.dataplane.libc cimport SIOCOUTQ, ioctl

from sbusd.dataplane.contract import MAX_GROUPS, MAX_USER_GROUPS
from sbus.protocol.controls import FROM, GROUP

cdef enum:
    SOCKET_BYTES = 768          # memory that the kernel takes for a packet in a socket, besides its bytes

cdef char NUL = 0
cdef size_t GROUPS = MAX_GROUPS
cdef uint32_t USER_GROUPS = MAX_USER_GROUPS
cdef uint64_t CLOSED = <uint64_t>1 << 62    # added to the load of a member that would lose the message
cdef string GROUP_HEAD = b"CMSG " + GROUP
cdef string FROM_HEAD = b"CMSG " + FROM


# -- members and their patterns

cdef void route_to(Plane plane, Connection* connection, const char* pattern, size_t length) noexcept nogil:
    """Route messages that a pattern matches to a connection, which may be a member of a group."""
    cdef const char* end = <const char*>memchr(pattern, 0, length)
    cdef Member* member
    if end is NULL:
        plane.router.insert(connection.slot, pattern, length)
        return
    member = join(plane, connection, string(end + 1, pattern + length - end - 1))
    member.instances += 1
    plane.router.insert(member.slot, pattern, end - pattern)


cdef void stop_routing_to(Plane plane, Connection* connection, const char* pattern, size_t length) noexcept nogil:
    """Undo `route_to`, once. The last pattern of a member ends its membership."""
    cdef const char* end = <const char*>memchr(pattern, 0, length)
    cdef string name
    cdef Member* member
    if end is NULL:
        plane.router.erase(connection.slot, pattern, length)
        return
    name.assign(end + 1, pattern + length - end - 1)
    member = connection.members[0][name]
    plane.router.erase(member.slot, pattern, end - pattern)
    member.instances -= 1
    if member.instances == 0:
        connection.members.erase(name)
        leave_group(plane, member)


cdef Connection* owner_of_slot(Plane plane, uint32_t slot) noexcept nogil:
    """Return the connection with a slot of the router, which may be that of one of its memberships."""
    cdef Connection* connection = plane.slots[slot]
    return plane.members[slot].connection if connection is NULL else connection


cdef bint has_stored(Plane plane, uint32_t slot, const char* pattern, size_t length) noexcept nogil:
    """Return whether a slot of the router has this very pattern."""
    cdef Connection* connection = plane.slots[slot]
    cdef string text
    if connection is not NULL:
        return instances_of(&connection.patterns, pattern, length) != 0
    text.assign(pattern, length)
    text.push_back(NUL)
    text.append(plane.members[slot].group.name.data() + sizeof(uint32_t), plane.members[slot].group.name.size() - sizeof(uint32_t))
    return instances_of(&plane.members[slot].connection.patterns, text.data(), text.size()) != 0


cdef Member* join(Plane plane, Connection* connection, string name) noexcept nogil:
    """Return the member that a connection is in the group of this name, a new one if it is none."""
    cdef cpp_map[string, Member*].iterator found
    cdef Member* member
    if connection.members is NULL:
        connection.members = new cpp_map[string, Member*]()
    found = connection.members.find(name)
    if found != connection.members.end():
        return dereference(found).second
    member = new Member()       # all fields are zero
    member.connection = connection
    member.group = group_of(plane, connection, name)
    member.group.members += 1
    if plane.free_slots.size():
        member.slot = plane.free_slots.back()
        plane.free_slots.pop_back()
    else:
        member.slot = plane.slots.size()
        plane.slots.push_back(NULL)
    if plane.members.size() <= member.slot:
        plane.members.resize(member.slot + 1)
    plane.members[member.slot] = member
    connection.members[0][name] = member
    return member


cdef bint may_join(Plane plane, Connection* connection, string name) noexcept nogil:
    """Return whether a connection may be a member of the group of this name: see `contract.MAX_GROUPS`."""
    cdef Account* account = connection.out.account
    if connection.members is not NULL:
        if connection.members.count(name):
            return True
        if connection.members.size() >= GROUPS:
            return False
    return account is NULL or account.groups < USER_GROUPS or existing_group(plane, uid_of(connection), name) is not NULL


cdef string full_name(uint32_t uid, string name) noexcept nogil:
    """Return the name of a group among those of all users."""
    cdef string full
    full.assign(<const char*>&uid, sizeof(uid))
    full.append(name)
    return full


cdef Group* existing_group(Plane plane, uint32_t uid, string name) noexcept nogil:
    """Return a group of a user, or NULL."""
    cdef unordered_map[string, Group*].iterator found = plane.groups.find(full_name(uid, name))
    if found == plane.groups.end():
        return NULL
    return dereference(found).second


cdef Group* group_of(Plane plane, Connection* connection, string name) noexcept nogil:
    """Return the group of this name of the connection's user, a new one if there is none."""
    cdef uint32_t uid = uid_of(connection)
    cdef Account* account = connection.out.account
    cdef Group* group = existing_group(plane, uid, name)
    if group is not NULL:
        return group
    group = new Group()         # all fields are zero
    group.name = full_name(uid, name)
    group.head = GROUP_HEAD
    group.head.append(name)
    group.head.push_back(0)
    group.account = account
    if account is not NULL:
        account.groups += 1
    plane.groups[group.name] = group
    return group


cdef void leave_group(Plane plane, Member* member) noexcept nogil:
    """End a membership, and with the last one the group."""
    cdef Group* group = member.group
    plane.members[member.slot] = NULL
    plane.free_slots.push_back(member.slot)
    del member
    group.members -= 1
    if group.members == 0:
        plane.groups.erase(group.name)
        if group.account is not NULL:
            group.account.groups -= 1
            if is_unused(group.account):
                forget_user(plane, group.account)
        del group


cdef void forget_user(Plane plane, Account* account) noexcept nogil:
    """Delete a user that has nothing left but, for a moment, the time that it has taken."""
    keep_absent(&plane.schedule, &account.time)
    plane.accounts.erase(account.uid)
    del account


cdef void forget_members(Plane plane, Connection* connection) noexcept nogil:
    """End all memberships of a connection, whose patterns are not in the router any more or never used again."""
    cdef cpp_map[string, Member*].iterator each
    if connection.members is NULL:
        return
    each = connection.members.begin()
    while each != connection.members.end():
        leave_group(plane, dereference(each).second)
        preincrement(each)
    del connection.members
    connection.members = NULL


# -- the choice

cdef uint64_t load_of(Plane plane, Connection* connection) noexcept nogil:
    """Return how many bytes a connection has not read: measured once for each batch, plus what it got of this batch."""
    cdef int unread = 0
    if connection.share.measured_batch != plane.routing.number:
        connection.share.measured_batch = plane.routing.number
        ioctl(connection.out.fd, SIOCOUTQ, &unread)
        connection.share.load = connection.out.room.bytes + unread
    return connection.share.load


cdef void consider(Plane plane, Connection* sender, Member* member, uint32_t uid, size_t cost) noexcept nogil:
    """Make a member that the current packet matches the chosen one of its group, if it has the least to read so far.

    *sender* is NULL for a packet of a connection that has ended.
    """
    cdef Connection* connection = member.connection
    cdef Group* group = member.group
    cdef uint64_t load
    if connection.is_ending or (connection is sender and not sender.echo):
        return
    load = load_of(plane, connection)
    if connection.out.is_broken or (waiting_count(&connection.out) and discards_all(&connection.out, uid, cost)):
        load |= CLOSED
    if group.chosen is NULL:
        plane.routing.groups.push_back(group)
    elif load > group.load or (load == group.load and not goes_before(member, group.chosen)):
        return
    group.chosen = member
    group.load = load


cdef bint goes_before(Member* member, Member* other) noexcept nogil:
    """Return whether a member has waited for longer than another one."""
    if member.served == other.served:
        return member.connection.id < other.connection.id
    return member.served < other.served


cdef Connection* choose_member(Plane plane, Group* group, size_t length) noexcept nogil:
    """Return the member of a group that gets a packet of *length* bytes, and note in its share that it gets it as a member.

    A member that will discard the packet has no more to read by it, and is not served.
    """
    cdef Member* member = group.chosen
    cdef Connection* connection = member.connection
    cdef MemberPlace place
    group.chosen = NULL
    if not group.load & CLOSED:
        plane.routing.served += 1
        member.served = plane.routing.served
        connection.share.load += length + SOCKET_BYTES
    place.place = connection.share.packets.size()
    place.member = member
    connection.share.members.push_back(place)
    return connection


cdef Connection* choose_loser(Group* group) noexcept nogil:
    """Return the member of a group that the current packet is for, if it discards it and has no share of the batch yet, or NULL.

    It also discards the next packets of the batch for its group that match the same members and cost no less.
    """
    cdef Connection* connection = group.chosen.connection
    if not group.load & CLOSED or connection.out.is_broken or not connection.share.packets.empty():
        return NULL
    group.chosen = NULL
    return connection


cdef void choose_only(Plane plane, Member* member, size_t length) noexcept nogil:
    """Let a member get a packet of *length* bytes, whatever the other members of its group have to read."""
    member.group.load = load_of(plane, member.connection)
    member.group.chosen = member
    choose_member(plane, member.group, length)


cdef void note_open_groups(Plane plane, Route found) noexcept nogil:
    """Note the members that a packet matched and whose group has to choose again for the next packet of its key.

    The other groups discard it. One user can be in hundreds of groups whose members do not read: to choose in each of them for each
    message would cost more than its delivery to others.
    """
    cdef uint32_t n
    for n in range(found.count):
        if plane.slots[found.slots[n]] is NULL and plane.members[found.slots[n]].group.is_open:
            plane.routing.repeated.members.push_back(found.slots[n])


cdef void miss_members(Plane plane, Route found, uint32_t index) noexcept nogil:
    """Note the connections that a packet matched only as members of groups, and that were not chosen."""
    cdef Tally* tally = &plane.batch.tally[index]
    cdef Connection* connection
    cdef uint32_t n
    for n in range(found.count):
        if plane.slots[found.slots[n]] is NULL:
            connection = plane.members[found.slots[n]].connection
            if not has_in_share(connection, index) and not is_missed(tally, connection.id):
                miss(tally, connection.id)


cdef inline bint has_in_share(Connection* connection, uint32_t index) noexcept nogil:
    """Return whether the packet that was added last is in the share of a connection."""
    return not connection.share.packets.empty() and connection.share.packets.back() == index


# -- delivery

cdef void offer_share(Plane plane, Connection* recipient, bint may_block, bint is_paced, Head* heads, size_t stride) noexcept nogil:
    """Offer a connection its share of the batch, with `outbox.offer`; what it gets as a member of a group has another head."""
    cdef size_t start = 0, end, i = 0, count = recipient.share.packets.size()
    cdef size_t members = recipient.share.members.size()
    cdef const uint32_t* packets = recipient.share.packets.data()
    cdef Member* member
    while start < count:
        if i < members and recipient.share.members[i].place == start:
            member = recipient.share.members[i].member
            end = start
            while i < members and recipient.share.members[i].place == end and recipient.share.members[i].member is member:
                i += 1
                end += 1
            offer_to_member(plane, member, &packets[start], end - start, may_block, is_paced, heads, stride)
        else:
            end = recipient.share.members[i].place if i < members else count
            offer(&recipient.out, &plane.batch, &packets[start], end - start, may_block, is_paced, heads, stride)
        start = end
    recipient.share.members.clear()


cdef void offer_to_member(Plane plane, Member* member, const uint32_t* packets, size_t count, bint may_block, bint is_paced,
                          Head* heads, size_t stride) noexcept nogil:
    """Offer packets with the head of a group, before the one that names the sender."""
    cdef Outbox* out = &member.connection.out
    cdef uint64_t delivered = out.delivered_packets
    cdef size_t i
    cdef vector[string] texts
    cdef vector[Head] own
    if heads is NULL:
        stride = 0
    # As in `offer`: one head for all packets, or one for each place in the batch.
    own.resize(BATCH_PACKETS if stride else 1)
    texts.resize(count if stride else 1)
    for i in range(texts.size()):
        texts[i] = member.group.head
        if heads is not NULL:
            texts[i].append(<const char*>heads[packets[i] * stride].part.iov_base, heads[packets[i] * stride].part.iov_len)
        own[packets[i] * stride].part.iov_base = <void*>texts[i].data()
        own[packets[i] * stride].part.iov_len = texts[i].size()
    offer(out, &plane.batch, packets, count, may_block, is_paced, own.data(), stride)
    for i in range(texts.size()):
        release_head(&own[packets[i] * stride])
    if out.is_broken:
        for i in range(out.delivered_packets - delivered, count):
            pass_on_packet(plane, member.group, texts[i if stride else 0], packets[i])


cdef void pass_on_packet(Plane plane, Group* group, string text, uint32_t index) noexcept nogil:
    """Give a packet of the batch, whose member has gone, to another one; *text* is its head."""
    text.append(<const char*>plane.batch.parts[index].iov_base, plane.batch.parts[index].iov_len)
    if pass_on(plane, group, text, plane.batch.payer) and plane.batch.is_tallied:
        plane.batch.tally[index].queued += 1


# -- messages of members that have ended

cdef void pass_on_some(Plane plane, size_t most, int64_t end) noexcept nogil:
    """Release the first packets of an abandoned queue, in order; other members get those that were for a member of a group.

    *most* is their number at most. After one that is passed on, it stops if the time is after *end*; 0: it does not. To route a long key
    among many patterns takes milliseconds, and so does sending a long message.
    """
    cdef Remains* remains = plane.totals.remains
    cdef Entry* entry = first_left(remains)
    cdef bint is_over = False
    while entry is not NULL and most and not is_over:
        most -= 1
        is_over = pass_on_entry(plane, entry, remains.uid) and end != 0 and now_ns() > end
        release_first(remains, &plane.totals)
        entry = first_left(remains)


cdef bint pass_on_entry(Plane plane, Entry* entry, uint32_t uid) noexcept nogil:
    """Give a message of a member's queue to another member of its group, which belongs to *uid*; return whether it was such a message."""
    cdef string text
    cdef size_t end
    cdef Group* group
    cdef Packet* first = entry.packet if entry.head is NULL else entry.head
    if bytes_in(first) < GROUP_HEAD.size() or memcmp(data_of(first), GROUP_HEAD.data(), GROUP_HEAD.size()) != 0:
        return False
    text.assign(data_of(first), bytes_in(first))
    if entry.head is not NULL:
        text.append(data_of(entry.packet), bytes_in(entry.packet))
    end = text.find(NUL, GROUP_HEAD.size())
    group = existing_group(plane, uid, text.substr(GROUP_HEAD.size(), end - GROUP_HEAD.size()))
    if group is NULL:
        return True
    pass_on(plane, group, text, entry.payer)
    return True


cdef bint pass_on(Plane plane, Group* group, const string& text, uint32_t payer) noexcept nogil:
    """Give a message, with its heads, to a member of a group; return whether there is one that it matches and that can take it."""
    cdef size_t start = text.find(NUL, GROUP_HEAD.size()) + 1
    cdef Connection* connection
    if text.compare(start, FROM_HEAD.size(), FROM_HEAD) == 0:
        start = text.find(NUL, start) + 1
    start += 4      # "MSG "
    consider_all(plane, group, text.data() + start, text.find(NUL, start) - start, payer, cost_of(text.size(), 0))
    if group.chosen is NULL:
        return False
    connection = choose_member(plane, group, text.size())
    connection.share.members.pop_back()     # it is not in its share
    if connection.out.is_broken:
        return False
    plane.counted.redelivered += 1
    post_for(&connection.out, text.data(), text.size(), payer, True)
    after_send(plane, connection)
    return True


cdef void consider_all(Plane plane, Group* group, const char* key, size_t length, uint32_t payer, size_t cost) noexcept nogil:
    """Let `Group.chosen` be a member with a pattern that matches a key, NULL if there is none."""
    cdef Route found = plane.router.route(key, length)
    cdef Member* member
    cdef uint32_t i
    for i in range(found.count):
        if plane.slots[found.slots[i]] is NULL:
            member = plane.members[found.slots[i]]
            if member.group is group:
                consider(plane, NULL, member, payer, cost)
    plane.routing.groups.clear()
