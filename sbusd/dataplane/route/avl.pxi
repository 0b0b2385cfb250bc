"""An AVL tree of texts, in the order of their bytes. Source: Adelson-Velsky and Landis, 1962.

An item is one block of memory: its links, the data of its owner, and its text. A structure that begins with an `Item` is an item. An
ordered map of strings would take another block for each item, and three times the memory. No choice of texts makes the tree slow.
"""

from libc.stdint cimport uint32_t, uint8_t
from libc.stdlib cimport abort, free, malloc
from libc.string cimport memcmp, memcpy

cdef enum:
    MAX_HEIGHT = 48         # of a tree of 2**32 items: 1.44 times the binary logarithm


cdef void* new_item(size_t text_at, const char* text, size_t length, size_t more) noexcept nogil:
    """Return an item whose text begins *text_at* bytes after its start, with *more* bytes after the text; release it with free(3)."""
    cdef Item* item = <Item*>malloc(text_at + length + more)
    if item is NULL:
        abort()             # as C++ does if it has no memory for an item of a container
    item.left = item.right = NULL
    item.height = 1
    item.length = length
    item.text_at = text_at
    memcpy(text_of(item), text, length)
    return item


cdef char* text_of(Item* item) noexcept nogil:
    """Return where the text of an item begins."""
    return <char*>item + item.text_at


cdef int compare(const char* text, size_t length, Item* item) noexcept nogil:
    """Return a number below, at or above 0: a text sorts before that of an item, is equal to it, or sorts after it."""
    cdef int order = memcmp(text, text_of(item), min(length, <size_t>item.length))
    if order == 0 and length != item.length:
        return -1 if length < item.length else 1
    return order


cdef Item** link_of(Item** root, const char* text, size_t length) noexcept nogil:
    """Return the pointer to the item of a text, or NULL if there is none; valid until the tree changes."""
    cdef Item** link = root
    cdef int order
    while link[0] is not NULL:
        order = compare(text, length, link[0])
        if order == 0:
            return link
        link = &link[0].left if order < 0 else &link[0].right
    return NULL


cdef Item* first(Item* root) noexcept nogil:
    """Return the first item, or NULL."""
    while root is not NULL and root.left is not NULL:
        root = root.left
    return root


cdef Item* item_after(Item* root, const char* text, size_t length) noexcept nogil:
    """Return the first item whose text sorts after *text*, which need not be in the tree, or NULL."""
    cdef Item* found = NULL
    while root is not NULL:
        if compare(text, length, root) < 0:
            found = root
            root = root.left
        else:
            root = root.right
    return found


cdef int height_of(Item* item) noexcept nogil:
    """Return the height of a tree."""
    return 0 if item is NULL else item.height


cdef void measure(Item* item) noexcept nogil:
    """Set the height of an item from the heights of the trees below it."""
    item.height = <uint8_t>(max(height_of(item.left), height_of(item.right)) + 1)


cdef void turn_right(Item** link) noexcept nogil:
    """Put the left item below an item into its place."""
    cdef Item* item = link[0]
    cdef Item* up = item.left
    item.left = up.right
    up.right = item
    measure(item)
    measure(up)
    link[0] = up


cdef void turn_left(Item** link) noexcept nogil:
    """Put the right item below an item into its place."""
    cdef Item* item = link[0]
    cdef Item* up = item.right
    item.right = up.left
    up.left = item
    measure(item)
    measure(up)
    link[0] = up


cdef void balance(Item** link) noexcept nogil:
    """Rebalance an item after one side changed by one: the heights of both sides differ by at most one again."""
    cdef Item* item = link[0]
    cdef int lean = height_of(item.left) - height_of(item.right)
    if lean > 1:
        if height_of(item.left.left) < height_of(item.left.right):
            turn_left(&item.left)
        turn_right(link)
    elif lean < -1:
        if height_of(item.right.right) < height_of(item.right.left):
            turn_right(&item.right)
        turn_left(link)
    else:
        measure(item)


cdef void put(Item** root, Item* fresh) noexcept nogil:
    """Add an item whose text is not in the tree."""
    cdef Item** path[MAX_HEIGHT]
    cdef Item** link = root
    cdef size_t depth = 0
    while link[0] is not NULL:
        path[depth] = link
        depth += 1
        link = &link[0].left if compare(text_of(fresh), fresh.length, link[0]) < 0 else &link[0].right
    link[0] = fresh
    while depth > 0:
        depth -= 1
        balance(path[depth])


cdef Item* cut(Item** root, const char* text, size_t length) noexcept nogil:
    """Remove the item of a text, which must be in the tree, and return it."""
    cdef Item** path[MAX_HEIGHT]
    cdef Item** link = root
    cdef Item* item
    cdef Item* heir
    cdef size_t depth = 0, place
    cdef int order = compare(text, length, link[0])
    while order != 0:
        path[depth] = link
        depth += 1
        link = &link[0].left if order < 0 else &link[0].right
        order = compare(text, length, link[0])
    item = link[0]
    if item.left is NULL or item.right is NULL:
        link[0] = item.right if item.left is NULL else item.left
    else:
        # The next item takes its place.
        place = depth
        path[depth] = link
        depth += 1
        link = &item.right
        while link[0].left is not NULL:
            path[depth] = link
            depth += 1
            link = &link[0].left
        heir = link[0]
        link[0] = heir.right
        heir.left = item.left
        heir.right = item.right
        path[place][0] = heir
        if depth > place + 1:
            path[place + 1] = &heir.right
    while depth > 0:
        depth -= 1
        balance(path[depth])
    return item


# -- the patterns that one connection has stored, with their instances: the router has no such list

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
