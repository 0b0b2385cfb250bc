# The patterns of one connection. See subscriptions.pyx.

from libc.stdint cimport uint32_t

from sbusd.dataplane.avl cimport Item


cdef struct Stored:
    Item item                           # by its pattern
    uint32_t instances
    char text[4]                        # the pattern


cdef void store_instance(Item** stored, const char* pattern, size_t length) noexcept nogil
cdef bint remove_stored(Item** stored, const char* pattern, size_t length) noexcept nogil
cdef uint32_t instances_of(Item** stored, const char* pattern, size_t length) noexcept nogil
cdef void free_stored(Item** stored) noexcept nogil
