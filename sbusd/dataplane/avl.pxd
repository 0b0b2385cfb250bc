# The shape of a balanced tree of texts. See avl.pyx.

from libc.stdint cimport uint8_t, uint32_t


cdef struct Item:
    Item* left                          # with the texts that sort before its own
    Item* right                         # with those that sort after it
    uint32_t length                     # of its text
    uint8_t height                      # of the tree from here on down
    uint8_t text_at                     # how many bytes behind its start its text begins


cdef void* new_item(size_t text_at, const char* text, size_t length, size_t more) noexcept nogil
cdef char* text_of(Item* item) noexcept nogil
cdef Item** link_of(Item** root, const char* text, size_t length) noexcept nogil
cdef void put(Item** root, Item* fresh) noexcept nogil
cdef Item* cut(Item** root, const char* text, size_t length) noexcept nogil
cdef Item* first(Item* root) noexcept nogil
cdef Item* item_behind(Item* root, const char* text, size_t length) noexcept nogil
