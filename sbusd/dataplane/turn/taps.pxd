# Connections that receive a report of each message that a pattern matches. See taps.pxi.

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.utility cimport pair
from libcpp.vector cimport vector


cdef cppclass Tapper:
    Outbox* out
    uint64_t connection
    string pattern
    vector[uint32_t] share              # packets of the current batch that it gets a report of


cdef class Taps:
    cdef Router router
    cdef cpp_map[uint32_t, Tapper*] tappers     # by slot
    cdef size_t count                           # the number of taps, which each packet needs
    cdef vector[pair[uint64_t, uint32_t]] touched   # ids and slots of those with a share of the current batch
    cdef vector[uint32_t] noted                 # packets of the current batch that match a tap
    cdef int64_t times[BATCH_PACKETS]
    cdef Head heads[BATCH_PACKETS]
    cdef string text                            # of the heads

    cdef void add(self, uint32_t slot, uint64_t connection, Outbox* out, const char* pattern, size_t length) noexcept nogil
    cdef void remove(self, uint32_t slot) noexcept nogil
    cdef void note(self, const char* key, size_t length, uint32_t index, Batch* batch) noexcept nogil
    cdef void write_heads(
        self, Batch* batch, uint64_t sender, const string& cred, Vouching* vouching, DirectMessages* direct) noexcept nogil
    cdef void deliver(self, Batch* batch, uint64_t sender, const string& cred, Vouching* vouching, DirectMessages* direct) noexcept nogil
    cdef void report(self, const char* key, size_t length, const char* packet, size_t size, uint32_t payer) noexcept nogil
