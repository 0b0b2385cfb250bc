# An AVL tree of texts. See avl.pyx.

from libc.stdint cimport uint8_t, uint32_t


cdef struct Item:
    Item* left                          # with the texts that sort before its own
    Item* right                         # with those that sort after it
    uint32_t length                     # of its text
    uint8_t height                      # of the tree below and including this item
    uint8_t text_at                     # the offset of its text


cdef void* new_item(size_t text_at, const char* text, size_t length, size_t more) noexcept nogil
cdef char* text_of(Item* item) noexcept nogil
cdef Item** link_of(Item** root, const char* text, size_t length) noexcept nogil
cdef void put(Item** root, Item* fresh) noexcept nogil
cdef Item* cut(Item** root, const char* text, size_t length) noexcept nogil
cdef Item* first(Item* root) noexcept nogil
cdef Item* item_after(Item* root, const char* text, size_t length) noexcept nogil
