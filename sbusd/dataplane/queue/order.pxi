"""The order of messages in a queue: which go next, and which are replaced by newer ones of their key. Spec: sbus-protocol(7) §7.

With the order ``latest`` the keys of the messages are in a sorted map. It never grows all at once as a hash table does, and a lookup among
n keys compares at most 2 log2 n of them, whichever keys other users choose. The map refers to the bytes of the messages.

With that order messages leave a queue at its front only, so the number of an entry is the number of those that left before, plus its place.
"""

from cython.operator cimport dereference
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memchr, memcmp
from libcpp.algorithm cimport partial_sort
from libcpp.utility cimport pair
from libcpp.vector cimport vector


cdef enum:
    RANDOM_PACKETS = 512        # contract.RANDOM_PACKETS: all are looked at for each packet that a slow reader takes

cdef vector[pair[uint64_t, size_t]] ranked  # for ORDER_RANDOM: what each packet would free, inverted, and its place

cdef extern from *:
    """
    static inline void refer_to(const KnownKey& key, const char* data) { key.data = data; }
    """
    void refer_to(const KnownKey& key, const char* data) noexcept nogil


cdef size_t choose(Outbox* box, size_t* chosen) noexcept nogil:
    """Set *chosen* to the places of the messages that go next, at most BATCH_PACKETS, and return their number."""
    cdef size_t total, count
    if box.lines is not NULL:
        take_from_lines(box)
    total = 0 if box.waiting is NULL else box.waiting.size()
    count = min(total, <size_t>BATCH_PACKETS)
    cdef size_t i
    cdef Packet* packet
    cdef pair[uint64_t, size_t] rank
    if box.order == ORDER_RANDOM:
        ranked.clear()
        for i in range(min(total, <size_t>RANDOM_PACKETS)):
            packet = box.waiting[0][i].packet
            # A packet that another queue holds frees nothing.
            rank.first = <uint64_t>0xFFFFFFFF - (bytes_in(packet) if packet.references & ~<uint32_t>IN_BATCH == 1 else 0)
            rank.second = i
            ranked.push_back(rank)
        partial_sort(ranked.begin(), ranked.begin() + count, ranked.end())
        for i in range(count):
            chosen[i] = ranked[i].second
    else:
        for i in range(count):
            chosen[i] = total - 1 - i if box.order == ORDER_STACK else i
    return count


cdef bint is_replaceable(Outbox* box, const char* data, size_t length) noexcept nogil:
    """Return whether a packet is a message that newer ones replace."""
    return (box.order == ORDER_LATEST and length > 4 and memcmp(data, b"MSG ", 4) == 0
            and memchr(data + 4, 0, length - 4) is not NULL and box.lines is NULL)


cdef Entry* older_of(Outbox* box, const char* data) noexcept nogil:
    """Return the entry of the message that the message *data* replaces, or NULL."""
    cdef Keys.iterator found
    if box.keys is NULL:
        return NULL
    found = box.keys.find(KnownKey(data))
    if found == box.keys.end():
        return NULL
    return &dereference(box.waiting)[dereference(found).second - box.taken_out]


cdef void remember_key(Outbox* box, uint64_t number, const char* data, uint32_t payer) noexcept nogil:
    """Remember the key of the message *data*, which is entry *number*, unless an older message has it."""
    cdef pair[KnownKey, uint64_t] known
    if box.keys is NULL:
        box.keys = new Keys()
    known.first = KnownKey(data)
    known.second = number
    if box.keys.insert(known).second:
        charge_key(box, payer, 1)


cdef void move_key(Outbox* box, const char* data) noexcept nogil:
    """Refer to the bytes of the message *data*, which has replaced an older one of its key."""
    refer_to(dereference(box.keys.find(KnownKey(data))).first, data)


cdef void forget_key(Outbox* box, uint64_t number, Entry entry) noexcept nogil:
    """Forget the key of entry *number*, before its message is released, if the map refers to that."""
    cdef Keys.iterator found
    if not is_replaceable(box, data_of(entry.packet), bytes_in(entry.packet)):
        return
    found = box.keys.find(KnownKey(data_of(entry.packet)))
    if found == box.keys.end() or dereference(found).second != number:
        return
    box.keys.erase(found)
    charge_key(box, entry.payer, -1)
    if box.keys.empty():
        del box.keys
        box.keys = NULL


cdef void set_order(Outbox* box, int order) noexcept nogil:
    """Set the order of a queue. Messages that are in it now are not replaced, and replace nothing; from and to ``fair`` they go first."""
    if order == box.order:
        return
    box.order = order
    if box.keys is not NULL:
        forget_keys(box)
    if box.lines is not NULL:
        close_lines(box)


cdef void forget_keys(Outbox* box) noexcept nogil:
    """Forget all keys. They may be a million, so their memory is freed later, and is charged until then."""
    cdef uint64_t guests = 0, bytes_each = KNOWN_KEY_BYTES
    cdef uint32_t owner = owner_of(box)
    cdef size_t i
    cdef uint32_t payer
    cdef int64_t count, known = box.keys.size()
    for i in range(box.room.shares.size()):
        payer, count = box.room.shares[i].uid, box.room.shares[i].keys
        guests += count
        charge_known(&box.room, owner, payer, -count, bytes_each)
        if box.account is not NULL:
            charge_known(&box.account.room, owner, payer, -count, bytes_each)
    # The rest belong to the owner's own messages, or to those of unknown users.
    charge_known(&box.room, owner, owner, <int64_t>guests - known, bytes_each)
    if box.account is not NULL:
        charge_known(&box.account.room, owner, owner, <int64_t>guests - known, bytes_each)
        box.account.leaving_bytes += known * bytes_each
    box.totals.queued_bytes -= known * bytes_each
    leave(NULL, box.keys, box.account, box.uid, box.totals)
    box.keys = NULL


cdef size_t replaceable_from(Outbox* box) noexcept nogil:
    """Return how many of the first messages are not replaced. With the order ``latest`` the map has the keys of all after them."""
    return 0 if box.order != ORDER_LATEST or box.waiting is NULL else box.waiting.size() - (0 if box.keys is NULL else box.keys.size())


cdef void restore_keys(Outbox* box, size_t first) noexcept nogil:
    """Remember the keys of all messages after the *first* ones; they come from the process before."""
    cdef size_t i
    cdef Entry entry
    for i in range(first, 0 if box.waiting is NULL else box.waiting.size()):
        entry = dereference(box.waiting)[i]
        if is_replaceable(box, data_of(entry.packet), bytes_in(entry.packet)):
            remember_key(box, box.taken_out + i, data_of(entry.packet), entry.payer)
