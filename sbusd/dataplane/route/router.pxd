# From a key to its recipients. See router.pxi.

from libc.stdint cimport uint32_t, uint64_t
from libcpp.vector cimport vector


cdef struct Route:
    const uint32_t* slots   # recipients, each once; valid until the next call of the router
    uint32_t count
    int refusal             # a Refusal, or -1: the key may be published to
    uint64_t rules          # bit i: publish rule i applies to the key
    uint64_t inner_rules    # bit i: publish rule i applies to the key after the address in it, if there is one


cdef struct CacheEntry:
    uint64_t hash
    uint64_t generation     # valid only while it equals the router's
    char* block             # slots, then the key; one allocation, which is freed at once
    uint32_t count
    uint32_t key_length
    int refusal
    uint64_t rules
    uint64_t inner_rules


cdef struct KeyHead:
    const char* text        # borrowed from the router's `_heads`
    size_t length
    uint32_t guard
    bint is_public
    bint is_address         # after its guarded segments there is another key


cdef class Router:
    cdef Node* root
    cdef CacheEntry* cache
    cdef CacheEntry* last               # the entry that was used last
    cdef size_t cached_bytes
    cdef size_t cache_limit
    cdef uint64_t generation
    cdef uint64_t seed
    cdef uint64_t mark
    cdef char separator
    cdef object _heads                  # keeps the bytes that `heads` points into
    cdef vector[KeyHead] heads
    cdef vector[Node*] frontier
    cdef vector[Child*] reached
    cdef vector[uint32_t] found
    cdef vector[uint64_t] marks         # by slot: the last walk that has found it
    cdef object _rules                  # keeps the bytes that `prefixes` points into
    cdef vector[KeyHead] prefixes          # of the publish rules
    cdef readonly uint64_t visited      # nodes of the trie in all walks: the cost of walking
    cdef public uint64_t hits
    cdef public uint64_t misses

    cdef bint insert(self, uint32_t slot, const char* pattern, size_t length) noexcept nogil
    cdef bint erase(self, uint32_t slot, const char* pattern, size_t length) noexcept nogil
    cdef Route route(self, const char* key, size_t length) noexcept nogil
    cdef void find(self, const char* key, size_t length, uint32_t guard) noexcept nogil
    cdef void find_holders(self, const char* pattern, size_t length) noexcept nogil
    cdef void note(self, uint32_t slot) noexcept nogil
    cdef void collect(self, Subscribers* subscribers) noexcept nogil
    cdef KeyHead* head_of(self, const char* key, size_t length) noexcept nogil
    cdef size_t inner_at(self, KeyHead* head, const char* key, size_t length) noexcept nogil
    cdef bint is_open(self, KeyHead* head, const char* key, size_t length) noexcept nogil
    cdef uint64_t rules_for(self, const char* key, size_t length) noexcept nogil
    cdef void remember(self, uint64_t hash, const char* key, size_t length, Route route) noexcept nogil
    cdef void forget_all(self) noexcept nogil
