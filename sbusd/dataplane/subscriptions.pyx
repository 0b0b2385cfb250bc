# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""The patterns that one connection has stored, in the order of their bytes, with their instances. The router has no such list."""

from libc.stdlib cimport free

from sbusd.dataplane.avl cimport cut, first, link_of, new_item, put, text_of


cdef void store_instance(Item** stored, const char* pattern, size_t length) noexcept nogil:
    """Add one instance of a pattern."""
    cdef Item** link = link_of(stored, pattern, length)
    cdef Stored* fresh
    if link is not NULL:
        (<Stored*>link[0]).instances += 1
        return
    fresh = <Stored*>new_item(sizeof(Stored) - sizeof(fresh.text), pattern, length, 0)
    fresh.instances = 1
    put(stored, &fresh.item)


cdef bint remove_stored(Item** stored, const char* pattern, size_t length) noexcept nogil:
    """Remove one instance of a pattern, which may be the text of its own item; return whether there was one."""
    cdef Item** link = link_of(stored, pattern, length)
    if link is NULL:
        return False
    if (<Stored*>link[0]).instances > 1:
        (<Stored*>link[0]).instances -= 1
    else:
        free(cut(stored, pattern, length))
    return True


cdef uint32_t instances_of(Item** stored, const char* pattern, size_t length) noexcept nogil:
    """Return the number of instances of a pattern."""
    cdef Item** link = link_of(stored, pattern, length)
    return 0 if link is NULL else (<Stored*>link[0]).instances


cdef void free_stored(Item** stored) noexcept nogil:
    """Forget all patterns."""
    cdef Item* item
    while stored[0] is not NULL:
        item = first(stored[0])
        free(cut(stored, text_of(item), item.length))
