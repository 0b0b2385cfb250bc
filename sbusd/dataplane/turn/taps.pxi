"""Taps: connections that receive a report of each message that a pattern matches. Spec: sbus-protocol(7) §6, ``!/tap``.

The report says how the message was delivered, so taps are served after all recipients. They block no publisher: a tap that cannot take a
report loses it. Their patterns have a router of their own, in which no key is guarded.
"""

from cython.operator cimport dereference, preincrement
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libcpp.algorithm cimport sort
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.utility cimport pair
from posix.time cimport timespec

from sbusd.dataplane.libc cimport CLOCK_REALTIME, clock_gettime


ctypedef cpp_map[uint32_t, Tapper*] Tappers


cdef class Taps:
    """The taps of one switch, by the slots of its connections."""

    def __init__(self, keyspace, size_t cache_bytes):
        self.router = Router(keyspace, cache_bytes)

    def __dealloc__(self):
        cdef Tappers.iterator tapper = self.tappers.begin()
        while tapper != self.tappers.end():
            del dereference(tapper).second
            preincrement(tapper)

    cdef void add(self, uint32_t slot, uint64_t connection, Outbox* out, const char* pattern, size_t length) noexcept nogil:
        """Set the pattern of a connection, which replaces an earlier one."""
        cdef Tapper* tapper
        self.remove(slot)
        tapper = new Tapper()
        tapper.out = out
        tapper.connection = connection
        tapper.pattern.assign(pattern, length)
        self.tappers[slot] = tapper
        self.count += 1
        self.router.insert(slot, pattern, length)

    cdef void remove(self, uint32_t slot) noexcept nogil:
        """Remove the tap of a connection, if it has one."""
        cdef Tappers.iterator found = self.tappers.find(slot)
        cdef Tapper* tapper
        if found == self.tappers.end():
            return
        tapper = dereference(found).second
        self.router.erase(slot, tapper.pattern.data(), tapper.pattern.size())
        self.tappers.erase(found)
        self.count -= 1
        del tapper

    cdef void note(self, const char* key, size_t length, uint32_t index, Batch* batch) noexcept nogil:
        """Note a packet that is being routed, if a tap matches it. Its tally is all zeros."""
        cdef timespec now
        cdef Tapper* tapper
        cdef pair[uint64_t, uint32_t] entry
        cdef uint32_t n
        cdef Route found = self.router.route(key, length)
        if found.count == 0:
            return
        clock_gettime(CLOCK_REALTIME, &now)
        self.times[index] = <int64_t>now.tv_sec * 1000000000 + now.tv_nsec
        batch.is_tallied = True
        self.noted.push_back(index)
        for n in range(found.count):
            tapper = self.tappers[found.slots[n]]
            if tapper.share.empty():
                entry.first = tapper.connection
                entry.second = found.slots[n]
                self.touched.push_back(entry)
            tapper.share.push_back(index)

    cdef void write_heads(
            self, Batch* batch, uint64_t sender, const string& cred, Vouching* vouching, DirectMessages* direct) noexcept nogil:
        """Write the heads of the noted packets."""
        cdef size_t i, start
        cdef char* base
        cdef string* origin
        cdef uint64_t recipient
        self.text.clear()
        for i in range(self.noted.size()):
            start = self.text.size()
            origin = &vouching.origins[self.noted[i]] if vouching.is_used else NULL
            recipient = direct.recipients[self.noted[i]] if direct.is_used else 0
            append_tap_line(self.text, self.times[self.noted[i]], sender, cred, origin, recipient, &batch.tally[self.noted[i]])
            self.heads[self.noted[i]].part.iov_len = self.text.size() - start
        base = <char*>self.text.data()      # only now, because it moves when it grows
        for i in range(self.noted.size()):
            self.heads[self.noted[i]].part.iov_base = base
            base += self.heads[self.noted[i]].part.iov_len

    cdef void deliver(self, Batch* batch, uint64_t sender, const string& cred, Vouching* vouching, DirectMessages* direct) noexcept nogil:
        """Send the reports of the noted packets, after all recipients were served. The caller handles the connections in `touched`."""
        cdef size_t i
        cdef Tapper* tapper
        cdef Tappers.iterator found
        self.write_heads(batch, sender, cred, vouching, direct)
        batch.is_tallied = False            # a tap is not a recipient
        sort(self.touched.begin(), self.touched.end())
        for i in range(self.touched.size()):
            found = self.tappers.find(self.touched[i].second)
            if found == self.tappers.end():
                continue                    # the connection ended as a recipient of the same batch
            tapper = dereference(found).second
            offer(tapper.out, batch, tapper.share.data(), tapper.share.size(), False, False, self.heads, 1)
            tapper.share.clear()
        for i in range(self.noted.size()):
            release_head(&self.heads[self.noted[i]])
        self.noted.clear()

    cdef void report(self, const char* key, size_t length, const char* packet, size_t size, uint32_t payer) noexcept nogil:
        """Send a packet of the bus itself, which *payer* has caused, to taps that match a key. The caller handles those in `touched`."""
        cdef pair[uint64_t, uint32_t] entry
        cdef size_t n
        cdef Route found = self.router.route(key, length)
        for n in range(found.count):
            entry.first = self.tappers[found.slots[n]].connection
            entry.second = found.slots[n]
            self.touched.push_back(entry)
        sort(self.touched.begin(), self.touched.end())
        for n in range(self.touched.size()):
            post_for(self.tappers[self.touched[n].second].out, packet, size, payer, False)


cdef void append_tap_line(
        string& text, int64_t time, uint64_t connection, const string& cred, string* origin, uint64_t recipient,
        Tally* tally) noexcept nogil:
    """Append the head of a message for a tap, ``!/tap``: when it was published, by which connection, and the result.

    *recipient* is the connection that a direct message is for, otherwise 0.
    """
    cdef char part[128]
    # Credentials consist of letters, digits, `!` and `/`, and an origin is checked, so JSON needs no escapes for them.
    text.append(b"CMSG !/tap", 10)
    text.push_back(0)
    text.append(part, snprintf(part, sizeof(part), "{\"kind\":\"message\",\"time\":%lld,\"id\":%llu,\"cred\":\"",
                               <long long>time, <unsigned long long>connection))
    text.append(cred)
    if origin is not NULL and not origin.empty():
        text.append(b"\",\"vouched\":\"", 13)
        text.append(dereference(origin))
    text.push_back(34)      # "
    if recipient:
        text.append(part, snprintf(part, sizeof(part), ",\"to\":%llu", <unsigned long long>recipient))
    text.append(part, snprintf(part, sizeof(part), ",\"recipients\":%u,\"queued\":%u,\"discarded\":%u",
                               tally.handed + tally.queued, tally.queued, tally.discarded))
    if tally.missed_count:
        append_missed(text, tally)
    text.append(b"}\n", 2)


cdef void append_missed(string& text, Tally* tally) noexcept nogil:
    """Append the connections that a message matched and did not reach; none of them if they are too many."""
    cdef uint32_t i, count = tally.missed_count if tally.missed_count <= <uint32_t>MISSED else 0
    cdef char number[24]
    sort(&tally.missed[0], &tally.missed[0] + count)
    text.append(b",\"missed\":[", 11)
    for i in range(count):
        text.append(number, snprintf(number, sizeof(number), ",%llu" if i else "%llu", <unsigned long long>tally.missed[i]))
    text.push_back(93)      # ]
