"""From a key to its recipients: a cache, a `trie` of patterns, and the rules for reserved keys.

The cache holds the routes of keys since the last change of a pattern. A change starts a new generation, which makes every entry stale
at once. The cache has a fixed number of places, two for each hash, and a limit for its bytes; when that is reached, it is emptied.

``sbus.protocol.keys`` is the plain reference for which pattern matches which key. Spec: sbus-protocol(7) §3.
"""

from cython.operator cimport dereference
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy


import os

from sbusd.dataplane.contract import Refusal
from sbus.protocol.keys import ADDRESS_HEAD

cdef enum:
    CACHE_PLACES = 8192         # a power of two; at 48 bytes each they are touched only as keys arrive
    CACHED_KEY_BYTES = 512      # longer keys are rare, and a walk of the trie costs less than caching them


cdef uint64_t hash_of(const char* key, size_t length, uint64_t seed) noexcept nogil:
    """Hash a key, eight bytes at a time. A collision only costs one more walk of the trie."""
    cdef uint64_t value = seed ^ (length * <uint64_t>0x9E3779B97F4A7C15)
    cdef uint64_t word = 0
    while length >= 8:
        memcpy(&word, key, 8)
        value = (value ^ word) * <uint64_t>0xD6E8FEB86659FD93
        value ^= value >> 32
        key += 8
        length -= 8
    word = 0
    memcpy(&word, key, length)
    value = (value ^ word) * <uint64_t>0xD6E8FEB86659FD93
    value ^= value >> 32
    value *= <uint64_t>0xD6E8FEB86659FD93
    return value ^ (value >> 29)


cdef bint is_about(CacheEntry* entry, const char* key, size_t length, uint64_t generation) noexcept nogil:
    """Return whether an entry of the cache holds the route of a key."""
    return (entry.generation == generation and entry.key_length == length
            and memcmp(entry.block + entry.count * sizeof(uint32_t), key, length) == 0)


cdef Route answer_of(CacheEntry* entry) noexcept nogil:
    """Return the route that an entry of the cache holds."""
    cdef Route answer
    answer.slots = <const uint32_t*>entry.block
    answer.count = entry.count
    answer.refusal = entry.refusal
    answer.rules = entry.rules
    answer.inner_rules = entry.inner_rules
    return answer


cdef size_t segments_end(const char* key, size_t length, char separator, uint32_t count) noexcept nogil:
    """Return the length of the first *count* segments of a key, each with its separator, or 0 if it has fewer."""
    cdef size_t i
    for i in range(length):
        if key[i] == separator:
            count -= 1
            if count == 0:
                return i + 1
    return 0


cdef class Router:
    """Patterns by slot, and the slots that a key reaches. Except ``set_rules``, the Python methods are for tests."""

    def __cinit__(self, keyspace, size_t cache_bytes):
        cdef KeyHead head
        self.root = new_node()
        self.cache = <CacheEntry*>calloc(CACHE_PLACES, sizeof(CacheEntry))
        if self.cache is NULL:
            raise MemoryError
        self.last = self.cache
        self.cache_limit = cache_bytes
        self.generation = 1                 # an unused entry has generation 0
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.separator = ord(keyspace.separator)
        self._heads = keyspace.namespaces
        for namespace in self._heads:
            head.text = <const char*>namespace.head
            head.length = len(namespace.head)
            head.guard = namespace.guard
            head.is_public = namespace.public
            head.is_address = namespace.head == ADDRESS_HEAD
            self.heads.push_back(head)

    def __dealloc__(self):
        if self.root is not NULL:
            free_node(self.root)
        if self.cache is not NULL:
            self.forget_all()
            free(self.cache)

    # -- patterns

    cdef bint insert(self, uint32_t slot, const char* pattern, size_t length) noexcept nogil:
        """Store one instance of a pattern, or return False if it can never match."""
        if not is_live(pattern, length, self.separator):
            return False
        self.generation += 1
        while self.marks.size() <= slot:
            self.marks.push_back(0)
        insert_below(self.root, slot, pattern, length, self.separator)
        return True

    cdef bint erase(self, uint32_t slot, const char* pattern, size_t length) noexcept nogil:
        """Remove one instance of a pattern, and nodes that are empty then; return whether there was one."""
        if not is_live(pattern, length, self.separator):
            return False
        self.generation += 1
        return erase_below(self.root, slot, pattern, length, self.separator)

    # -- keys

    cdef KeyHead* head_of(self, const char* key, size_t length) noexcept nogil:
        """Return the reserved namespace of *key*, or NULL if it is in none."""
        cdef size_t i
        for i in range(self.heads.size()):
            if length >= self.heads[i].length and memcmp(key, self.heads[i].text, self.heads[i].length) == 0:
                return &self.heads[i]
        return NULL

    cdef bint is_open(self, KeyHead* head, const char* key, size_t length) noexcept nogil:
        """Return whether clients may publish to *key*, whose namespace is *head*, by its first segments."""
        return head is NULL or (head.is_public and segments_end(key, length, self.separator, head.guard) != 0)

    cdef size_t inner_at(self, KeyHead* head, const char* key, size_t length) noexcept nogil:
        """Return where in *key*, whose namespace is *head*, the key after an address begins, or 0 if there is none."""
        return segments_end(key, length, self.separator, head.guard) if head is not NULL and head.is_address else 0

    cdef void note(self, uint32_t slot) noexcept nogil:
        """Add a slot to `found` if it is not there yet."""
        if self.marks[slot] != self.mark:
            self.marks[slot] = self.mark
            self.found.push_back(slot)

    cdef void collect(self, Subscribers* subscribers) noexcept nogil:
        """Add subscribers to `found` that are not there yet."""
        cdef size_t i
        if subscribers.count == 1:
            self.note(subscribers.held.one.slot)
        elif subscribers.count:
            for i in range(subscribers.held.many.size()):
                self.note(dereference(subscribers.held.many)[i].slot)

    cdef void find_holders(self, const char* pattern, size_t length) noexcept nogil:
        """Set `found` to the slots that have stored a pattern, or one that only differs from it in the number of adjacent stars."""
        cdef Subscribers* holders
        self.mark += 1
        self.found.clear()
        if is_live(pattern, length, self.separator):
            holders = subscribers_of(self.root, pattern, length, self.separator)
            if holders is not NULL:
                self.collect(holders)

    cdef void find(self, const char* key, size_t length, uint32_t guard) noexcept nogil:
        """Set `found` to the slots with a pattern that matches *key*: one level down for each segment."""
        cdef uint32_t depth = 0
        cdef size_t n, i
        cdef Child* child
        self.mark += 1
        self.found.clear()
        self.frontier.clear()
        self.frontier.push_back(self.root)
        while True:
            n = segment_length(key, length, self.separator)
            self.reached.clear()
            for i in range(self.frontier.size()):
                if depth >= guard:
                    self.collect(&self.frontier[i].rest)
                descend(self.frontier[i], key, n, depth >= guard, self.reached)
            self.visited += self.reached.size()
            self.frontier.clear()
            key += n
            length -= n
            depth += 1
            for i in range(self.reached.size()):
                child = self.reached[i]
                if is_branch(child):
                    self.frontier.push_back(child.ends.held.node)
                elif matches(child, key, length, self.separator, guard - depth if guard > depth else 0, &self.visited):
                    self.collect(&child.ends)
            if length == 0 or self.frontier.empty():
                break
            key += 1
            length -= 1
        for i in range(self.frontier.size()):
            self.collect(&self.frontier[i].here)

    cdef Route route(self, const char* key, size_t length) noexcept nogil:
        """Return the recipients of *key*, from the cache or by a walk."""
        cdef Route answer
        cdef CacheEntry* entry = self.last
        cdef KeyHead* head
        cdef KeyHead* inner_head
        cdef uint64_t hash = 0
        cdef size_t place, inner
        cdef int way
        # A busy publisher publishes to few keys, and the same key again needs no hash.
        if is_about(entry, key, length, self.generation):
            self.hits += 1
            return answer_of(entry)
        if length <= CACHED_KEY_BYTES:
            hash = hash_of(key, length, self.seed)
            place = hash & (CACHE_PLACES - 1)
            for way in range(2):
                entry = &self.cache[place ^ way]
                if entry.hash == hash and is_about(entry, key, length, self.generation):
                    self.hits += 1
                    self.last = entry
                    return answer_of(entry)
        self.misses += 1
        head = self.head_of(key, length)
        answer.refusal = -1 if self.is_open(head, key, length) else REFUSED_RESERVED
        answer.rules = self.rules_for(key, length)
        answer.inner_rules = 0
        inner = self.inner_at(head, key, length)
        if inner:
            inner_head = self.head_of(key + inner, length - inner)
            answer.inner_rules = self.rules_for(key + inner, length - inner)
            # An address after an address has no meaning, and would give each recipient many names.
            if inner_head == head or not self.is_open(inner_head, key + inner, length - inner):
                answer.refusal = REFUSED_RESERVED
        self.find(key, length, 0 if head is NULL else head.guard)
        if length <= CACHED_KEY_BYTES:
            self.remember(hash, key, length, answer)
        answer.slots = self.found.data()
        answer.count = self.found.size()
        return answer

    cdef uint64_t rules_for(self, const char* key, size_t length) noexcept nogil:
        """Return the set of publish rules that apply to *key*."""
        cdef uint64_t found = 0
        cdef size_t i
        for i in range(self.prefixes.size()):
            if length >= self.prefixes[i].length and memcmp(key, self.prefixes[i].text, self.prefixes[i].length) == 0:
                found |= <uint64_t>1 << i
        return found

    def set_rules(self, tuple rules):
        """Set the prefixes of the publish rules; every cached route is stale."""
        cdef KeyHead head
        self._rules = rules
        self.prefixes.clear()
        for rule in rules:
            head.text = <const char*>rule.prefix
            head.length = len(rule.prefix)
            head.guard = 0
            head.is_public = rule.is_allowed
            head.is_address = False
            self.prefixes.push_back(head)
        self.generation += 1

    cdef void remember(self, uint64_t hash, const char* key, size_t length, Route route) noexcept nogil:
        """Put *route*, whose recipients are `found`, into the cache.

        It goes into the hash's first place. If that is not stale, its entry moves to the second place.
        """
        cdef size_t place = hash & (CACHE_PLACES - 1)
        cdef CacheEntry* first = &self.cache[place]
        cdef CacheEntry* second = &self.cache[place ^ 1]
        cdef size_t slots_bytes = self.found.size() * sizeof(uint32_t)
        cdef size_t size = slots_bytes + length
        cdef char* block
        if size > self.cache_limit:
            return
        if self.cached_bytes + size > self.cache_limit:
            self.forget_all()
        block = <char*>malloc(size if size else 1)
        if block is NULL:
            return
        if first.generation == self.generation:
            self.cached_bytes -= second.count * sizeof(uint32_t) + second.key_length
            free(second.block)
            second[0] = first[0]
        else:
            self.cached_bytes -= first.count * sizeof(uint32_t) + first.key_length
            free(first.block)
        if slots_bytes:     # an empty vector may have no data, and memcpy(3) must not get NULL even for 0 bytes
            memcpy(block, self.found.data(), slots_bytes)
        memcpy(block + slots_bytes, key, length)
        first.hash = hash
        first.generation = self.generation
        first.block = block
        first.count = self.found.size()
        first.key_length = length
        first.refusal = route.refusal
        first.rules = route.rules
        first.inner_rules = route.inner_rules
        self.cached_bytes += size

    cdef void forget_all(self) noexcept nogil:
        """Empty the cache."""
        cdef size_t i
        for i in range(<size_t>CACHE_PLACES):
            if self.cache[i].generation:
                free(self.cache[i].block)
                self.cache[i].block = NULL
                self.cache[i].generation = 0
                self.cache[i].count = 0
                self.cache[i].key_length = 0
        self.cached_bytes = 0

    # -- for tests

    @property
    def cache_bytes(self):
        """Bytes that the cache holds now."""
        return self.cached_bytes

    @property
    def is_bare(self):
        """Whether only the root is left."""
        return is_empty(self.root)

    def add(self, uint32_t slot, bytes pattern):
        """Store one instance of *pattern* for *slot*."""
        self.insert(slot, pattern, len(pattern))

    def remove(self, uint32_t slot, bytes pattern):
        """Remove one instance; return whether there was one."""
        return self.erase(slot, pattern, len(pattern))

    def lookup(self, bytes key):
        """Return the sorted slots that *key* reaches and its refusal, None if there is none."""
        cdef Route found = self.route(key, len(key))
        cdef uint32_t i
        return sorted([found.slots[i] for i in range(found.count)]), None if found.refusal < 0 else Refusal(found.refusal)
