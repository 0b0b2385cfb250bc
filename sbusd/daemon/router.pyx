# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""From a key to its recipients: a trie over segments behind a cache.

The trie has one node for each segment of each pattern. A node's children are kept by their whole segment in an ordered map, not
in a hash table, so that no choice of patterns makes it slow; and, for segments that end with a star, in a radix tree of the
literals before the star (the *stems*), in which all those that begin a key's segment lie on one path: finding them costs the
length of the segment, however many are stored. Slots are small numbers that the switch gives its connections; a slot appears
once in a route.

The cache holds the routes of keys seen since the last change of any pattern: a change starts a new generation, which makes
every entry stale at once. It has a fixed number of places, two for each hash, and a bound on its bytes; past it, it starts anew.

``sbusd.protocol.keys`` is the plain reference for what matches what. Spec: sbus-protocol(7) §3.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.vector cimport vector
from cython.operator cimport dereference, preincrement

import os

from sbusd.daemon.contract import Refusal

cdef enum:
    CACHE_PLACES = 8192         # a power of two; at 48 bytes each they are touched only as keys arrive
    CACHED_KEY_BYTES = 512      # longer keys are rare; walking the trie for them costs less than keeping them

cdef int REFUSED_RESERVED = Refusal.RESERVED

ctypedef cpp_map[string, Node*] Children


cdef Node* new_node() noexcept nogil:
    """Return an empty node."""
    cdef Node* node = new Node()
    node.exact = NULL
    node.starred = NULL
    return node


cdef bint is_empty(Node* node) noexcept nogil:
    """Return whether nothing hangs on a node, so that it can go."""
    return node.exact is NULL and node.starred is NULL and node.here.empty() and node.rest.empty()


cdef void free_node(Node* node) noexcept nogil:
    """Free a node with all below it; recursion is as deep as the longest pattern, which `key_bytes` bounds."""
    cdef Children.iterator child
    if node.exact is not NULL:
        child = node.exact.begin()
        while child != node.exact.end():
            free_node(dereference(child).second)
            preincrement(child)
        del node.exact
    if node.starred is not NULL:
        free_stem(node.starred)
    del node


cdef Stem* new_stem(const char* text, size_t length) noexcept nogil:
    """Return a stem with nothing on it."""
    cdef Stem* stem = new Stem()
    stem.text.assign(text, length)
    stem.node = NULL
    return stem


cdef void free_stem(Stem* stem) noexcept nogil:
    """Free a stem with all above and on it."""
    cdef size_t i
    for i in range(stem.branches.size()):
        free_stem(stem.branches[i])
    if stem.node is not NULL:
        free_node(stem.node)
    del stem


cdef size_t branch_of(Stem* stem, char byte) noexcept nogil:
    """Return where the branch that begins with *byte* stands, or would stand; a stem has 256 branches at most."""
    cdef size_t place = 0
    while place < stem.branches.size() and <unsigned char>stem.branches[place].text[0] < <unsigned char>byte:
        place += 1
    return place


cdef size_t common_length(string& text, const char* other, size_t length) noexcept nogil:
    """Return how many bytes two texts share at their start."""
    cdef size_t n = 0
    while n < length and n < text.size() and text[n] == other[n]:
        n += 1
    return n


cdef Node* grow(Stem* stem, const char* literal, size_t length) noexcept nogil:
    """Return the node that hangs on a literal, made if need be."""
    cdef size_t place, shared
    cdef Stem* branch
    cdef Stem* fork
    while length > 0:
        place = branch_of(stem, literal[0])
        if place == stem.branches.size() or stem.branches[place].text[0] != literal[0]:
            stem.branches.insert(stem.branches.begin() + place, new_stem(literal, length))
            shared = length
        else:
            branch = stem.branches[place]
            shared = common_length(branch.text, literal, length)
            if shared < branch.text.size():
                fork = new_stem(literal, shared)
                fork.branches.push_back(branch)
                branch.text.erase(0, shared)
                stem.branches[place] = fork
        stem = stem.branches[place]
        literal += shared
        length -= shared
    if stem.node is NULL:
        stem.node = new_node()
    return stem.node


cdef Node* on_stem(Stem* stem, const char* literal, size_t length) noexcept nogil:
    """Return the node that hangs on exactly this literal, or NULL."""
    cdef size_t place
    cdef Stem* branch
    while length > 0:
        place = branch_of(stem, literal[0])
        if place == stem.branches.size():
            return NULL
        branch = stem.branches[place]
        if common_length(branch.text, literal, length) < branch.text.size():
            return NULL
        literal += branch.text.size()
        length -= branch.text.size()
        stem = branch
    return stem.node


cdef bint prune(Stem* stem, const char* literal, size_t length) noexcept nogil:
    """Take the empty node off a literal, and join what needs no fork any more; return whether the stem itself can go."""
    cdef size_t place
    cdef Stem* branch
    if length == 0:
        free_node(stem.node)
        stem.node = NULL
    else:
        place = branch_of(stem, literal[0])
        branch = stem.branches[place]
        if prune(branch, literal + branch.text.size(), length - branch.text.size()):
            stem.branches.erase(stem.branches.begin() + place)
            free_stem(branch)
        elif branch.node is NULL and branch.branches.size() == 1:
            branch.branches[0].text.insert(0, branch.text)
            stem.branches[place] = branch.branches[0]
            branch.branches.clear()
            free_stem(branch)
    return stem.node is NULL and stem.branches.empty()


cdef void climb(Stem* stem, const char* segment, size_t length, vector[Node*]& reached) noexcept nogil:
    """Add the nodes of all literals that *segment* begins with."""
    cdef size_t place
    cdef Stem* branch
    while True:
        if stem.node is not NULL:
            reached.push_back(stem.node)
        if length == 0:
            return
        place = branch_of(stem, segment[0])
        if place == stem.branches.size():
            return
        branch = stem.branches[place]
        if branch.text.size() > length or memcmp(branch.text.data(), segment, branch.text.size()) != 0:
            return
        segment += branch.text.size()
        length -= branch.text.size()
        stem = branch


cdef size_t place_of(vector[Subscriber]& subscribers, uint32_t slot) noexcept nogil:
    """Return where *slot* stands, or would stand, in a sorted list."""
    cdef size_t low = 0, high = subscribers.size(), middle
    while low < high:
        middle = (low + high) >> 1
        if subscribers[middle].slot < slot:
            low = middle + 1
        else:
            high = middle
    return low


cdef void add_instance(vector[Subscriber]& subscribers, uint32_t slot) noexcept nogil:
    """Count one more instance of a slot's pattern."""
    cdef size_t place = place_of(subscribers, slot)
    cdef Subscriber fresh
    if place < subscribers.size() and subscribers[place].slot == slot:
        subscribers[place].instances += 1
    else:
        fresh.slot = slot
        fresh.instances = 1
        subscribers.insert(subscribers.begin() + place, fresh)


cdef bint remove_instance(vector[Subscriber]& subscribers, uint32_t slot) noexcept nogil:
    """Count one instance less; return whether there was one."""
    cdef size_t place = place_of(subscribers, slot)
    if place == subscribers.size() or subscribers[place].slot != slot:
        return False
    subscribers[place].instances -= 1
    if subscribers[place].instances == 0:
        subscribers.erase(subscribers.begin() + place)
        if subscribers.capacity() > 8 and subscribers.size() * 4 < subscribers.capacity():
            subscribers.shrink_to_fit()
    return True


cdef size_t segment_length(const char* text, size_t length, char separator) noexcept nogil:
    """Return the length of the first segment of *text*."""
    cdef const char* end = <const char*>memchr(text, separator, length)
    return length if end is NULL else end - text


cdef bint is_live(const char* pattern, size_t length, char separator) noexcept nogil:
    """Return whether a pattern can match anything: in no segment does a star have anything but stars behind it."""
    cdef bint starred = False
    cdef size_t i
    for i in range(length):
        if pattern[i] == separator:
            starred = False
        elif pattern[i] == c'*':
            starred = True
        elif starred:
            return False
    return True


cdef uint64_t hash_of(const char* key, size_t length, uint64_t seed) noexcept nogil:
    """Hash a key, eight bytes at a time. A collision costs one more walk of the trie and nothing else."""
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


cdef class Router:
    """Patterns by slot, and the slots that a key reaches; the methods without underscore in Python are for tests."""

    def __cinit__(self, keyspace, size_t cache_bytes):
        cdef Head head
        self.root = new_node()
        self.cache = <CacheEntry*>calloc(CACHE_PLACES, sizeof(CacheEntry))
        if self.cache is NULL:
            raise MemoryError
        self.cache_limit = cache_bytes
        self.generation = 1                 # a place never used has generation 0
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.separator = ord(keyspace.separator)
        self._heads = keyspace.namespaces
        for namespace in self._heads:
            head.text = <const char*>namespace.head
            head.length = len(namespace.head)
            head.guard = namespace.guard
            head.is_public = namespace.public
            self.heads.push_back(head)

    def __dealloc__(self):
        if self.root is not NULL:
            free_node(self.root)
        if self.cache is not NULL:
            self.forget_all()
            free(self.cache)

    # -- patterns

    cdef bint insert(self, uint32_t slot, const char* pattern, size_t length) noexcept nogil:
        """Store one instance of a pattern; return False if it is one that can never match, which is not stored."""
        cdef Node* node = self.root
        cdef size_t n
        if not is_live(pattern, length, self.separator):
            return False
        self.generation += 1
        while self.marks.size() <= slot:
            self.marks.push_back(0)
        while length > 0:
            n = segment_length(pattern, length, self.separator)
            node = self.child_for(node, pattern, n)
            if n == length:
                add_instance(node.here, slot)
                return True
            pattern += n + 1
            length -= n + 1
        # Nothing is left behind a separator, or the pattern is empty: it takes whatever follows.
        add_instance(node.rest, slot)
        return True

    cdef Node* child_for(self, Node* node, const char* segment, size_t length) noexcept nogil:
        """Return the child for a pattern's segment, made if need be."""
        cdef const char* star = <const char*>memchr(segment, c'*', length)
        cdef string label
        cdef Children.iterator child
        if star is not NULL:
            if node.starred is NULL:
                node.starred = new_stem(b"", 0)
            return grow(node.starred, segment, star - segment)
        if node.exact is NULL:
            node.exact = new Children()
        label.assign(segment, length)
        child = node.exact.find(label)
        if child != node.exact.end():
            return dereference(child).second
        dereference(node.exact)[label] = new_node()
        return dereference(node.exact)[label]

    cdef bint erase(self, uint32_t slot, const char* pattern, size_t length) noexcept nogil:
        """Remove one instance of a pattern, and the nodes that nothing hangs on any more; return whether there was one."""
        if not is_live(pattern, length, self.separator):
            return False
        self.generation += 1
        return self.erase_below(self.root, slot, pattern, length)

    cdef bint erase_below(self, Node* node, uint32_t slot, const char* pattern, size_t length) noexcept nogil:
        """Remove one instance of what is left of a pattern below *node*."""
        cdef Children.iterator found
        cdef Node* child = NULL
        cdef string label
        cdef size_t n = segment_length(pattern, length, self.separator)
        cdef bint removed
        cdef const char* star = <const char*>memchr(pattern, c'*', n)
        if length == 0:
            return remove_instance(node.rest, slot)
        if star is not NULL:
            if node.starred is not NULL:
                child = on_stem(node.starred, pattern, star - pattern)
        elif node.exact is not NULL:
            label.assign(pattern, n)
            found = node.exact.find(label)
            if found != node.exact.end():
                child = dereference(found).second
        if child is NULL:
            return False
        if n == length:
            removed = remove_instance(child.here, slot)
        else:
            removed = self.erase_below(child, slot, pattern + n + 1, length - n - 1)
        if not is_empty(child):
            return removed
        if star is not NULL:
            if prune(node.starred, pattern, star - pattern):
                free_stem(node.starred)
                node.starred = NULL
        else:
            free_node(child)
            node.exact.erase(found)
            if node.exact.empty():
                del node.exact
                node.exact = NULL
        return removed

    # -- keys

    cdef int refusal_of(self, const char* key, size_t length, uint32_t* guard) noexcept nogil:
        """Return -1 if clients may publish to *key*, else the refusal; *guard* is how many segments a pattern must spell out."""
        cdef size_t i, separators = 0
        cdef Head* head = NULL
        guard[0] = 0
        for i in range(self.heads.size()):
            if length >= self.heads[i].length and memcmp(key, self.heads[i].text, self.heads[i].length) == 0:
                head = &self.heads[i]
                break
        if head is NULL:
            return -1
        guard[0] = head.guard
        for i in range(length):
            separators += key[i] == self.separator
        return -1 if head.is_public and separators >= head.guard else REFUSED_RESERVED

    cdef void collect(self, vector[Subscriber]& subscribers) noexcept nogil:
        """Add those who are not found yet."""
        cdef size_t i
        cdef uint32_t slot
        for i in range(subscribers.size()):
            slot = subscribers[i].slot
            if self.marks[slot] != self.mark:
                self.marks[slot] = self.mark
                self.found.push_back(slot)

    cdef void find(self, const char* key, size_t length, uint32_t guard) noexcept nogil:
        """Set `found` to the slots with a pattern that takes *key*: the walk goes down one level for each segment."""
        cdef uint32_t depth = 0
        cdef size_t n, i
        cdef Node* node
        cdef Children.iterator child
        cdef string label
        self.mark += 1
        self.found.clear()
        self.frontier.clear()
        self.frontier.push_back(self.root)
        while True:
            n = segment_length(key, length, self.separator)
            self.following.clear()
            for i in range(self.frontier.size()):
                node = self.frontier[i]
                if depth >= guard:
                    self.collect(node.rest)
                if node.exact is not NULL:
                    label.assign(key, n)
                    child = node.exact.find(label)
                    if child != node.exact.end():
                        self.following.push_back(dereference(child).second)
                if node.starred is not NULL and depth >= guard:
                    climb(node.starred, key, n, self.following)
            self.frontier.swap(self.following)
            if n == length or self.frontier.empty():
                break
            key += n + 1
            length -= n + 1
            depth += 1
        for i in range(self.frontier.size()):
            self.collect(self.frontier[i].here)

    cdef Route route(self, const char* key, size_t length) noexcept nogil:
        """Return the recipients of *key*, from the cache or by a walk."""
        cdef Route answer
        cdef CacheEntry* entry
        cdef uint32_t guard = 0
        cdef uint64_t hash = hash_of(key, length, self.seed)
        cdef size_t place = hash & (CACHE_PLACES - 1)
        cdef int way
        for way in range(2):
            entry = &self.cache[place ^ way]
            if (entry.hash == hash and entry.generation == self.generation and entry.key_length == length
                    and memcmp(entry.block + entry.count * sizeof(uint32_t), key, length) == 0):
                self.hits += 1
                answer.slots = <const uint32_t*>entry.block
                answer.count = entry.count
                answer.refusal = entry.refusal
                return answer
        self.misses += 1
        answer.refusal = self.refusal_of(key, length, &guard)
        self.find(key, length, guard)
        if length <= CACHED_KEY_BYTES:
            self.remember(hash, key, length, answer.refusal)
        answer.slots = self.found.data()
        answer.count = self.found.size()
        return answer

    cdef void remember(self, uint64_t hash, const char* key, size_t length, int refusal) noexcept nogil:
        """Put `found` into the cache, in the stale one of the hash's two places, or in the first after moving that to the second."""
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
        memcpy(block, self.found.data(), slots_bytes)
        memcpy(block + slots_bytes, key, length)
        first.hash = hash
        first.generation = self.generation
        first.block = block
        first.count = self.found.size()
        first.key_length = length
        first.refusal = refusal
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
        """Whether no node but the root is left."""
        return is_empty(self.root)

    def add(self, uint32_t slot, bytes pattern):
        """Store one instance of *pattern* for *slot*."""
        self.insert(slot, pattern, len(pattern))

    def remove(self, uint32_t slot, bytes pattern):
        """Remove one instance; return whether there was one that can match."""
        return self.erase(slot, pattern, len(pattern))

    def lookup(self, bytes key):
        """Return the sorted slots that *key* reaches and its refusal, None if there is none."""
        cdef Route found = self.route(key, len(key))
        cdef uint32_t i
        return sorted([found.slots[i] for i in range(found.count)]), None if found.refusal < 0 else Refusal(found.refusal)
