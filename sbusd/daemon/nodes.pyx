# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""The trie of patterns: one node for each segment of each pattern.

A node's children are kept by their whole segment in an ordered map, not in a hash table, so that no choice of patterns makes it
slow; and, for segments that end with a star, in a radix tree of the literals before the star (the *stems*), in which all those
that begin a key's segment lie on one path: finding them costs the length of the segment, however many are stored.
Slots are small numbers that the switch gives its connections. Everything here runs without the interpreter.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memchr, memcmp
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.vector cimport vector
from cython.operator cimport dereference, preincrement

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


cdef void insert_below(Node* node, uint32_t slot, const char* pattern, size_t length, char separator) noexcept nogil:
    """Store one instance of a pattern that can match."""
    cdef size_t n
    while length > 0:
        n = segment_length(pattern, length, separator)
        node = child_for(node, pattern, n)
        if n == length:
            add_instance(node.here, slot)
            return
        pattern += n + 1
        length -= n + 1
    # Nothing is left behind a separator, or the pattern is empty: it takes whatever follows.
    add_instance(node.rest, slot)


cdef Node* child_for(Node* node, const char* segment, size_t length) noexcept nogil:
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


cdef bint erase_below(Node* node, uint32_t slot, const char* pattern, size_t length, char separator) noexcept nogil:
    """Remove one instance of what is left of a pattern below *node*."""
    cdef Children.iterator found
    cdef Node* child = NULL
    cdef string label
    cdef size_t n = segment_length(pattern, length, separator)
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
        removed = erase_below(child, slot, pattern + n + 1, length - n - 1, separator)
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


cdef void descend(Node* node, const char* segment, size_t length, bint with_stars, vector[Node*]& reached) noexcept nogil:
    """Add the children that take one segment of a key: the one that spells it out and, *with_stars*, those that begin it."""
    cdef Children.iterator child
    cdef string label
    if node.exact is not NULL:
        label.assign(segment, length)
        child = node.exact.find(label)
        if child != node.exact.end():
            reached.push_back(dereference(child).second)
    if node.starred is not NULL and with_stars:
        climb(node.starred, segment, length, reached)
