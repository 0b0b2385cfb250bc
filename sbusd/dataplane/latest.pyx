# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""Where a message waits that a newer one of its key replaces, for the order ``latest``. Spec: sbus-protocol(7) §7.

The keys are in a map that is kept in order: it never grows all at once as a hash table does, and a lookup among n keys compares no more
than 2 log2 n of them, whichever keys other users choose. The map refers to the bytes of the messages that wait and copies nothing.

With this order messages leave a queue at its front alone, so an entry is known by its number: how many have left before, and its place.
"""

from cython.operator cimport dereference
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp
from libcpp.utility cimport pair

from sbusd.dataplane.outbox cimport ORDER_LATEST, KnownKey, Keys, Packet, bytes_in
from sbusd.dataplane.packets cimport KNOWN_KEY_BYTES, data_of, leave
from sbusd.dataplane.pools cimport charge_known
from sbusd.dataplane.rooms cimport charge_key, owner_of

cdef extern from *:
    """
    static inline void refer_to(const KnownKey& key, const char* data) { key.data = data; }
    """
    void refer_to(const KnownKey& key, const char* data) noexcept nogil


cdef bint is_replaceable(Outbox* box, const char* data, size_t length) noexcept nogil:
    """Return whether a packet is a message that newer ones replace."""
    return (box.order == ORDER_LATEST and length > 4 and memcmp(data, b"MSG ", 4) == 0
            and memchr(data + 4, 0, length - 4) is not NULL)


cdef Entry* older_of(Outbox* box, const char* data) noexcept nogil:
    """Return the entry of the message that the message *data* takes the place of, or NULL."""
    cdef Keys.iterator found
    if box.keys is NULL:
        return NULL
    found = box.keys.find(KnownKey(data))
    if found == box.keys.end():
        return NULL
    return &dereference(box.waiting)[dereference(found).second - box.taken_out]


cdef void learn(Outbox* box, uint64_t number, const char* data, uint32_t payer) noexcept nogil:
    """Remember that the message *data* waits as entry *number*, unless one of its key is known."""
    cdef pair[KnownKey, uint64_t] known
    if box.keys is NULL:
        box.keys = new Keys()
    known.first = KnownKey(data)
    known.second = number
    if box.keys.insert(known).second:
        charge_key(box, payer, 1)


cdef void move_key(Outbox* box, const char* data) noexcept nogil:
    """Refer to the bytes of the message *data*, which waits now where an older one of its key has waited."""
    refer_to(dereference(box.keys.find(KnownKey(data))).first, data)


cdef void unlearn(Outbox* box, uint64_t number, Entry entry) noexcept nogil:
    """Forget that a message waits as entry *number*, before it is let go; nothing, if it was not known."""
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
    """Set the order of messages that wait. Those that wait now are not replaced, and replace nothing."""
    if order == box.order:
        return
    box.order = order
    if box.keys is not NULL:
        forget_keys(box)


cdef void forget_keys(Outbox* box) noexcept nogil:
    """Know of no key any more. It may be a million, so their memory is freed later, and is charged until then."""
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
    # The rest are of the owner's own messages, or of nobody's.
    charge_known(&box.room, owner, owner, <int64_t>guests - known, bytes_each)
    if box.account is not NULL:
        charge_known(&box.account.room, owner, owner, <int64_t>guests - known, bytes_each)
        box.account.leaving_bytes += known * bytes_each
    box.totals.queued_bytes -= known * bytes_each
    leave(NULL, box.keys, box.account, box.totals)
    box.keys = NULL


cdef size_t replaceable_from(Outbox* box) noexcept nogil:
    """Return how many of the first that wait are not replaced: with this order, all behind them are messages that are known."""
    return 0 if box.order != ORDER_LATEST or box.waiting is NULL else box.waiting.size() - (0 if box.keys is NULL else box.keys.size())


cdef void restore_keys(Outbox* box, size_t first) noexcept nogil:
    """Know what waits behind the first entries, so many as *first* says, of which all have waited in another process."""
    cdef size_t i
    cdef Entry entry
    for i in range(first, 0 if box.waiting is NULL else box.waiting.size()):
        entry = dereference(box.waiting)[i]
        if is_replaceable(box, data_of(entry.packet), bytes_in(entry.packet)):
            learn(box, box.taken_out + i, data_of(entry.packet), entry.payer)
