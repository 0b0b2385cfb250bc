"""The trie of patterns: one node for each segment that patterns share.

The part of a pattern that no other pattern shares is one block, a *leaf*: the first segment that differs, and the rest, which is only
compared with keys that reach it. So most patterns take one block. A second pattern with the same segment turns the leaf into a *branch*
with a node, for each segment that both have.

A node has its children by their whole segment in a balanced tree, not in a hash table, so that no choice of patterns makes it slow.
Segments that end with a star are in a radix tree of the literals before the star (`radix_tree`). All literals that are prefixes of a key's
segment lie on one path: finding them costs the length of the segment, however many are stored.
Slots are small numbers that the switch gives to connections. Everything here runs without the interpreter.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy
from libcpp.vector cimport vector
from cython.operator cimport dereference


cdef struct Step:
    Node* parent            # of the child that this step of a walk led to
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
    """Return whether a node has no patterns and can be freed."""
    return node.exact is NULL and node.starred is NULL and node.here.count == 0 and node.rest.count == 0


cdef void free_node(Node* node) noexcept nogil:
    """Free a node with all below it, without recursion: a pattern may have as many levels as bytes."""
    cdef vector[Node*] nodes
    cdef vector[Item*] items
    cdef vector[Stem*] stems
    nodes.push_back(node)
    while not nodes.empty():
        node = nodes.back()
        nodes.pop_back()
        if node.exact is not NULL:
            items.push_back(node.exact)
        if node.starred is not NULL:
            stems.push_back(node.starred)
        free_many(&node.here)
        free_many(&node.rest)
        del node
        free_stems(stems, items)
        free_items(items, nodes)


cdef void free_stems(vector[Stem*]& stems, vector[Item*]& items) noexcept nogil:
    """Free stems with all their branches, and add their children to *items*, which the caller frees."""
    cdef Stem* stem
    cdef size_t i
    while not stems.empty():
        stem = stems.back()
        stems.pop_back()
        for i in range(stem.branches.size()):
            stems.push_back(stem.branches[i])
        if stem.child is not NULL:
            items.push_back(&stem.child.item)
        del stem


cdef void free_items(vector[Item*]& items, vector[Node*]& nodes) noexcept nogil:
    """Free children with the trees below them, and add the nodes of branches to *nodes*, which the caller frees."""
    cdef Item* item
    while not items.empty():
        item = items.back()
        items.pop_back()
        if item.left is not NULL:
            items.push_back(item.left)
        if item.right is not NULL:
            items.push_back(item.right)
        if is_branch(<Child*>item):
            nodes.push_back((<Child*>item).ends.held.node)
        else:
            free_many(&(<Child*>item).ends)
        free(item)


cdef bint is_branch(Child* child) noexcept nogil:
    """Return whether a child has a node; otherwise it is a leaf."""
    return child.ends.count == BRANCH


cdef char* tail_of(Child* leaf) noexcept nogil:
    """Return where the rest of a leaf's pattern begins."""
    return leaf.text + leaf.item.length


cdef Child* new_child(const char* segment, size_t length, const char* tail, size_t tail_length) noexcept nogil:
    """Return a child for a segment, with a tail and without subscribers."""
    cdef Child* child
    if memchr(segment, c'*', length) is not NULL:
        length = 0          # its literal is on its stem
    child = <Child*>new_item(sizeof(Child) - sizeof(child.text), segment, length, tail_length)
    child.ends.count = 0
    child.tail_length = tail_length
    if tail_length:
        memcpy(tail_of(child), tail, tail_length)
    return child


cdef Child* new_branch(const char* segment, size_t length) noexcept nogil:
    """Return a child with an empty node."""
    cdef Child* child = new_child(segment, length, NULL, 0)
    child.ends.count = BRANCH
    child.ends.held.node = new_node()
    return child


cdef size_t place_of(vector[Subscriber]& subscribers, uint32_t slot) noexcept nogil:
    """Return the place of *slot* in a sorted list, or where it belongs."""
    cdef size_t low = 0, high = subscribers.size(), middle
    while low < high:
        middle = (low + high) >> 1
        if subscribers[middle].slot < slot:
            low = middle + 1
        else:
            high = middle
    return low


cdef void free_many(Subscribers* subscribers) noexcept nogil:
    """Free the list that more than one subscriber needs."""
    if subscribers.count == MANY:
        del subscribers.held.many
        subscribers.count = 0


cdef void add_instance(Subscribers* subscribers, uint32_t slot) noexcept nogil:
    """Add one instance of a slot's pattern."""
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
    """Remove one instance; return whether there was one."""
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
    """Remove one instance of a slot among several; return whether there was one."""
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
    """Return whether a pattern can match anything: in no segment may anything but stars follow a star."""
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
    cdef Child** link
    while length > 0:
        n = segment_length(pattern, length, separator)
        link = child_of(node, pattern, n)
        if link is NULL:
            add_instance(&add_leaf(node, pattern, n, length).ends, slot)
            return
        if not is_branch(link[0]):
            if has_tail(link[0], pattern + n, length - n):
                add_instance(&link[0].ends, slot)
                return
            split(link, pattern, n, pattern + n, length - n, separator)
        node = link[0].ends.held.node
        if n == length:
            add_instance(&node.here, slot)
            return
        pattern += n + 1
        length -= n + 1
    # The pattern ends with a separator, or is empty: it matches whatever follows.
    add_instance(&node.rest, slot)


cdef bint has_tail(Child* leaf, const char* tail, size_t length) noexcept nogil:
    """Return whether these bytes are the rest of a leaf's pattern after its segment."""
    return leaf.tail_length == length and memcmp(tail_of(leaf), tail, length) == 0


cdef Child** child_of(Node* node, const char* segment, size_t length) noexcept nogil:
    """Return the pointer to the child for a pattern's segment, or NULL if there is none."""
    cdef const char* star = <const char*>memchr(segment, c'*', length)
    if star is NULL:
        return <Child**>link_of(&node.exact, segment, length)
    if node.starred is NULL:
        return NULL
    return on_stem(node.starred, segment, star - segment)


cdef void add_child(Node* node, const char* segment, size_t length, Child* child) noexcept nogil:
    """Add the child for a pattern's segment, which has none yet."""
    cdef const char* star = <const char*>memchr(segment, c'*', length)
    if star is NULL:
        put(&node.exact, &child.item)
    else:
        grow(&node.starred, segment, star - segment)[0] = child


cdef Child* add_leaf(Node* node, const char* pattern, size_t n, size_t length) noexcept nogil:
    """Add the child for a pattern's first segment, of *n* bytes, with the rest of the pattern as its tail, and return it."""
    cdef Child* leaf = new_child(pattern, n, pattern + n, length - n)
    add_child(node, pattern, n, leaf)
    return leaf


cdef bint is_same_segment(const char* segment, size_t length, const char* other, size_t other_length) noexcept nogil:
    """Return whether two segments of patterns lead to the same child: all stars after a literal count as one."""
    cdef const char* star = <const char*>memchr(segment, c'*', length)
    cdef const char* other_star = <const char*>memchr(other, c'*', other_length)
    if (star is NULL) != (other_star is NULL):
        return False
    if star is not NULL:
        length = star - segment
        other_length = other_star - other
    return length == other_length and memcmp(segment, other, length) == 0


cdef void split(Child** link, const char* segment, size_t n, const char* rest, size_t length, char separator) noexcept nogil:
    """Turn a leaf, to which a segment of *n* bytes leads, into a branch, and likewise each further segment that it shares with *rest*."""
    cdef Child* leaf = link[0]
    cdef Child* branch = new_branch(segment, n)
    cdef Node* node = branch.ends.held.node
    cdef const char* tail = tail_of(leaf)
    cdef size_t left = leaf.tail_length, m
    branch.item.left = leaf.item.left
    branch.item.right = leaf.item.right
    branch.item.height = leaf.item.height
    link[0] = branch
    # The rest of both begins with a separator.
    while left > 1 and length > 1:
        n = segment_length(tail + 1, left - 1, separator)
        m = segment_length(rest + 1, length - 1, separator)
        if not is_same_segment(tail + 1, n, rest + 1, m):
            break
        branch = new_branch(tail + 1, n)
        add_child(node, tail + 1, n, branch)
        node = branch.ends.held.node
        tail += n + 1
        left -= n + 1
        rest += m + 1
        length -= m + 1
    if left == 0:
        node.here = leaf.ends
    elif left == 1:
        node.rest = leaf.ends
    else:
        add_leaf(node, tail + 1, segment_length(tail + 1, left - 1, separator), left - 1).ends = leaf.ends
    free(leaf)


cdef bint erase_below(Node* root, uint32_t slot, const char* pattern, size_t length, char separator) noexcept nogil:
    """Remove one instance of a pattern, and nodes that are empty then; return whether there was one."""
    cdef vector[Step] steps
    cdef Step step
    cdef Node* node = root
    cdef Child** link
    cdef Subscribers* ends = NULL
    while length > 0 and ends is NULL:
        step.parent = node
        step.segment = pattern
        step.length = segment_length(pattern, length, separator)
        steps.push_back(step)
        link = child_of(node, pattern, step.length)
        if link is NULL:
            return False
        if not is_branch(link[0]):
            if not has_tail(link[0], pattern + step.length, length - step.length):
                return False
            ends = &link[0].ends
            break
        node = link[0].ends.held.node
        if step.length == length:
            ends = &node.here
            break
        pattern += step.length + 1
        length -= step.length + 1
    if not remove_instance(&node.rest if ends is NULL else ends, slot):
        return False
    while not steps.empty() and drop_child(steps.back()):
        steps.pop_back()
    return True


cdef Subscribers* subscribers_of(Node* node, const char* pattern, size_t length, char separator) noexcept nogil:
    """Return the subscribers of a pattern that can match, or NULL if it is not stored."""
    cdef Child** link
    cdef size_t n
    while length > 0:
        n = segment_length(pattern, length, separator)
        link = child_of(node, pattern, n)
        if link is NULL:
            return NULL
        if not is_branch(link[0]):
            return &link[0].ends if has_tail(link[0], pattern + n, length - n) else NULL
        node = link[0].ends.held.node
        if n == length:
            return &node.here
        pattern += n + 1
        length -= n + 1
    return &node.rest


cdef bint drop_child(Step step) noexcept nogil:
    """Free the child to which a step led, if it is empty; return whether it was."""
    cdef const char* star = <const char*>memchr(step.segment, c'*', step.length)
    cdef Child** link = child_of(step.parent, step.segment, step.length)
    cdef Child* child = link[0]
    if not (is_empty(child.ends.held.node) if is_branch(child) else child.ends.count == 0):
        return False
    if star is NULL:
        cut(&step.parent.exact, step.segment, step.length)
    else:
        link[0] = NULL
        prune(&step.parent.starred, step.segment, star - step.segment)
    if is_branch(child):
        del child.ends.held.node
    free(child)
    return True


cdef void descend(Node* node, const char* segment, size_t length, bint with_stars, vector[Child*]& reached) noexcept nogil:
    """Add the children that match one segment of a key: the one with the whole segment and, *with_stars*, those with a prefix of it."""
    cdef Child** link = <Child**>link_of(&node.exact, segment, length)
    if link is not NULL:
        reached.push_back(link[0])
    if node.starred is not NULL and with_stars:
        climb(node.starred, segment, length, reached)


cdef bint matches(Child* leaf, const char* rest, size_t length, char separator, uint32_t guarded, uint64_t* visited) noexcept nogil:
    """Return whether the tail of a leaf matches the *rest* of a key after the leaf's segment, which begins with a separator or is empty.

    No wildcard matches any of the next *guarded* segments. Each segment that is compared is counted in *visited*.
    """
    cdef const char* tail = tail_of(leaf)
    cdef const char* star
    cdef size_t left = leaf.tail_length, n, m
    while left > 0 and length > 0:
        if left == 1:
            return guarded == 0         # it ends with a separator, and matches whatever follows
        visited[0] += 1
        n = segment_length(tail + 1, left - 1, separator)
        m = segment_length(rest + 1, length - 1, separator)
        star = <const char*>memchr(tail + 1, c'*', n)
        if star is NULL:
            if n != m or memcmp(tail + 1, rest + 1, n) != 0:
                return False
        elif guarded or <size_t>(star - tail) - 1 > m or memcmp(tail + 1, rest + 1, star - tail - 1) != 0:
            return False
        tail += n + 1
        left -= n + 1
        rest += m + 1
        length -= m + 1
        guarded -= guarded > 0
    return left == 0 and length == 0
