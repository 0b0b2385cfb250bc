# An AVL tree of texts. See avl.pxi.

from libc.stdint cimport uint8_t, uint32_t


cdef struct Item:
    Item* left                          # with the texts that sort before its own
    Item* right                         # with those that sort after it
    uint32_t length                     # of its text
    uint8_t height                      # of the tree below and including this item
    uint8_t text_at                     # the offset of its text


cdef struct Stored:                     # a pattern of a connection
    Item item                           # by its pattern
    uint32_t instances
    char text[4]                        # the pattern


cdef char* text_of(Item* item) noexcept nogil
cdef Item** link_of(Item** root, const char* text, size_t length) noexcept nogil
cdef Item* first(Item* root) noexcept nogil
cdef Item* item_after(Item* root, const char* text, size_t length) noexcept nogil
cdef void store_instance(Item** stored, const char* pattern, size_t length) noexcept nogil
cdef uint32_t instances_of(Item** stored, const char* pattern, size_t length) noexcept nogil
cdef void free_stored(Item** stored) noexcept nogil
