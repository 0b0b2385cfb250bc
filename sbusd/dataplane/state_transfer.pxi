"""What one process hands over to the next: `sbusd.dataplane.switch_state`. Spec: sbusd(8), RESTARTS."""

from itertools import zip_longest

from cython.operator cimport dereference, preincrement
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.deque cimport deque
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from sbusd.dataplane.counters import UserWaits
from sbusd.dataplane.switch_state import ConnectionProgress, Queue, SwitchTotals

# -- taking a snapshot

cdef object progress_of(Plane plane, uint64_t number):
    """Return the progress of a connection."""
    cdef Connection* asked = find(plane, number)
    cdef bint is_blocking = asked.blocking.since >= 0
    return ConnectionProgress(
        received_packets=asked.reading.packets, received_bytes=asked.reading.bytes, refused_packets=asked.reading.refused,
        delivered_packets=asked.out.delivered_packets, delivered_bytes=asked.out.delivered_bytes, lost_packets=asked.out.lost_packets,
        replaced_packets=asked.out.replaced_packets, unreported_replacements=asked.out.unreported_replacements,
        unreported_losses=asked.out.unreported_losses, noticed_losses=asked.out.noticed_losses,
        blocks=tuple([each.id for each in asked.blocking.publishers]),
        blocking_ms=now_ms() - asked.blocking.since if is_blocking else 0,
        idle_ms=now_ms() - asked.blocking.progress_at if is_blocking else 0,
        progress_mark=asked.blocking.progress_mark, has_fallen_back=asked.blocking.has_fallen_back,
        receipt_token=(<bytes>asked.receipt.token).decode("latin-1") if asked.receipt.is_armed else None,
        paces=tuple([each.id for each in asked.blocking.publishers if each.is_paced]),
        held_us={each.uid: spent_until(&each, now_ns()) // 1000 for each in asked.publishing.holds},
        reads=asked.reading.reads, receipt_always=asked.receipt.is_armed and asked.receipt.always,
        receipt_lists=asked.receipt.is_armed and asked.receipt.lists,
        blocked_ms=blocked_ms(asked, now_ns()), blocked_others_ms=blocked_others_ms(asked, now_ns()),
    )


cdef tuple queues_of(Plane plane):
    """Return the packets in all queues, each once, and the queues by connection."""
    cdef unordered_map[uint64_t, size_t] places     # of packets, by their addresses
    cdef Connection* connection
    packets = []
    queues = {}
    for number in sorted([entry.first for entry in plane.by_id]):
        connection = find(plane, number)
        waiting = queue_of(connection.out.waiting, &places, packets)
        fixed, lines = replaceable_from(&connection.out), ()
        if connection.out.lines is not NULL:
            behind, lines = lines_of(&connection.out, &places, packets)
            waiting += behind
            fixed = len(waiting)
        queue = Queue(waiting, queue_of(connection.out.notes, &places, packets), unread_of(connection.reading.backlog, packets), fixed,
                      half_read_of(connection, packets), part_sent_of(connection, &places, packets), lines)
        if not queue.is_empty:
            queues[number] = queue
    return packets, queues


cdef tuple queue_of(Entries* entries, unordered_map[uint64_t, size_t]* places, list packets):
    """Return *entries* as places in *packets*, to which new packets are added."""
    cdef size_t i
    found = []
    for i in range(0 if entries is NULL else entries.size()):
        found.append(entry_of(dereference(entries)[i], places, packets))
    return tuple(found)


cdef tuple lines_of(Outbox* box, unordered_map[uint64_t, size_t]* places, list packets):
    """Return the entries in lines of users, line after line, and the lines. Once the order has changed, they are one queue."""
    cdef Line* line
    cdef size_t i
    columns = []
    lines = []
    for i in range(box.lines.turns.size()):
        line = box.lines.turns[i]
        columns.append(queue_of(line.entries, places, packets))
        lines.append((None if line.uid == <uint32_t>NO_USER else line.uid, len(columns[i]), 0, line.noticed))
    if box.lines.is_closed:
        in_turns = [entry for row in zip_longest(*columns) for entry in row if entry is not None]
        return (*in_turns, *queue_of(box.lines.later, places, packets)), ()
    for i in range(box.lines.gaps.size()):
        line = box.lines.gaps[i]
        lines.append((None if line.uid == <uint32_t>NO_USER else line.uid, 0, line.unreported, 0))
    return tuple([entry for column in columns for entry in column]), tuple(lines)


cdef tuple entry_of(Entry entry, unordered_map[uint64_t, size_t]* places, list packets):
    """Return an entry as places in *packets*, to which new packets are added."""
    return (
        saved_place_of(entry.packet, places, packets),
        None if entry.head is NULL else saved_place_of(entry.head, places, packets),
        None if entry.payer == <uint32_t>NO_USER else entry.payer,
    )


cdef tuple unread_of(Backlog* backlog, list packets):
    """Return a backlog as places in *packets*, to which its packets are added."""
    found = []
    if backlog is not NULL:
        for packet, is_cut in packets_of(backlog):
            found.append((len(packets), is_cut))
            packets.append(packet)
    return tuple(found)


cdef object half_read_of(Connection* connection, list packets):
    """Return the place of the beginning of a frame, which is added to *packets*; None: there is none."""
    cdef HalfFrame* half = connection.reading.half
    if half is NULL:
        return None
    packets.append((<char*>half + sizeof(HalfFrame))[:half.filled])
    return len(packets) - 1


cdef object part_sent_of(Connection* connection, unordered_map[uint64_t, size_t]* places, list packets):
    """Return the entry of a packet whose frame was sent in part, the number of bytes of the frame that are left, and whether the socket has
    refused none of them; None: there is none."""
    if connection.out.rest.packet is NULL:
        return None
    return entry_of(connection.out.rest, places, packets), connection.out.rest_left, bool(connection.out.is_deferred)


cdef size_t saved_place_of(Packet* packet, unordered_map[uint64_t, size_t]* places, list packets) except? 0:
    """Return the place of a packet in *packets*, to which it is added if it is new."""
    cdef uint64_t address = <uint64_t>packet
    if not places.count(address):
        dereference(places)[address] = len(packets)
        packets.append(data_of(packet)[:bytes_in(packet)])
    return dereference(places)[address]


cdef object waits_of_user(Plane plane, uint32_t uid):
    """Return for how long a user's publishers have waited, and publishers for its recipients."""
    cdef unordered_map[uint32_t, Account*].iterator found = plane.accounts.find(uid)
    cdef Account* account
    cdef int64_t now = now_ns()
    if found == plane.accounts.end():
        return UserWaits(0, 0)
    account = dereference(found).second
    return UserWaits((account.blocked_ns + account.blocked * now) // MILLISECOND_NS,
                     (account.blocked_others_ns + account.blocked_others * now) // MILLISECOND_NS)


cdef object totals_of(Plane plane, dict counters):
    """Return the totals of the switch, whose counters are *counters*."""
    for name in ("connections", "queued_packets", "queued_bytes", "held_bytes", "half_read_bytes", "subscriptions"):
        del counters[name]
    present = [entry.first for entry in plane.accounts if entry.second.connections]
    return SwitchTotals(
        **counters, lost_by_user={entry.first: entry.second.lost_packets for entry in plane.accounts if entry.second.connections},
        blocked_by_user={uid: tuple(waits_of_user(plane, uid)) for uid in present})


# -- restoring it

cdef int restore_progress(Plane plane, uint64_t number, progress) except -1:
    """Set the progress of an adopted connection."""
    cdef Connection* restored = find(plane, number)
    cdef Blocked publisher
    cdef Hold* hold
    restored.reading.packets, restored.reading.bytes = progress.received_packets, progress.received_bytes
    restored.reading.refused, restored.reading.reads = progress.refused_packets, progress.reads
    restored.out.delivered_packets, restored.out.delivered_bytes = progress.delivered_packets, progress.delivered_bytes
    restored.out.lost_packets, restored.out.unreported_losses = progress.lost_packets, progress.unreported_losses
    restored.out.noticed_losses = progress.noticed_losses
    restored.out.replaced_packets, restored.out.unreported_replacements = progress.replaced_packets, progress.unreported_replacements
    if progress.receipt_token is not None:
        token = progress.receipt_token.encode("latin-1")
        arm(&restored.receipt, <const char*>token, len(token), progress.receipt_always, progress.receipt_lists)
    for each in progress.blocks:
        publisher.id = each
        publisher.slot = 0          # restore_blocks knows it, once all connections are there
        publisher.is_paced = each in progress.paces
        restored.blocking.publishers.push_back(publisher)
    for uid, spent in progress.held_us.items():
        # As if all of it had been in this moment.
        hold = add_hold(&restored.publishing.holds, uid, now_ns())
        hold.spent[hold.slot % SLOTS] = min(<int64_t>spent * 1000, <int64_t>SECOND_NS)
    if restored.blocking.publishers.size():
        restored.blocking.since = now_ms() - <int64_t>progress.blocking_ms
    restored.blocking.progress_at = now_ms() - <int64_t>progress.idle_ms
    restored.publishing.blocked_ns = <int64_t>progress.blocked_ms * MILLISECOND_NS
    restored.blocking.blocked_ns = <int64_t>progress.blocked_others_ms * MILLISECOND_NS
    restored.blocking.progress_mark, restored.blocking.has_fallen_back = progress.progress_mark, progress.has_fallen_back
    return 0


cdef int restore_all(Plane plane, list packets, dict queues, totals, uint64_t next_connection) except -1:
    """Set everything else, once every connection is adopted and has its progress."""
    cdef unordered_map[uint64_t, Connection*].iterator each = plane.by_id.begin()
    cdef Connection* connection
    plane.next_id = max(plane.next_id, next_connection)
    restore_totals(plane, totals)
    restore_queues(plane, packets, queues)
    while each != plane.by_id.end():
        restore_blocks(plane, dereference(each).second)
        preincrement(each)
    each = plane.by_id.begin()
    while each != plane.by_id.end():
        connection = dereference(each).second
        if not update_interest(plane, connection):
            finish(plane, connection, END_BROKEN)
        update_pending(plane, connection)
        if connection.out.noticed_losses:
            plane.informed.push_back(connection.slot)
        preincrement(each)
    return 0


cdef int restore_totals(Plane plane, totals) except -1:
    """Add the counters of the process before."""
    cdef unordered_map[uint32_t, Account*].iterator found
    plane.accepting.accepted += totals.accepted
    plane.accepting.failures += totals.accept_failures
    plane.schedule.turn += totals.turns
    plane.intake.batches += totals.received_batches
    plane.counted.received_packets += totals.received_packets
    plane.counted.received_bytes += totals.received_bytes
    plane.counted.messages += totals.messages
    plane.counted.undeliverable += totals.undeliverable
    plane.counted.refused_packets += totals.refused_packets
    plane.counted.blocks += totals.blocks
    plane.counted.fallbacks += totals.fallbacks
    plane.counted.redelivered += totals.redelivered_packets
    plane.router.hits += totals.cache_hits
    plane.router.misses += totals.cache_misses
    plane.totals.deliveries += totals.deliveries
    plane.totals.delivered_packets += totals.delivered_packets
    plane.totals.delivered_bytes += totals.delivered_bytes
    plane.totals.delivered_batches += totals.delivered_batches
    plane.totals.batched_packets += totals.batched_packets
    plane.totals.replaced_packets += totals.replaced_packets
    plane.totals.lost_packets += totals.lost_packets
    plane.totals.abandoned_packets += totals.abandoned_packets
    for uid, lost in totals.lost_by_user.items():
        found = plane.accounts.find(uid)
        if found != plane.accounts.end():
            dereference(found).second.lost_packets = lost
    for uid, (blocked, others) in totals.blocked_by_user.items():
        found = plane.accounts.find(uid)
        if found != plane.accounts.end():
            dereference(found).second.blocked_ns += <int64_t>blocked * MILLISECOND_NS
            dereference(found).second.blocked_others_ns += <int64_t>others * MILLISECOND_NS
    return 0


cdef int restore_queues(Plane plane, list packets, dict queues) except -1:
    """Fill the queues. A packet of several queues is shared, as it was."""
    cdef vector[Packet*] shared
    cdef Connection* connection
    cdef Packet* packet
    cdef Packet* front
    cdef size_t i
    for data in packets:
        packet = new_packet(<bytes>data, len(<bytes>data), &plane.totals)
        if packet is NULL:
            raise MemoryError
        refer(packet)               # released below
        shared.push_back(packet)
    for number, queue in queues.items():
        if not plane.by_id.count(number):
            # The connection did not come back.
            plane.totals.abandoned_packets += len(queue.waiting) + len(queue.notes) + queue.has_rest
            continue
        connection = find(plane, number)
        restore_backlog(connection, [(packets[place], is_cut) for place, is_cut in queue.unread])
        if connection.out.is_stream:
            restore_half_read(connection, queue, packets)
            restore_part_sent(connection, queue, packets, &shared)
        for entries, is_note in ((queue.waiting, False), (queue.notes, True)):
            for place, head, payer in entries:
                front = NULL
                if head is not None:
                    front = shared[<size_t>head]
                keep_in_place(&connection.out, shared[<size_t>place], front, user_of(payer), is_note)
        restore_keys(&connection.out, queue.fixed)
        restore_lines(&connection.out, queue.lines)
    for i in range(shared.size()):
        release(shared[i])
    return 0


cdef uint32_t user_of(payer) except? 0:
    """Return the uid of a publisher, of whom None means that the user is unknown."""
    return <uint32_t>NO_USER if payer is None else <uint32_t>payer


cdef void keep_in_place(Outbox* box, Packet* packet, Packet* head, uint32_t payer, bint is_note) noexcept nogil:
    """Put a packet into a queue as it was, not into the line of its user."""
    if is_note:
        keep(box, packet, head, payer, True)
        return
    if box.waiting is NULL:
        box.waiting = new deque[Entry]()
    box.waiting.push_back(new_entry(box, packet, head, payer))


cdef int restore_lines(Outbox* box, tuple lines) except -1:
    """Move the last messages of a queue to the lines of their users."""
    cdef vector[Entry] entries
    cdef size_t i = 0, j
    cdef uint64_t left = box.unreported_losses
    for _ in range(min(sum([count for _, count, _, _ in lines]), 0 if box.waiting is NULL else box.waiting.size())):
        entries.push_back(box.waiting.back())
        box.waiting.pop_back()
    for user, count, unreported, noticed in lines:
        for j in range(min(<size_t>count, entries.size())):
            add_to_line(box, entries.back(), user_of(user))
            entries.pop_back()
        unreported = min(unreported, left)
        left -= unreported
        restore_line(box, user_of(user), unreported, noticed)
    return 0


cdef int restore_backlog(Connection* connection, list unread) except -1:
    """Give a connection the packets that the process before had read and not handled."""
    cdef size_t size = 0
    for packet, _ in unread:
        size += record_bytes(packet, len(packet), 0)
    if size:
        connection.reading.backlog = new_backlog(size)
        if connection.reading.backlog is NULL:
            raise MemoryError
        for packet, is_cut in unread:
            store(connection.reading.backlog, packet, len(packet), is_cut, 0)
        start_backlog(connection)
    return 0


cdef int restore_half_read(Connection* connection, queue, list packets) except -1:
    """Give a stream connection the beginning of the frame that it has sent in part."""
    cdef bytes data
    if queue.half_read is not None:
        data = packets[queue.half_read]
        if not restore_half(connection, data, len(data)):
            raise MemoryError
    return 0


cdef int restore_part_sent(Connection* connection, queue, list packets, vector[Packet*]* shared) except -1:
    """Give a stream connection the packet of the frame that it got in part."""
    cdef Entry entry
    cdef size_t length
    entry.head = NULL
    if queue.part_sent is not None:
        (place, head, payer), left, is_deferred = queue.part_sent
        entry.packet, entry.payer = dereference(shared)[<size_t>place], <uint32_t>NO_USER if payer is None else <uint32_t>payer
        length = len(packets[place])
        if head is not None:
            entry.head = dereference(shared)[<size_t>head]
            length += len(packets[head])
        restore_rest(&connection.out, entry, length, left, is_deferred)
    return 0


cdef int restore_blocks(Plane plane, Connection* recipient) except -1:
    """Let the publishers that came back wait again for a recipient."""
    cdef vector[Blocked] named = recipient.blocking.publishers
    cdef unordered_map[uint64_t, Connection*].iterator found
    cdef Connection* publisher
    cdef Blocked entry
    cdef size_t i
    recipient.blocking.publishers.clear()
    for i in range(named.size()):
        found = plane.by_id.find(named[i].id)
        if found != plane.by_id.end():
            publisher = dereference(found).second
            entry.id = named[i].id
            entry.slot = publisher.slot
            entry.is_paced = named[i].is_paced
            begin_wait(plane, recipient, publisher, entry)
            publisher.reading.blockers += 1
    if recipient.blocking.publishers.size():
        plane.blocking.push_back(recipient.slot)
    else:
        recipient.blocking.since = -1
    return 0
