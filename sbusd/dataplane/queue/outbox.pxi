"""Packets for one client: to its socket if possible, else to a bounded queue, else they are discarded. Spec: sbus-protocol(7) §7.

A packet that the socket takes is never copied: it is sent from the buffer in which it was received. The first recipient that must queue it
makes one copy, which all others share by reference. Discarded packets are lost: they are counted, and the client gets the loss notice
``CMSG !/bus/lost NUL <count>`` as soon as there is room, with the order ``queue`` in the place of the gap. With the order ``latest`` a
message replaces an older one of its key (`order`). Replaced messages are counted, and the client gets a notice before the next messages;
that notice is never queued, so no limit applies to it.

Quotas limit a connection's queue, and all queues of a user. The memory of the bus is shared by users in the same way: each may
hold at most as much as it leaves free.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libcpp.deque cimport deque

from sbusd.dataplane.libc cimport iovec, mmsghdr

cdef enum:
    FLUSH_ROUNDS = 4        # batches sent to one client in a turn: more than an empty socket buffer takes

cdef mmsghdr headers[BATCH_PACKETS]         # built again for each call; only one thread sends
cdef iovec parts[2 * BATCH_PACKETS]         # of packets in the queue, and of packets with a head, which have two
cdef size_t chosen[BATCH_PACKETS]           # places in `waiting` of the messages to send


cdef inline void clear(Tally* tally) noexcept nogil:
    """Set all counts of a packet to zero."""
    tally.handed = tally.queued = tally.discarded = tally.foreign_losses = tally.missed_count = 0


cdef inline void miss(Tally* tally, uint64_t connection) noexcept nogil:
    """Note a connection that a packet matched and did not reach."""
    if tally.missed_count < <uint32_t>MISSED:
        tally.missed[tally.missed_count] = connection
    tally.missed_count += 1


cdef inline bint is_missed(Tally* tally, uint64_t connection) noexcept nogil:
    """Return whether a connection is among those noted by `miss`, as far as their numbers are kept."""
    cdef uint32_t i
    for i in range(min(tally.missed_count, <uint32_t>MISSED)):
        if tally.missed[i] == connection:
            return True
    return False


cdef void open_outbox(
        Outbox* box, uint64_t connection, int fd, bint is_stream, Totals* totals, uint64_t packets_limit,
        uint64_t bytes_limit) noexcept nogil:
    """Prepare an outbox for the client *connection*, whose connected socket is *fd*."""
    box.connection = connection
    box.fd = fd
    box.is_stream = is_stream
    box.rest.packet = box.rest.head = NULL
    box.is_deferred = False
    box.soft = MODE_QUEUE
    box.hard = MODE_DISCARD
    box.order = ORDER_QUEUE
    box.is_broken = box.is_failed = box.is_parted = False
    box.has_blocked = NOT_WAITING
    box.batch_bytes = 0
    box.uid = NO_USER
    box.account = NULL
    box.room.packets = box.room.bytes = 0
    box.room.packets_limit = packets_limit
    box.room.bytes_limit = bytes_limit
    box.waiting = box.notes = NULL
    box.keys = NULL
    box.lines = NULL
    box.taken_out = box.replaced_packets = box.unreported_replacements = 0
    box.delivered_packets = box.delivered_bytes = box.lost_packets = box.unreported_losses = box.noticed_losses = 0
    box.left_packets = box.left_bytes = 0
    box.totals = totals


cdef void assign(Outbox* box, uint32_t uid, Account* account) noexcept nogil:
    """Set the user of an outbox, and who is charged for it, while its queue is empty."""
    box.uid = uid
    box.account = account


cdef void set_header(size_t place, iovec* part, Head* head) noexcept nogil:
    """Set the header at *place* to a packet, after *head* if that is not NULL, without copying either."""
    if head is NULL:
        headers[place].msg_hdr.msg_iov = part
        headers[place].msg_hdr.msg_iovlen = 1
    else:
        parts[2 * place] = head.part
        parts[2 * place + 1] = part[0]
        headers[place].msg_hdr.msg_iov = &parts[2 * place]
        headers[place].msg_hdr.msg_iovlen = 2


cdef void set_queued_header(size_t place, Packet* packet, Packet* head) noexcept nogil:
    """Set the header at *place* to a packet of the queue."""
    parts[2 * place].iov_base = data_of(packet if head is NULL else head)
    parts[2 * place].iov_len = bytes_in(packet if head is NULL else head)
    if head is not NULL:
        parts[2 * place + 1].iov_base = data_of(packet)
        parts[2 * place + 1].iov_len = bytes_in(packet)
    headers[place].msg_hdr.msg_iov = &parts[2 * place]
    headers[place].msg_hdr.msg_iovlen = 1 if head is NULL else 2


cdef void keep(Outbox* box, Packet* packet, Packet* head, uint32_t payer, bint is_note) noexcept nogil:
    """Put a packet into the queue, after *head* if that is not NULL."""
    cdef Entry entry = new_entry(box, packet, head, payer)
    if is_note:
        if box.notes is NULL:
            box.notes = new deque[Entry]()
        box.notes.push_back(entry)
    elif box.order == ORDER_FAIR or box.lines is not NULL:
        add_to_line(box, entry, payer)
    else:
        if box.waiting is NULL:
            box.waiting = new deque[Entry]()
        box.waiting.push_back(entry)


cdef void discard(Outbox* box, Batch* batch, uint32_t index) noexcept nogil:
    """Discard a packet of a batch."""
    lose(box, 1)
    if box.order == ORDER_FAIR:
        attribute_loss(box, batch.payer)
    if batch.is_tallied:
        batch.tally[index].discarded += 1
        batch.tally[index].foreign_losses += batch.uid != box.uid
        miss(&batch.tally[index], box.connection)


cdef void count_abandoned(Outbox* box, Batch* batch, const uint32_t* indexes, size_t count) noexcept nogil:
    """Count packets of a batch whose recipient has gone."""
    cdef size_t i
    box.totals.abandoned_packets += count
    if batch.is_tallied:
        for i in range(count):
            miss(&batch.tally[indexes[i]], box.connection)


cdef bint has_notice_room(Outbox* box) noexcept nogil:
    """Return whether a loss notice fits into the queue."""
    cdef size_t cost = cost_of(NOTICE_BYTES, 0)
    return has_space(&box.room, cost) and has_room(box, owner_of(box), cost)


cdef bint queue_loss_notice(Outbox* box) noexcept nogil:
    """Put a loss notice into the queue if it is needed; return False if it was and could not be."""
    cdef Packet* notice
    while box.unreported_losses:
        if not has_notice_room(box):
            return False
        if has_gaps(box):
            if not add_notice(box):
                return False
            continue
        notice = loss_notice(box, box.unreported_losses, 0)
        if notice is NULL:
            return False
        keep(box, notice, NULL, owner_of(box), box.order != ORDER_QUEUE)
    return True


cdef Outcome send_replaced_notice(Outbox* box) noexcept nogil:
    """Send the number of messages replaced since the last such notice; return whether the socket takes more."""
    cdef char text[NOTICE_BYTES]
    cdef Outcome outcome = ALL_TAKEN
    cdef size_t sent
    if box.unreported_replacements:
        parts[0].iov_base = text
        parts[0].iov_len = snprintf(text, sizeof(text), "CMSG !/bus/replaced%c%llu", 0, <unsigned long long>box.unreported_replacements)
        set_header(0, &parts[0], NULL)
        sent = transmit(box, headers, 1, owner_of(box), &outcome)
        if outcome == SENT_IN_PART:
            outcome = keep_copy(box, text, parts[0].iov_len, owner_of(box))
            sent = outcome == SOCKET_FULL
        if sent:
            box.unreported_replacements = 0
            box.totals.deliveries += 1
    return ALL_TAKEN if outcome == PACKET_TOO_BIG else outcome


cdef bint discards_all(Outbox* box, uint32_t payer, size_t cost) noexcept nogil:
    """Return whether each packet that costs so much or more is discarded without any other effect, until something is sent.

    That is so for a client that does not read. To look at each packet for each such client would cost more than the delivery to others.
    """
    if box.is_broken or waiting_count(box) == 0 or box.soft != MODE_QUEUE or box.hard != MODE_DISCARD or box.order > ORDER_RANDOM:
        return False
    if not has_room(box, payer, cost) or not has_space(&box.room, cost) or not may_share(&box.room, owner_of(box), payer, cost):
        return True
    return box.unreported_losses != 0 and not has_notice_room(box)


cdef bint may_keep(Outbox* box, uint32_t payer, size_t cost, bint may_block, bint is_paced) noexcept nogil:
    """Decide whether a packet may go to the end of the queue."""
    # A notice goes before a packet that is kept, and not before one that is lost too: notices must not fill the queue.
    return may_wait(box, payer, cost, may_block, is_paced) and queue_loss_notice(box)


cdef bint may_replace(Outbox* box, Entry older, uint32_t payer, size_t cost, bint may_block, bint is_paced) noexcept nogil:
    """Decide whether a packet may replace an older one, whose room it gets."""
    cdef bint decision
    charge_key(box, older.payer, -1)
    discharge_entry(box, older)
    decision = may_wait(box, payer, cost, may_block, is_paced)
    charge_entry(box, older)
    charge_key(box, older.payer, 1)
    return decision


cdef void replace(Outbox* box, Entry* older, Packet* packet, Packet* head, uint32_t payer) noexcept nogil:
    """Put a packet into the queue in the place of an older one of its key."""
    cdef Entry gone = older[0]
    charge_key(box, gone.payer, -1)
    older[0] = new_entry(box, packet, head, payer)
    charge_key(box, payer, 1)
    move_key(box, data_of(packet))      # the map refers to the bytes of the older one, which are freed
    drop_entry(box, gone)
    box.replaced_packets += 1
    box.unreported_replacements += 1
    box.totals.replaced_packets += 1


cdef void enqueue(Outbox* box, Batch* batch, uint32_t index, bint may_block, bint is_paced, Head* head) noexcept nogil:
    """Put one packet of a batch into the queue, or discard it."""
    cdef iovec* part = &batch.parts[index]
    cdef size_t cost = cost_of(part.iov_len, 0 if head is NULL else head.part.iov_len)
    # After the packets of a batch come the refusals, which are packets of the bus itself.
    cdef bint is_own = index >= BATCH_PACKETS
    cdef bint has_key = not is_own and is_replaceable(box, <const char*>part.iov_base, part.iov_len)
    cdef Entry* older = older_of(box, <const char*>part.iov_base) if has_key else NULL
    cdef Packet* kept_head = NULL
    cdef bint may
    cost += KNOWN_KEY_BYTES if has_key else 0
    if older is NULL:
        may = may_keep(box, batch.payer, cost, may_block, is_paced)
    else:
        may = may_replace(box, older[0], batch.payer, cost, may_block, is_paced)
    batch.has_copies = True
    if (not may or not make_copy(&batch.kept[index], part, box.totals)
            or (head is not NULL and not make_copy(&head.kept, &head.part, box.totals))):
        discard(box, batch, index)
        return
    if batch.is_tallied:
        batch.tally[index].queued += 1
    if head is not NULL:
        kept_head = head.kept
    if older is not NULL:
        replace(box, older, batch.kept[index], kept_head, batch.payer)
        return
    keep(box, batch.kept[index], kept_head, batch.payer, is_own and box.order != ORDER_QUEUE)
    if has_key:
        remember_key(box, box.taken_out + box.waiting.size() - 1, data_of(batch.kept[index]), batch.payer)


cdef Head* head_for(Head* heads, size_t stride, uint32_t index) noexcept nogil:
    """Return the head of a packet of a batch; refusals have none."""
    if heads is NULL or index >= BATCH_PACKETS:
        return NULL
    return &heads[index * stride]


cdef void offer(Outbox* box, Batch* batch, const uint32_t* indexes, size_t count, bint may_block, bint is_paced, Head* heads,
                size_t stride) noexcept nogil:
    """Send the packets of a batch at *indexes*, at most BATCH_PACKETS, to a client: with one system call if its queue is empty.

    *may_block*: the publisher can be blocked; *is_paced*: it has asked to wait; `has_blocked` says whether it must. *heads*, if not NULL,
    go before the packets: with a *stride* of 1 each packet has its own, by its index; with a stride of 0 all have the first.
    """
    cdef Outcome outcome = SOCKET_FULL
    cdef size_t done = 0, i
    box.totals.deliveries += count
    if box.is_broken:
        count_abandoned(box, batch, indexes, count)
        return
    if waiting_count(box) == 0 and box.unreported_losses == 0:
        if heads is NULL:
            for i in range(count):
                headers[i].msg_hdr.msg_iov = &batch.parts[indexes[i]]
                headers[i].msg_hdr.msg_iovlen = 1
        else:
            for i in range(count):
                set_header(i, &batch.parts[indexes[i]], head_for(heads, stride, indexes[i]))
        done = transmit(box, headers, count, batch.payer, &outcome)
        if batch.is_tallied:
            for i in range(done):
                batch.tally[indexes[i]].handed += 1
        if outcome == SENT_IN_PART:
            outcome = keep_shared(box, batch, indexes[done], head_for(heads, stride, indexes[done]))
            done += outcome == SOCKET_FULL
        if outcome == PEER_GONE:
            box.is_broken = True
            count_abandoned(box, batch, &indexes[done], count - done)
            return
    if outcome == PACKET_TOO_BIG:
        discard(box, batch, indexes[done])
        done += 1
        queue_loss_notice(box)
    for i in range(done, count):
        enqueue(box, batch, indexes[i], may_block, is_paced, head_for(heads, stride, indexes[i]))
    if outcome == PACKET_TOO_BIG or (box.unreported_losses and waiting_count(box) == 0):
        flush(box)


cdef void post(Outbox* box, const char* data, size_t length) noexcept nogil:
    """Send one packet of the bus itself to a client that asked for it, as :func:`post_for` does."""
    post_for(box, data, length, owner_of(box), False)


cdef void post_for(Outbox* box, const char* data, size_t length, uint32_t payer, bint is_message) noexcept nogil:
    """Send one packet of the bus itself to a client, after its queue and within the hard limits. *payer* is the uid of the user who caused
    it, and may take as much of another user's queue as with messages. *is_message*: of a group, or an event; it waits for a turn."""
    cdef Outcome outcome
    cdef Packet* packet = NULL
    cdef size_t cost = cost_of(length, 0)
    box.totals.deliveries += 1
    if box.is_broken:
        box.totals.abandoned_packets += 1
        return
    if waiting_count(box) == 0 and box.unreported_losses == 0:
        parts[0].iov_base = <void*>data
        parts[0].iov_len = length
        set_header(0, &parts[0], NULL)
        transmit(box, headers, 1, payer, &outcome)
        if outcome == SENT_IN_PART:
            outcome = keep_copy(box, data, length, payer)
            if outcome == SOCKET_FULL:
                return
        if outcome == ALL_TAKEN:
            return
        if outcome == PEER_GONE:
            box.is_broken = True
            box.totals.abandoned_packets += 1
            return
        if outcome == PACKET_TOO_BIG:
            lose(box, 1)
            flush(box)
            return
    # As in may_keep: no notice before a packet that is lost too.
    if (has_space(&box.room, cost) and may_share(&box.room, owner_of(box), payer, cost)
            and has_room(box, payer, cost) and queue_loss_notice(box)):
        packet = new_packet(data, length, box.totals)
    if packet is NULL:
        lose(box, 1)
    else:
        keep(box, packet, NULL, payer, box.order != ORDER_QUEUE and not (is_message and box.order == ORDER_FAIR))


cdef void release_head(Head* head) noexcept nogil:
    """Release the copy of a head."""
    if head.kept is not NULL:
        leave_batch(head.kept)
        head.kept = NULL


cdef void remove_chosen(Outbox* box, size_t count) noexcept nogil:
    """Remove the first *count* of the chosen messages from the queue."""
    cdef size_t i, kept = 0
    for i in range(count):
        if box.keys is not NULL:
            forget_key(box, box.taken_out + chosen[i], box.waiting[0][chosen[i]])
        drop_entry(box, box.waiting[0][chosen[i]])
        box.waiting[0][chosen[i]].packet = NULL
        kept = max(kept, chosen[i] + 1)
    if box.order == ORDER_RANDOM:
        # The messages between the chosen ones move towards the end.
        for i in range(kept, 0, -1):
            if box.waiting[0][i - 1].packet is not NULL:
                kept -= 1
                box.waiting[0][kept] = box.waiting[0][i - 1]
    for i in range(count):
        if box.order == ORDER_STACK:
            box.waiting.pop_back()
        else:
            box.waiting.pop_front()
            box.taken_out += 1


cdef Outcome send_notes(Outbox* box) noexcept nogil:
    """Send the packets of the bus itself that are not queued among messages."""
    cdef Outcome outcome = ALL_TAKEN
    cdef size_t i, sent, count
    while box.notes is not NULL and not box.notes.empty():
        count = min(box.notes.size(), <size_t>BATCH_PACKETS)
        for i in range(count):
            set_queued_header(i, box.notes[0][i].packet, NULL)
        sent = transmit(box, headers, count, owner_of(box), &outcome)
        if outcome == PACKET_TOO_BIG:
            lose(box, 1)
            sent += 1
        elif outcome == SENT_IN_PART:
            outcome = keep_frame_rest(box, box.notes[0][sent])
            sent += 1
        for i in range(sent):
            drop_entry(box, box.notes.front())
            box.notes.pop_front()
        if outcome == SOCKET_FULL or outcome == PEER_GONE:
            return outcome
    return ALL_TAKEN


cdef Outcome send_messages(Outbox* box) noexcept nogil:
    """Send one batch of the messages in the queue."""
    cdef Outcome outcome = ALL_TAKEN
    cdef size_t i, sent, count = choose(box, chosen)
    for i in range(count):
        set_queued_header(i, box.waiting[0][chosen[i]].packet, box.waiting[0][chosen[i]].head)
    sent = transmit(box, headers, count, owner_of(box), &outcome)
    if outcome == PACKET_TOO_BIG:
        remove_chosen(box, sent + 1)
        lose(box, 1)
        put_loss_notice_first(box)
    elif outcome == SENT_IN_PART:
        outcome = keep_frame_rest(box, box.waiting[0][chosen[sent]])
        remove_chosen(box, sent + 1)
    else:
        remove_chosen(box, sent)
    return outcome


cdef void put_loss_notice_first(Outbox* box) noexcept nogil:
    """With the order ``queue`` or ``fair``, put a loss notice at the front: for a packet that was just removed because it can never be sent.

    The notice is about that packet alone. Other losses that the peer does not know were after the packets in the queue.
    """
    cdef Packet* notice
    if box.order != ORDER_QUEUE and box.order != ORDER_FAIR:
        return
    notice = loss_notice(box, 1, 0)
    if notice is NULL:
        return
    box.waiting.push_front(new_entry(box, notice, NULL, owner_of(box)))
    box.taken_out -= 1


cdef void flush(Outbox* box) noexcept nogil:
    """Send the queue, as far as the socket takes it, and at most FLUSH_ROUNDS batches."""
    cdef Outcome outcome
    cdef size_t round
    for round in range(<size_t>FLUSH_ROUNDS):
        queue_loss_notice(box)
        if waiting_count(box) == 0:
            break
        outcome = ALL_TAKEN if box.rest.packet is NULL else send_rest(box, allowance(box, True))
        if outcome == ALL_TAKEN:
            outcome = send_notes(box)
        if outcome == ALL_TAKEN:
            outcome = send_replaced_notice(box)
        if outcome == ALL_TAKEN:
            outcome = send_messages(box)
        if outcome == PEER_GONE:
            box.is_broken = True
            abandon(box)
        if outcome == SOCKET_FULL or outcome == PEER_GONE:
            break
    if not box.is_broken:
        queue_loss_notice(box)
    if box.waiting is not NULL and box.waiting.empty():
        del box.waiting
        box.waiting = NULL
    if box.notes is not NULL and box.notes.empty():
        del box.notes
        box.notes = NULL


cdef void abandon(Outbox* box) noexcept nogil:
    """Abandon the queue. Its memory is freed later, because it may be a million packets."""
    box.totals.abandoned_packets += waiting_count(box)
    if not box.is_parted:
        box.left_packets += waiting_count(box)
        box.left_bytes += box.room.bytes
    abandon_rest(box)
    box.totals.queued_packets -= box.room.packets
    box.totals.queued_bytes -= box.room.bytes
    if box.account is not NULL:
        box.account.leaving_bytes += box.room.bytes
        vacate(&box.account.room, &box.room)
    box.room.packets = box.room.bytes = 0
    box.room.shares.clear()
    if box.lines is not NULL:
        abandon_lines(box)
    leave(box.waiting, box.keys, box.account, box.uid, box.totals)
    leave(box.notes, NULL, box.account, box.uid, box.totals)
    box.waiting = box.notes = NULL
    box.keys = NULL


cdef void send_last_words(Outbox* box, const char* words, size_t length) noexcept nogil:
    """Offer *words* to the socket as the last packet. The queue is abandoned so that they need not wait; losses that the peer does not
    know are only reported to the sink. After a part of a frame nothing else can be sent; the limit of a turn applies to its rest."""
    if has_begun(box):
        box.is_broken = send_rest(box, allowance(box, True)) != ALL_TAKEN or box.is_broken
    abandon(box)
    box.noticed_losses += box.unreported_losses
    box.unreported_losses = box.unreported_replacements = 0
    box.is_parted = True
    post(box, words, length)
