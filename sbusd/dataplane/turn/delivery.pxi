"""How packets get from a publisher to its recipients.

Routing a packet only adds its number to the share of each recipient. When the batch is routed, each recipient gets its share with one
sendmmsg(2), straight from the buffer in which the packets were received.
"""

from cython.operator cimport dereference, preincrement
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, strlen
from libcpp.algorithm cimport sort, unique
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from sbusd.dataplane.libc cimport iovec

from sbusd.dataplane.contract import MAX_GROUPS, MAX_LISTED_RECIPIENTS, REFUSED_KEY_BYTES
from sbus.protocol.keys import SECRET_HEAD

cdef extern from * nogil:
    int first_bit "__builtin_ctzll" (unsigned long long bits)

cdef enum:
    # The cost of a packet without its deliveries, measured, in nanoseconds.
    NODE_NS = 40                # to visit a node of the trie
    BYTES_PER_NS = 4            # received and sent: 16 us for 64 KiB, which take 13 to 15
    SHARE_NS = 500              # to hand one packet to one recipient, without its bytes
    FORGO_NS = 5                # to look at one recipient, and perhaps discard the packet for it

cdef size_t LISTED_RECIPIENTS = MAX_LISTED_RECIPIENTS
cdef size_t REFUSED_KEY_SIZE = REFUSED_KEY_BYTES
cdef bytes _SECRET_HEAD = SECRET_HEAD
cdef const char* SECRET_HEAD_TEXT = _SECRET_HEAD
cdef size_t SECRET_HEAD_BYTES = len(_SECRET_HEAD)


cdef size_t route(Plane plane, Connection* sender, size_t i, size_t count) noexcept nogil:
    """Route packets of the current batch from the *i*-th on, and deliver them.

    Return the number of the first packet that is for the control plane, or whose receipt the control plane has to decide on, or that
    waits for the next turn because those before it took too long: then `is_cut_off` is set.
    """
    cdef const char* packet
    cdef const char* end
    cdef size_t length
    while i < count:
        packet = <const char*>plane.batch.parts[i].iov_base
        length = plane.batch.parts[i].iov_len
        if plane.taps.count or sender.receipt.is_armed:
            clear(&plane.batch.tally[i])
        if plane.intake.is_cut[i]:
            refuse(plane, sender, REFUSED_TRUNCATED, i)
            if sender.receipt.is_armed and is_message(sender, packet, length):
                send_receipt(plane, sender, i)
            i += 1
            continue
        if length < 5 or memcmp(packet, b"MSG ", 4) != 0:
            if not unwrap_message(plane, sender, i):
                break
            packet = <const char*>plane.batch.parts[i].iov_base
            length = plane.batch.parts[i].iov_len
        end = <const char*>memchr(packet + 4, 0, length - 4)
        if end is NULL:
            break
        if <size_t>(end - packet) - 4 > plane.bounds.key_bytes:
            refuse(plane, sender, REFUSED_KEY_TOO_LONG, i)
        elif not route_message(plane, sender, packet + 4, end - packet - 4, i):
            wrap_again(&plane.vouching, &plane.batch, i)
            wrap_direct_again(&plane.direct, &plane.batch, i)
            break
        if sender.receipt.is_armed:
            send_receipt(plane, sender, i)
        i += 1
        if sender.publishing.is_paced:
            # Slow recipients are offered together only what fits into their queues, so the packet that fills a queue ends the batch.
            plane.routing.undelivered += length
            if plane.routing.meets_queue or plane.routing.is_secret or plane.routing.undelivered > PACED_BYTES:
                deliver(plane, sender)
            plane.routing.is_secret = False
            if sender.reading.blockers and not plane.routing.was_blocked:
                plane.routing.is_cut_off = True
                break
        if is_too_long(&plane.schedule, plane.routing.time):
            plane.routing.is_cut_off = True
            break
    deliver(plane, sender)
    return i


cdef bint is_message(Connection* sender, const char* packet, size_t length) noexcept nogil:
    """Return whether a truncated packet was a message."""
    return (memcmp(packet, b"MSG ", 4) == 0 or (sender.party.may_vouch and is_vouched(packet, length))
            or (sender.party.may_deliver and is_direct(packet, length)))


cdef bint unwrap_message(Plane plane, Connection* sender, size_t i) noexcept nogil:
    """Replace a direct message, or one for which the sender vouches, by the MSG in it. Return False if it may not send the packet."""
    cdef bint is_unwrapped = sender.party.may_deliver and unwrap_direct(&plane.direct, &plane.batch, i)
    if is_unwrapped and memcmp(plane.batch.parts[i].iov_base, b"MSG ", 4) == 0:
        return True
    if sender.party.may_vouch and unwrap(&plane.vouching, &plane.batch, i):
        return True
    wrap_direct_again(&plane.direct, &plane.batch, i)
    return False


cdef inline bint route_message(Plane plane, Connection* sender, const char* key, size_t length, size_t i) noexcept nogil:
    """Route the *i*-th packet, a MSG. Return False if the control plane must first decide on its receipt."""
    cdef uint64_t visited = plane.router.visited
    cdef Route found = plane.router.route(key, length)
    cdef uint32_t shares
    plane.routing.time += <int64_t>(plane.router.visited - visited) * NODE_NS
    if found.refusal >= 0:
        refuse(plane, sender, found.refusal, i)
        return True
    if is_denied(plane, sender, found.rules) or is_denied(plane, sender, found.inner_rules):
        refuse_by_rule(plane, sender, found, i)
        return True
    if (sender.receipt.is_armed and sender.receipt.disclosure == Disclosure.UNDECIDED and is_secret_key(plane, key, length)):
        sender.receipt.disclosure = Disclosure.ASKED
        return False
    if sender.publishing.is_paced and is_secret_key(plane, key, length):
        deliver(plane, sender)
        plane.routing.is_secret = True      # it is delivered separately: see may_pace
    if plane.direct.is_used and plane.direct.recipients[i]:
        shares = add_to_recipient(plane, sender, found, i)
    else:
        shares = add_to_shares(plane, sender, found, i)
    plane.routing.time += found.count * <int64_t>FORGO_NS
    plane.routing.time += shares * <int64_t>(SHARE_NS + plane.batch.parts[i].iov_len // BYTES_PER_NS)
    if plane.taps.count:
        plane.taps.note(key, length, i, &plane.batch)
    return True


cdef void send_receipt(Plane plane, Connection* sender, size_t index) noexcept nogil:
    """Deliver the batch up to a packet for which the sender wants a receipt, and send that."""
    cdef Tally* tally = &plane.batch.tally[index]
    cdef vector[uint64_t] listed
    if sender.receipt.lists:
        list_recipients(plane, listed)
    plane.batch.is_tallied = True
    deliver(plane, sender)
    if sender.is_ending:
        sender.receipt.is_armed = False
        return
    # Whether another user's queue is full is secret. Otherwise a sender that fills it by a secret key could learn of its subscriber.
    answer(&sender.receipt, &sender.out,
           tally.handed + tally.queued + (0 if sender.party.sight >= SIGHT_ALL else tally.foreign_losses), listed)
    after_send(plane, sender)


cdef void list_recipients(Plane plane, vector[uint64_t]& listed) noexcept nogil:
    """List the connections that the last packet was routed to, by ascending number, if they are at most `LISTED_RECIPIENTS`."""
    cdef size_t i
    # A connection can get it as a member of each of its groups, and besides.
    if plane.routing.repeated.recipients.size() > LISTED_RECIPIENTS * (GROUPS + 1):
        return
    for i in range(plane.routing.repeated.recipients.size()):
        listed.push_back(plane.slots[plane.routing.repeated.recipients[i]].id)
    sort(listed.begin(), listed.end())
    listed.erase(unique(listed.begin(), listed.end()), listed.end())
    if listed.size() > LISTED_RECIPIENTS:
        listed.clear()


cdef bint is_secret_key(Plane plane, const char* key, size_t length) noexcept nogil:
    """Return whether a key's recipients are secret."""
    return plane.bounds.has_secrets and length >= SECRET_HEAD_BYTES and memcmp(key, SECRET_HEAD_TEXT, SECRET_HEAD_BYTES) == 0


cdef bint is_denied(Plane plane, Connection* sender, uint64_t rules) noexcept nogil:
    """Return whether the first publish rule that applies to both the sender and the key denies."""
    cdef uint64_t both = sender.party.rules & rules
    return both != 0 and (both & (~both + 1) & plane.allowing_rules) == 0


cdef void refuse_by_rule(Plane plane, Connection* sender, Route found, size_t index) noexcept nogil:
    """Refuse a message that a publish rule denies, with the error of that rule."""
    cdef uint64_t rules = found.rules if is_denied(plane, sender, found.rules) else found.inner_rules
    cdef string* text = &plane.rule_refusals[first_bit(sender.party.rules & rules)]
    cdef iovec error = plane.batch.parts[<int>BATCH_PACKETS + <int>REFUSED_POLICY]
    if not text.empty():
        error.iov_base, error.iov_len = <void*>text.data(), text.size()
    refuse_with(plane, sender, REFUSED_POLICY, index, error)


cdef void refuse(Plane plane, Connection* sender, int refusal, size_t index) noexcept nogil:
    """Refuse a packet that is not routed."""
    refuse_with(plane, sender, refusal, index, plane.batch.parts[<int>BATCH_PACKETS + refusal])


cdef void refuse_with(Plane plane, Connection* sender, int refusal, size_t index, iovec error) noexcept nogil:
    """Count a packet that is not routed, and put *error*, with its key, into the sender's share, in the packet's place."""
    end_repeated(plane)     # what the sender lost so far comes before the refusal
    if plane.routing.refused[refusal] == 0:
        plane.routing.refused_first[refusal] = index
    plane.routing.refused[refusal] += 1
    sender.reading.refused += 1
    plane.counted.refused_packets += 1
    plane.routing.time += SHARE_NS
    add_to_share(plane, sender, add_key(plane, error, index))


cdef uint32_t add_key(Plane plane, iovec error, size_t index) noexcept nogil:
    """Write *error* and the key of the packet that it is about, if that is a message, and return the place of this in the batch."""
    cdef iovec* packet = &plane.batch.parts[index]
    cdef const char* key = <const char*>packet.iov_base + 4
    cdef uint32_t place = <uint32_t>BATCH_PACKETS + REFUSALS + index
    cdef string* text = &plane.keyed_refusals[index]
    cdef const char* end
    cdef size_t length
    text.assign(LENGTH_BYTES, 0)
    text.append(<const char*>error.iov_base, error.iov_len)
    if packet.iov_len >= 4 and memcmp(packet.iov_base, b"MSG ", 4) == 0:
        length = min(packet.iov_len - 4, REFUSED_KEY_SIZE)
        end = <const char*>memchr(key, 0, length)
        text.push_back(0)
        text.append(key, length if end is NULL else end - key)
    plane.batch.parts[place].iov_base = <char*>text.data() + LENGTH_BYTES
    plane.batch.parts[place].iov_len = text.size() - LENGTH_BYTES
    return place


# -- shares

cdef uint32_t add_to_shares(Plane plane, Connection* sender, Route found, uint32_t index) noexcept nogil:
    """Add a packet to the share of each of its recipients, and return their number."""
    cdef uint32_t n, shares = 0, payer = owner_of(&sender.out)
    cdef bint reached = False, has_members = False
    cdef Connection* recipient
    cdef Repeated* repeated = &plane.routing.repeated
    # A receipt or a tap needs the result for each packet, and a paced publisher needs a look at each queue.
    cdef bint may_forgo = not (plane.taps.count or sender.receipt.is_armed or sender.publishing.is_paced)
    cdef size_t cost = cost_of(plane.batch.parts[index].iov_len, 0)
    plane.counted.messages += 1
    if may_forgo and is_repeated(plane, index, cost):
        for n in range(repeated.recipients.size()):
            add_to_share(plane, plane.slots[repeated.recipients[n]], index)
        for n in range(repeated.members.size()):
            consider(plane, sender, plane.members[repeated.members[n]], payer, cost)
        repeated.uncounted += 1
        plane.counted.undeliverable += repeated.recipients.empty() and repeated.excluded.empty() and repeated.members.empty()
        return <uint32_t>repeated.recipients.size() + add_to_members(plane, sender, index, may_forgo)
    end_repeated(plane)
    for n in range(found.count):
        recipient = plane.slots[found.slots[n]]
        if recipient is NULL:
            has_members = True
            consider(plane, sender, plane.members[found.slots[n]], payer, cost)
            continue
        if recipient.is_ending or (recipient is sender and not sender.echo):
            if plane.taps.count:
                miss(&plane.batch.tally[index], recipient.id)
            continue
        reached = True
        if sender.publishing.is_paced and recipient is not sender and waiting_count(&recipient.out):
            plane.routing.meets_queue = True
        if (may_forgo and recipient.share.packets.empty() and waiting_count(&recipient.out)
                and is_closed_to(plane, recipient, payer, cost)):
            discard_unseen(&recipient.out, 1)
            repeated.excluded.push_back(recipient.slot)
            continue
        add_to_share(plane, recipient, index)
        repeated.recipients.push_back(recipient.slot)
        shares += 1
    if plane.routing.groups.size():
        reached = True
        shares += add_to_members(plane, sender, index, may_forgo)
        if may_forgo:
            note_open_groups(plane, found)
    if has_members and plane.taps.count:
        miss_members(plane, found, index)
    plane.counted.undeliverable += not reached
    repeated.first = <int>index if may_forgo else -1
    repeated.cost = cost
    return shares


cdef uint32_t add_to_members(Plane plane, Connection* sender, uint32_t index, bint may_forgo) noexcept nogil:
    """Add a packet to the share of one member of each group that it matched, or count it there if the member discards it.

    Return the number of shares. For the first of repeated packets, note the members that discard the others too.
    """
    cdef size_t i
    cdef uint32_t shares = 0
    cdef Group* group
    cdef Connection* recipient
    cdef Repeated* repeated = &plane.routing.repeated
    for i in range(plane.routing.groups.size()):
        group = plane.routing.groups[i]
        recipient = choose_loser(group) if may_forgo else NULL
        group.is_open = recipient is NULL
        if recipient is not NULL:
            discard_unseen(&recipient.out, 1)
            if repeated.first < 0:
                repeated.excluded.push_back(recipient.slot)
            continue
        recipient = choose_member(plane, group, plane.batch.parts[index].iov_len)
        if sender.publishing.is_paced and recipient is not sender and waiting_count(&recipient.out):
            plane.routing.meets_queue = True
        add_to_share(plane, recipient, index)
        shares += 1
        if not may_forgo:
            repeated.recipients.push_back(recipient.slot)   # for a receipt
    plane.routing.groups.clear()
    return shares


cdef uint32_t add_to_recipient(Plane plane, Connection* sender, Route found, uint32_t index) noexcept nogil:
    """Add a direct message to the share of its recipient, if that has a pattern that matches. Return the number of recipients.

    A connection that it matches only as a member of groups gets it as a member of the first of these by name.
    """
    cdef Member* member = NULL
    cdef Connection* recipient = recipient_in(plane, found, plane.direct.recipients[index], &member)
    end_repeated(plane)     # messages before and after it have other recipients
    plane.counted.messages += 1
    if recipient is not NULL and (recipient.is_ending or (recipient is sender and not sender.echo)):
        if plane.taps.count:
            miss(&plane.batch.tally[index], recipient.id)
        recipient = NULL
    if recipient is NULL:
        plane.counted.undeliverable += 1
        return 0
    if sender.publishing.is_paced and recipient is not sender and waiting_count(&recipient.out):
        plane.routing.meets_queue = True
    if member is not NULL:
        choose_only(plane, member, plane.batch.parts[index].iov_len)
    add_to_share(plane, recipient, index)
    plane.routing.repeated.recipients.push_back(recipient.slot)
    return 1


cdef Connection* recipient_in(Plane plane, Route found, uint64_t number, Member** member) noexcept nogil:
    """Return the connection with this number if it is among those that a message matches, or NULL.

    Set *member* if it matches as a member only. Slots are compared, because a message can match thousands of connections.
    """
    cdef unordered_map[uint64_t, Connection*].iterator named = plane.by_id.find(number)
    cdef cpp_map[string, Member*].iterator each
    cdef Connection* connection
    if named == plane.by_id.end():
        return NULL
    connection = dereference(named).second
    if has_slot(found, connection.slot):
        return connection
    if connection.members is NULL:
        return NULL
    each = connection.members.begin()
    while each != connection.members.end():
        if has_slot(found, dereference(each).second.slot):
            member[0] = dereference(each).second
            return connection
        preincrement(each)
    return NULL


cdef bint has_slot(Route found, uint32_t slot) noexcept nogil:
    """Return whether a slot is among those that a message matches."""
    cdef uint32_t n
    for n in range(found.count):
        if found.slots[n] == slot:
            return True
    return False


cdef inline void add_to_share(Plane plane, Connection* recipient, uint32_t index) noexcept nogil:
    """Add a packet to the share of one connection."""
    cdef pair[uint64_t, uint32_t] entry
    if recipient.share.packets.empty():
        entry.first = recipient.id
        entry.second = recipient.slot
        plane.routing.touched.push_back(entry)
    recipient.share.packets.push_back(index)


cdef bint is_repeated(Plane plane, uint32_t index, size_t cost) noexcept nogil:
    """Return whether a packet has the same key as the one before it, and therefore the same recipients, and costs no less."""
    cdef const char* packet = <const char*>plane.batch.parts[index].iov_base
    cdef const char* first
    cdef size_t length
    if plane.routing.repeated.first < 0 or cost < plane.routing.repeated.cost:
        return False
    first = <const char*>plane.batch.parts[plane.routing.repeated.first].iov_base
    length = strlen(first) + 1
    return plane.batch.parts[index].iov_len >= length and memcmp(packet, first, length) == 0


cdef void end_repeated(Plane plane) noexcept nogil:
    """Count the packets that were discarded because the first one of their key was."""
    cdef size_t i
    cdef Repeated* repeated = &plane.routing.repeated
    if repeated.uncounted:
        for i in range(repeated.excluded.size()):
            discard_unseen(&plane.slots[repeated.excluded[i]].out, repeated.uncounted)
    repeated.uncounted = 0
    repeated.first = -1
    repeated.recipients.clear()
    repeated.members.clear()
    repeated.excluded.clear()


cdef bint is_closed_to(Plane plane, Connection* recipient, uint32_t payer, size_t cost) noexcept nogil:
    """Return whether packets that cost so much or more are discarded for a recipient that has no share of the batch yet.

    Its outbox is asked once for most batches, because other deliveries cannot give it room.
    """
    if recipient.share.closed_batch == plane.routing.number and cost >= recipient.share.closed_cost:
        return True
    if not discards_all(&recipient.out, payer, cost):
        return False
    recipient.share.closed_batch = plane.routing.number
    recipient.share.closed_cost = cost
    return True


# -- delivery

cdef void deliver(Plane plane, Connection* sender) noexcept nogil:
    """Deliver its share of the batch to each recipient."""
    cdef size_t i
    cdef Connection* recipient
    cdef uint32_t uid = uid_of(sender)
    cdef bint may_block
    end_repeated(plane)
    plane.batch.uid = uid
    plane.batch.payer = owner_of(&sender.out)
    plane.routing.undelivered = 0
    plane.routing.meets_queue = False
    if plane.routing.touched.size() > 1:
        # The oldest first: the order of the trie must not decide which recipient gets the last of a user's quota.
        sort(plane.routing.touched.begin(), plane.routing.touched.end())
    for i in range(plane.routing.touched.size()):
        recipient = plane.slots[plane.routing.touched[i].second]
        may_block = uid != NO_USER and not recipient.blocking.has_fallen_back and (
            recipient.blocking.of_others or uid == uid_of(recipient))
        offer_share(plane, recipient, may_block, sender.publishing.is_paced and may_pace(plane, sender, recipient),
                    heads_for(plane, sender) if recipient.wants_senders else <Head*>NULL, plane.vouching.is_used)
        recipient.share.packets.clear()
        if recipient.out.has_blocked != NOT_WAITING:
            block(plane, recipient, sender, recipient.out.has_blocked == PACED)
            recipient.out.has_blocked = NOT_WAITING
        after_send(plane, recipient)
    if sender.party.head.kept is not NULL:
        release_head(&sender.party.head)
    if plane.vouching.is_used:
        release_heads(&plane.vouching, plane.intake.count)
    plane.batch.is_tallied = False
    if plane.taps.noted.size():
        plane.taps.deliver(&plane.batch, sender.id, sender.party.cred, &plane.vouching, &plane.direct)
        after_tap_send(plane)
    end_batch(&plane.batch)
    plane.routing.touched.clear()
    plane.routing.number += 1


cdef Head* heads_for(Plane plane, Connection* sender) noexcept nogil:
    """Return the heads of the batch: of each packet, if the publisher vouches for any; otherwise one for all."""
    cdef Head* head = head_of(sender)
    return heads_of(&plane.vouching, sender.party.head_text, plane.intake.count) if plane.vouching.is_used else head


cdef Head* head_of(Connection* sender) noexcept nogil:
    """Return the head of messages for recipients that want to know the sender."""
    if sender.party.head_text.empty():
        append_sender(sender.party.head_text, sender.id, sender.party.cred)
        sender.party.head.part.iov_base = <void*>sender.party.head_text.data()
        sender.party.head.part.iov_len = sender.party.head_text.size()
    return &sender.party.head


cdef void after_tap_send(Plane plane) noexcept nogil:
    """Do what follows when packets were offered to taps."""
    cdef size_t i
    for i in range(plane.taps.touched.size()):
        after_send(plane, plane.slots[plane.taps.touched[i].second])
    plane.taps.touched.clear()
