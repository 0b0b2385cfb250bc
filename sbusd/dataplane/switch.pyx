# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""The compiled switch, which implements `sbusd.dataplane.contract`. Source: recvmmsg(2), sendmmsg(2), epoll(7).

A MSG never touches the interpreter: what handles it is declared ``nogil``, and the compiler refuses Python there. This class is the
face for the broker; its state is the `Plane`.

This file and those that it includes are one extension module. They are in rooms; a room uses only those before it, and files do not use
each other in a circle: tests/unit/sbusd/dataplane/test_rooms.py. Structures are in the .pxd files.
"""

# Packets that wait for a client, and how they are sent.
include "queue/packet_memory.pxi"
include "queue/pacing.pxi"
include "queue/shared_limits.pxi"
include "queue/overflow.pxi"
include "queue/order.pxi"
include "queue/fair_lines.pxi"
include "queue/sending.pxi"
include "queue/writer.pxi"
include "queue/stream_writer.pxi"
include "queue/outbox.pxi"

# From a key to the connections with a pattern that matches it.
include "route/avl.pxi"
include "route/radix_tree.pxi"
include "route/trie.pxi"
include "route/router.pxi"

# The state that all work on, and the time that each may take.
include "plane/clock.pxi"
include "plane/fairness.pxi"
include "plane/stalls.pxi"
include "plane/connection.pxi"
include "plane/plane.pxi"

# From a socket to the packets of a batch.
include "wire/intake.pxi"
include "wire/readiness.pxi"
include "wire/reader.pxi"
include "wire/stream_reader.pxi"

# From a batch to its recipients; how connections begin, wait and end; the event loop.
include "turn/groups.pxi"
include "turn/taps.pxi"
include "turn/vouching.pxi"
include "turn/direct_messages.pxi"
include "turn/receipts.pxi"
include "turn/delivery.pxi"
include "turn/backpressure.pxi"
include "turn/acceptor.pxi"
include "turn/teardown.pxi"
include "turn/turn.pxi"

# What the control plane is called with, and calls; what the next process gets.
include "sink.pxi"
include "commands.pxi"
include "state_transfer.pxi"

from cython.operator cimport dereference, preincrement
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memset
from libcpp.algorithm cimport sort
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from sbusd.dataplane.ancillary cimport REFUSED, Passing, is_stream_socket, refuse_passing, waiting_descriptors
from sbusd.dataplane.libc cimport EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN

from sbusd.dataplane.contract import MAX_PUBLISH_RULES
from sbusd.dataplane.counters import NAMED_WAITS, SwitchCounters, UserCounters, UserTraffic, Wait, Waits
from sbusd.dataplane.switch_state import ConnectionSettings
from sbus.protocol.packets import MAX_BATCH_BYTES

cdef enum:
    LOOKED_AT = 1000            # waits that are searched for those of one publisher

cdef uint32_t BATCH_BYTES = MAX_BATCH_BYTES


cdef class Switch:
    """The compiled data plane; see `sbusd.dataplane.contract.Switch` for every method."""

    kind = "compiled"

    def __init__(self, sink, keyspace, limits, tuple refusals, ClientSink clients=None):
        """*clients* gets the calls about clients, and *sink* the others; None: *sink* gets all."""
        self.plane = Plane(sink, keyspace, limits, refusals, clients)
        try:
            self.watch(self.plane.closer.fileno(), self.report_closed)
        except OSError:
            self.plane.watched.clear()      # a cycle: the descriptors would stay open until the next garbage collection
            self.plane.closer.close()
            raise

    # -- descriptors and turns

    def listen(self, int fd):
        """Accept connections from the listening socket *fd*."""
        self.plane.listeners.append(fd)
        if is_stream_socket(fd):
            self.plane.stream_listeners.add(fd)
        refuse_passing(fd, False)       # connections inherit the option from their listener
        control_epoll(self.plane, EPOLL_CTL_ADD, fd, EPOLLIN, LISTENER | <uint64_t>fd)

    def watch(self, int fd, callback):
        """Call *callback* in each turn in which *fd* is readable."""
        self.plane.watched[fd] = callback
        control_epoll(self.plane, EPOLL_CTL_ADD, fd, EPOLLIN, WATCHED | <uint64_t>fd)

    def unwatch(self, int fd):
        """Stop watching *fd*."""
        del self.plane.watched[fd]
        control_epoll(self.plane, EPOLL_CTL_DEL, fd, 0, 0)

    def turn(self, int timeout_ms):
        """Take one turn, and return how many descriptors were ready; at least 1 while connections that have ended are taken down."""
        cdef int count
        cdef Plane plane = self.plane
        with nogil:
            count = take_turn(plane, timeout_ms)
        plane.must_return = False
        is_done = plane.ending.empty() and plane.destroyed.empty() and plane.totals.remains is NULL
        return count if is_done else max(1, count)

    def run(self, int timeout_ms):
        """Take turns until one has seen a signal or a watched descriptor, `return_soon` was called, or the time is over."""
        cdef Plane plane = self.plane
        with nogil:
            take_turns(plane, timeout_ms)
        plane.must_return = False

    def return_soon(self):
        """Let `run` return after this turn, or after the next one if there is none now."""
        self.plane.must_return = True

    # -- connections

    def adopt(self, int fd, uint64_t connection):
        """Take over the connected socket *fd* as number *connection*."""
        cdef Passing passing = refuse_passing(fd, False)
        cdef Connection* adopted = add_connection(self.plane, fd, connection, passing, is_stream_socket(fd))
        # The process before may have looked at a packet of no bytes, which the next look passes over: nothing is received any more.
        adopted.reading.has_descriptors = passing != REFUSED and waiting_descriptors(fd) > 0

    def disconnect(self, uint64_t connection, bytes last_words=b""):
        """End a connection: offer its socket *last_words*, and close it."""
        disconnect(self.plane, find(self.plane, connection), last_words, len(last_words))

    def take_down(self):
        """Take down all connections that have ended."""
        while self.plane.ending.size():
            destroy_next(self.plane)
        release_some(self.plane, 0)

    def report_closed(self):
        """Report to the sink which sockets the closer has closed."""
        report_closed(self.plane)

    def charge_closes(self, charged):
        """Set who is charged for sockets that wait to be closed: *charged* returns that user for a uid."""
        self.plane.closer.charged = charged

    def closing(self):
        """Return the descriptors of connections that have ended and are not closed yet."""
        return self.plane.closer.waiting()

    def close(self, *, bint keeps_connections=False):
        """Close every connection without reports to the sink, and the switch's own descriptors."""
        self.plane.is_measured = False
        self.plane.stalls = None
        close_all(self.plane, keeps_connections)

    def connections(self):
        """Return the numbers of all connections, oldest first."""
        return sorted([entry.first for entry in self.plane.by_id])

    def next_connection(self):
        """Return the number that the next connection will get."""
        return self.plane.next_id

    # -- users and settings

    def set_party(self, uint64_t connection, uint32_t uid, *, charged=None, bint blocks_others=False, uint64_t rules=0, int sight=0,
                  bytes cred=b"", bint may_vouch=False, bint may_deliver=False):
        """Set a connection's user, the user that is charged for it, whom it may block, which publish rules apply, what it may know, its
        credentials, and its rights to vouch and to send direct messages."""
        cdef Connection* party = find(self.plane, connection)
        set_user(self.plane, party, uid, uid if charged is None else <uint32_t>charged)
        set_rights(party, blocks_others, rules, sight, may_vouch, may_deliver)
        set_cred(party, cred, len(cred))

    def set_user_limits(self, uint32_t uid, uint64_t packets, uint64_t size):
        """Limit what the queues of all connections of a user hold together."""
        cdef Account* account = account_of(self.plane, uid)
        if account is NULL:
            raise KeyError(uid)
        account.room.packets_limit = packets
        account.room.bytes_limit = size

    def set_publish_rules(self, tuple rules):
        """Set the rules for MSG."""
        if len(rules) > MAX_PUBLISH_RULES:
            raise ValueError(f"{len(rules)} publish rules; {MAX_PUBLISH_RULES} at most")
        self.plane.allowing_rules = 0
        self.plane.rule_refusals = [rule.refusal for rule in rules]
        for i, rule in enumerate(rules):
            if rule.is_allowed:
                self.plane.allowing_rules |= <uint64_t>1 << <int>i
        self.plane.router.set_rules(rules)

    def configure(self, uint64_t connection, settings):
        """Set what the connection has asked for itself."""
        cdef Connection* configured = find(self.plane, connection)
        configured.echo, configured.wants_senders = settings.echo, settings.sender
        configured.publishing.is_paced = settings.pace
        configured.out.soft, configured.out.hard = settings.soft, settings.hard
        set_order(&configured.out, settings.order)
        if not settings.batch:
            configured.out.batch_bytes = 0
        elif configured.out.batch_bytes == 0:       # it may be smaller already, for the client's socket
            configured.out.batch_bytes = BATCH_BYTES

    def settings(self, uint64_t connection):
        """Return what the connection has asked for itself."""
        cdef Connection* asked = find(self.plane, connection)
        return ConnectionSettings(
            echo=asked.echo, soft=asked.out.soft, hard=asked.out.hard, order=asked.out.order, sender=asked.wants_senders,
            batch=asked.out.batch_bytes != 0, pace=asked.publishing.is_paced)

    def arm_receipt(self, uint64_t connection, bytes token, *, bint always, bint lists=False):
        """Send the connection a receipt for its next MSG."""
        arm(&find(self.plane, connection).receipt, token, len(token), always, lists)

    # -- subscriptions

    def subscribe(self, uint64_t connection, bytes pattern):
        """Store one more instance of *pattern*."""
        add_pattern(self.plane, find(self.plane, connection), pattern, len(pattern))

    def may_join(self, uint64_t connection, bytes group):
        """Return whether the connection may be a member of *group*."""
        return may_join(self.plane, find(self.plane, connection), group)

    def unsubscribe(self, uint64_t connection, bytes pattern):
        """Remove one instance of *pattern* and return True, or return False if there is none."""
        return remove_pattern(self.plane, find(self.plane, connection), pattern, len(pattern))

    def instances(self, uint64_t connection, bytes pattern):
        """Return how many instances of *pattern* the connection has stored."""
        return instances_of(&find(self.plane, connection).patterns, pattern, len(pattern))

    def patterns(self, uint64_t connection):
        """Return the connection's patterns, each with its number of instances."""
        cdef Connection* holder = find(self.plane, connection)
        cdef Item* pattern = first(holder.patterns)
        found = {}
        while pattern is not NULL:
            found[text_of(pattern)[:pattern.length]] = (<Stored*>pattern).instances
            pattern = item_after(holder.patterns, text_of(pattern), pattern.length)
        return found

    def patterns_after(self, uint64_t connection, bytes after, uint32_t most):
        """Return up to *most* of the connection's patterns after *after* in the order of their bytes; None: the first."""
        cdef Connection* holder = find(self.plane, connection)
        cdef Item* pattern
        found = []
        if after is None:
            pattern = first(holder.patterns)
        else:
            pattern = item_after(holder.patterns, after, len(after))
        while pattern is not NULL and len(found) < most:
            found.append(text_of(pattern)[:pattern.length])
            pattern = item_after(holder.patterns, text_of(pattern), pattern.length)
        return found

    def recipients(self, bytes key):
        """Return the connections with a pattern that matches *key*, all members of groups included."""
        cdef Plane plane = self.plane
        cdef Route found = plane.router.route(key, len(key))
        cdef uint32_t i
        if found.refusal >= 0:
            return []
        return sorted({owner_of_slot(plane, found.slots[i]).id for i in range(found.count)
                       if not owner_of_slot(plane, found.slots[i]).is_destroyed})

    # -- packets of the bus itself

    def send(self, uint64_t connection, bytes packet):
        """Send *packet* to the connection, after all that is in its queue."""
        send_packet(self.plane, find(self.plane, connection), packet, len(packet))

    def announce(self, bytes packet, *, int sight, uint32_t uid, uint32_t payer, bytes cred=b""):
        """Send a MSG of the bus itself, whose credentials are *cred*, to the subscribers that may know of it."""
        cdef Plane plane = self.plane
        cdef const char* data = packet
        cdef const char* end = <const char*>memchr(data + 4, 0, len(packet) - 4)
        cdef Route found = plane.router.route(data + 4, end - data - 4)
        cdef vector[pair[uint64_t, uint32_t]] informed
        cdef pair[uint64_t, uint32_t] entry
        cdef Connection* recipient
        cdef string signed_packet
        cdef size_t i
        append_sender(signed_packet, 0, <string>cred)
        signed_packet.append(data, len(packet))
        for i in range(found.count):
            recipient = plane.slots[found.slots[i]]     # NULL: a member of a group, which events are not for
            if recipient is not NULL and not recipient.is_ending and (recipient.party.sight >= sight or uid_of(recipient) == uid):
                entry.first = recipient.id
                entry.second = recipient.slot
                informed.push_back(entry)
        sort(informed.begin(), informed.end())
        for i in range(informed.size()):
            recipient = plane.slots[informed[i].second]
            if recipient.wants_senders:
                post_for(&recipient.out, signed_packet.data(), signed_packet.size(), payer, True)
            else:
                post_for(&recipient.out, data, len(packet), payer, True)
            after_send(plane, recipient)

    def report_loss(self, list patterns, uint64_t count, *, uint32_t uid):
        """Send a loss notice to each connection that has stored one of *patterns*, and return the number of these connections."""
        cdef Plane plane = self.plane
        cdef cpp_map[uint64_t, uint32_t] holders
        cdef cpp_map[uint64_t, uint32_t].iterator each
        cdef bytes packet = b"CMSG !/bus/lost\0%d" % count
        for pattern in patterns:
            add_holders(plane, pattern, len(pattern), holders)
        each = holders.begin()
        while each != holders.end():
            post_loss(plane, plane.slots[dereference(each).second], packet, len(packet), count, uid)
            preincrement(each)
        return holders.size()

    def set_tap(self, uint64_t connection, bytes pattern):
        """Report each message that *pattern* matches to the connection; None: none."""
        cdef Connection* tapper = find(self.plane, connection)
        if pattern is None or tapper.is_ending:
            self.plane.taps.remove(tapper.slot)
        else:
            self.plane.taps.add(tapper.slot, connection, &tapper.out, pattern, len(pattern))

    def is_tapped(self):
        """Return whether any connection has a tap."""
        return self.plane.taps.count != 0

    def report(self, bytes key, bytes packet, *, uint32_t uid):
        """Send a packet of the bus itself, which *uid* has caused, to the taps whose pattern matches *key*."""
        self.plane.taps.report(key, len(key), packet, len(packet), uid)
        after_tap_send(self.plane)

    # -- counters

    def connection_counters(self, uint64_t connection):
        """Return the counters of one connection."""
        cdef Connection* counted = find(self.plane, connection)
        return counters_of(counted, waiting_count(&counted.out), counted.out.room.bytes)

    def user_counters(self, uint32_t uid):
        """Return the counters of a user."""
        cdef Account* account = account_of(self.plane, uid)
        if account is NULL:
            return UserCounters(0, 0, 0, 0)
        return UserCounters(account.room.packets, account.room.bytes, account.lost_packets, account.half_read)

    def user_waits(self, uint32_t uid):
        """Return for how long a user's publishers have waited, and publishers for its recipients."""
        return waits_of_user(self.plane, uid)

    def traffic_of(self, connections):
        """Return what *connections* have done together."""
        cdef TrafficSums sums
        cdef int64_t now = now_ns()
        cdef unordered_map[uint64_t, Connection*].iterator place
        memset(&sums, 0, sizeof(TrafficSums))
        for connection in connections:
            place = self.plane.by_id.find(connection)
            if place != self.plane.by_id.end():
                add_traffic(&sums, dereference(place).second, now)
        return UserTraffic(**sums)

    def traffic(self, uids):
        """Return what the connections of each of *uids* have done, and those of all other users together."""
        cdef unordered_map[uint32_t, TrafficSums] of_users
        cdef TrafficSums others
        memset(&others, 0, sizeof(TrafficSums))
        for uid in uids:
            of_users[uid] = others
        sum_traffic(self.plane, &of_users, &others)
        return {entry.first: UserTraffic(**entry.second) for entry in of_users}, UserTraffic(**others)

    def counters(self):
        """Return the counters of the switch."""
        cdef Plane plane = self.plane
        return SwitchCounters(
            connections=plane.by_id.size(), accepted=plane.accepting.accepted, accept_failures=plane.accepting.failures,
            received_packets=plane.counted.received_packets, received_bytes=plane.counted.received_bytes,
            messages=plane.counted.messages, undeliverable=plane.counted.undeliverable, deliveries=plane.totals.deliveries,
            delivered_packets=plane.totals.delivered_packets, delivered_bytes=plane.totals.delivered_bytes,
            queued_packets=plane.totals.queued_packets, queued_bytes=plane.totals.queued_bytes,
            lost_packets=plane.totals.lost_packets, abandoned_packets=plane.totals.abandoned_packets,
            refused_packets=plane.counted.refused_packets, subscriptions=plane.counted.subscriptions,
            cache_hits=plane.router.hits, cache_misses=plane.router.misses, turns=plane.schedule.turn,
            received_batches=plane.intake.batches, delivered_batches=plane.totals.delivered_batches,
            batched_packets=plane.totals.batched_packets, blocks=plane.counted.blocks, fallbacks=plane.counted.fallbacks,
            replaced_packets=plane.totals.replaced_packets, redelivered_packets=plane.counted.redelivered,
            held_bytes=plane.totals.held_bytes, half_read_bytes=plane.totals.half_read_bytes,
        )

    def blockers(self, uint32_t most):
        """Return some connections for which publishers wait now."""
        cdef Plane plane = self.plane
        return sorted([plane.slots[plane.blocking[i]].id for i in range(min(plane.blocking.size(), <size_t>most))])

    def waits(self, uint64_t connection):
        """Return the recipients for which a connection waits, and the publishers that wait for it."""
        cdef Plane plane = self.plane
        cdef Connection* asked = find(plane, connection)
        cdef int64_t now = now_ns()
        cdef size_t i = 0, j, looked_at = 0
        cdef Connection* recipient
        blocks = [(asked.blocking.publishers[i].id, asked.blocking.publishers[i].is_paced,
                   (now - asked.blocking.publishers[i].since) // MILLISECOND_NS)
                  for i in range(min(asked.blocking.publishers.size(), <size_t>NAMED_WAITS))]
        blocked_by = []
        i = 0
        while (asked.publishing.recipients > len(blocked_by) and len(blocked_by) < NAMED_WAITS and i < plane.blocking.size()
                and looked_at < LOOKED_AT):
            recipient = plane.slots[plane.blocking[i]]
            looked_at += recipient.blocking.publishers.size()
            for j in range(recipient.blocking.publishers.size()):
                if recipient.blocking.publishers[j].slot == asked.slot and recipient.blocking.publishers[j].id == asked.id:
                    blocked_by.append((recipient.id, recipient.blocking.publishers[j].is_paced,
                                       (now - recipient.blocking.publishers[j].since) // MILLISECOND_NS))
            i += 1
        return Waits(asked.publishing.is_paced, asked.publishing.recipients, asked.blocking.publishers.size(), blocked_ms(asked, now),
                     blocked_others_ms(asked, now), tuple([Wait(*each) for each in sorted(blocked_by)]),
                     tuple([Wait(*each) for each in sorted(blocks)]))

    # -- snapshots

    def progress(self, uint64_t connection):
        """Return the progress of the connection."""
        return progress_of(self.plane, connection)

    def queues(self):
        """Return the packets in all queues, each once, and the queues by connection."""
        return queues_of(self.plane)

    def tally(self):
        """Return the totals of the switch."""
        return totals_of(self.plane, self.counters()._asdict())

    def restore(self, uint64_t connection, settings, progress):
        """Set the settings and the progress of an adopted connection."""
        self.configure(connection, settings)
        restore_progress(self.plane, connection, progress)

    def restore_all(self, list packets, dict queues, totals, uint64_t next_connection):
        """Set everything else, once every connection is adopted and restored."""
        restore_all(self.plane, packets, queues, totals, next_connection)


def measure_turns(Switch switch not None):
    """Return the stalls of *switch*: they measure every turn from now on."""
    switch.plane.stalls = Stalls()
    switch.plane.is_measured = True
    return switch.plane.stalls
