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


cdef struct Step:
    Node* parent            # of the node that this step of a walk led to
    const char* segment     # of the pattern, which led there
    size_t length


cdef Node* new_node() noexcept nogil:
    """Return an empty node."""
    cdef Node* node = new Node()
    node.exact = NULL
    node.starred = NULL
    node.here.count = node.rest.count = 0
    return node


cdef bint is_empty(Node* node) noexcept nogil:
    """Return whether nothing hangs on a node, so that it can go."""
    return node.exact is NULL and node.starred is NULL and node.here.count == 0 and node.rest.count == 0


cdef void free_node(Node* node) noexcept nogil:
    """Free a node with all below it. A pattern may be as deep as it is long: the stack would not hold a call for each level."""
    cdef vector[Node*] nodes
    cdef vector[Stem*] stems
    cdef Children.iterator child
    nodes.push_back(node)
    while not nodes.empty():
        node = nodes.back()
        nodes.pop_back()
        if node.exact is not NULL:
            child = node.exact.begin()
            while child != node.exact.end():
                nodes.push_back(dereference(child).second)
                preincrement(child)
            del node.exact
        if node.starred is not NULL:
            stems.push_back(node.starred)
        free_many(&node.here)
        free_many(&node.rest)
        del node
        free_stems(stems, nodes)


cdef void free_stems(vector[Stem*]& stems, vector[Node*]& nodes) noexcept nogil:
    """Free stems with all their branches, and add what hangs on them to *nodes*, which are still to be freed."""
    cdef Stem* stem
    cdef size_t i
    while not stems.empty():
        stem = stems.back()
        stems.pop_back()
        for i in range(stem.branches.size()):
            stems.push_back(stem.branches[i])
        if stem.node is not NULL:
            nodes.push_back(stem.node)
        del stem


cdef Stem* new_stem(const char* text, size_t length) noexcept nogil:
    """Return a stem with nothing on it."""
    cdef Stem* stem = new Stem()
    stem.text.assign(text, length)
    stem.node = NULL
    return stem


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


cdef bint prune(Stem* root, const char* literal, size_t length) noexcept nogil:
    """Take the empty node off a literal, and join what needs no fork any more; return whether *root* itself can go."""
    cdef vector[Stem*] above
    cdef Stem* stem = root
    while length > 0:
        above.push_back(stem)
        stem = stem.branches[branch_of(stem, literal[0])]
        literal += stem.text.size()
        length -= stem.text.size()
    free_node(stem.node)
    stem.node = NULL
    while not above.empty() and tidy_branch(above.back(), stem):
        stem = above.back()
        above.pop_back()
    return root.node is NULL and root.branches.empty()


cdef bint tidy_branch(Stem* stem, Stem* branch) noexcept nogil:
    """Take away a branch that holds nothing, or is a fork no more; return whether *stem* may now be such a one."""
    cdef size_t place = branch_of(stem, branch.text[0])
    if branch.node is not NULL or branch.branches.size() > 1:
        return False
    if branch.branches.empty():
        stem.branches.erase(stem.branches.begin() + place)
    else:
        branch.branches[0].text.insert(0, branch.text)
        stem.branches[place] = branch.branches[0]
    del branch
    return True


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


cdef void free_many(Subscribers* subscribers) noexcept nogil:
    """Free what more than one subscriber takes."""
    if subscribers.count == MANY:
        del subscribers.held.many
        subscribers.count = 0


cdef void add_instance(Subscribers* subscribers, uint32_t slot) noexcept nogil:
    """Count one more instance of a slot's pattern."""
    cdef vector[Subscriber]* many
    cdef Subscriber fresh
    cdef size_t place
    fresh.slot = slot
    fresh.instances = 1
    if subscribers.count == 0:
        subscribers.held.one = fresh
        subscribers.count = 1
        return
    if subscribers.count == 1:
        if subscribers.held.one.slot == slot:
            subscribers.held.one.instances += 1
            return
        many = new vector[Subscriber]()
        many.push_back(subscribers.held.one)
        subscribers.held.many = many
        subscribers.count = MANY
    many = subscribers.held.many
    place = place_of(dereference(many), slot)
    if place < many.size() and dereference(many)[place].slot == slot:
        many.data()[place].instances += 1
    else:
        many.insert(many.begin() + place, fresh)


cdef bint remove_instance(Subscribers* subscribers, uint32_t slot) noexcept nogil:
    """Count one instance less; return whether there was one."""
    cdef Subscriber last
    if subscribers.count == MANY:
        if not remove_one_of(subscribers.held.many, slot):
            return False
        if subscribers.held.many.size() == 1:
            last = subscribers.held.many.front()
            del subscribers.held.many
            subscribers.held.one = last
            subscribers.count = 1
        return True
    if subscribers.count == 0 or subscribers.held.one.slot != slot:
        return False
    subscribers.held.one.instances -= 1
    if subscribers.held.one.instances == 0:
        subscribers.count = 0
    return True


cdef bint remove_one_of(vector[Subscriber]* many, uint32_t slot) noexcept nogil:
    """Count one instance less of a slot among several; return whether there was one."""
    cdef size_t place = place_of(dereference(many), slot)
    if place == many.size() or dereference(many)[place].slot != slot:
        return False
    many.data()[place].instances -= 1
    if many.data()[place].instances == 0:
        many.erase(many.begin() + place)
        if many.capacity() > 8 and many.size() * 4 < many.capacity():
            many.shrink_to_fit()
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
            add_instance(&node.here, slot)
            return
        pattern += n + 1
        length -= n + 1
    # Nothing is left behind a separator, or the pattern is empty: it takes whatever follows.
    add_instance(&node.rest, slot)


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


cdef bint erase_below(Node* root, uint32_t slot, const char* pattern, size_t length, char separator) noexcept nogil:
    """Remove one instance of a pattern, and the nodes that nothing hangs on any more; return whether there was one."""
    cdef vector[Step] steps
    cdef Step step
    cdef Node* node = root
    cdef bint removed, ends_here = False
    while length > 0:
        step.parent = node
        step.segment = pattern
        step.length = segment_length(pattern, length, separator)
        steps.push_back(step)
        node = child_of(node, pattern, step.length)
        if node is NULL:
            return False
        if step.length == length:
            ends_here = True
            break
        pattern += step.length + 1
        length -= step.length + 1
    if ends_here:
        removed = remove_instance(&node.here, slot)
    else:
        removed = remove_instance(&node.rest, slot)
    while not steps.empty() and is_empty(node):
        step = steps.back()
        steps.pop_back()
        drop_child(step.parent, step.segment, step.length)
        node = step.parent
    return removed


cdef Node* child_of(Node* node, const char* segment, size_t length) noexcept nogil:
    """Return the child for a pattern's segment, or NULL."""
    cdef const char* star = <const char*>memchr(segment, c'*', length)
    cdef string label
    cdef Children.iterator child
    if star is not NULL and node.starred is not NULL:
        return on_stem(node.starred, segment, star - segment)
    if star is NULL and node.exact is not NULL:
        label.assign(segment, length)
        child = node.exact.find(label)
        if child != node.exact.end():
            return dereference(child).second
    return NULL


cdef void drop_child(Node* node, const char* segment, size_t length) noexcept nogil:
    """Free the child for a pattern's segment, which is there and empty."""
    cdef const char* star = <const char*>memchr(segment, c'*', length)
    cdef string label
    cdef Children.iterator child
    if star is not NULL:
        if prune(node.starred, segment, star - segment):
            del node.starred
            node.starred = NULL
        return
    label.assign(segment, length)
    child = node.exact.find(label)
    free_node(dereference(child).second)
    node.exact.erase(child)
    if node.exact.empty():
        del node.exact
        node.exact = NULL


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
