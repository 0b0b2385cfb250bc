"""The radix tree of the literals before stars, of one node of the `trie`."""

from libc.string cimport memcmp
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef Stem* new_stem(const char* text, size_t length) noexcept nogil:
    """Return a stem without a child."""
    cdef Stem* stem = new Stem()
    stem.text.assign(text, length)
    stem.child = NULL
    return stem


cdef size_t branch_of(Stem* stem, char byte) noexcept nogil:
    """Return the place of the branch that begins with *byte*, or where it belongs. A stem has at most 256 branches."""
    cdef size_t place = 0
    while place < stem.branches.size() and <unsigned char>stem.branches[place].text[0] < <unsigned char>byte:
        place += 1
    return place


cdef size_t common_length(string& text, const char* other, size_t length) noexcept nogil:
    """Return the length of the common prefix of two texts."""
    cdef size_t n = 0
    while n < length and n < text.size() and text[n] == other[n]:
        n += 1
    return n


cdef Child** grow(Stem** link, const char* literal, size_t length) noexcept nogil:
    """Return the place of the child of a literal in the stems at *link*; it is created if necessary."""
    cdef size_t place, shared
    cdef Stem* stem
    cdef Stem* fork
    while link[0] is not NULL:
        stem = link[0]
        shared = common_length(stem.text, literal, length)
        if shared < stem.text.size():
            fork = new_stem(literal, shared)
            fork.branches.push_back(stem)
            stem.text.erase(0, shared)
            link[0] = stem = fork
        literal += shared
        length -= shared
        if length == 0:
            return &stem.child
        place = branch_of(stem, literal[0])
        if place == stem.branches.size() or stem.branches[place].text[0] != literal[0]:
            stem.branches.insert(stem.branches.begin() + place, <Stem*>NULL)
        link = &stem.branches.data()[place]
    link[0] = new_stem(literal, length)
    return &link[0].child


cdef Child** on_stem(Stem* stem, const char* literal, size_t length) noexcept nogil:
    """Return the pointer to the child of exactly this literal, or NULL if there is none."""
    cdef size_t place
    while common_length(stem.text, literal, length) == stem.text.size():
        literal += stem.text.size()
        length -= stem.text.size()
        if length == 0:
            if stem.child is NULL:
                return NULL
            return &stem.child
        place = branch_of(stem, literal[0])
        if place == stem.branches.size():
            break
        stem = stem.branches[place]
    return NULL


cdef void prune(Stem** root, const char* literal, size_t length) noexcept nogil:
    """Remove the stem of a literal that has no child any more, and join stems that do not fork any more."""
    cdef vector[Stem**] links
    cdef Stem** link = root
    cdef Stem* above
    while True:
        links.push_back(link)
        literal += link[0].text.size()
        length -= link[0].text.size()
        if length == 0:
            break
        link = &link[0].branches.data()[branch_of(link[0], literal[0])]
    while not links.empty() and tidy_stem(links.back()):
        link = links.back()
        links.pop_back()
        if not links.empty():
            above = links.back()[0]
            above.branches.erase(above.branches.begin() + (link - above.branches.data()))


cdef bint tidy_stem(Stem** link) noexcept nogil:
    """Free an empty stem and return True, or join a stem with its only branch."""
    cdef Stem* stem = link[0]
    if stem.child is not NULL or stem.branches.size() > 1:
        return False
    link[0] = NULL
    if not stem.branches.empty():
        link[0] = stem.branches[0]
        link[0].text.insert(0, stem.text)
    del stem
    return link[0] is NULL


cdef void climb(Stem* stem, const char* segment, size_t length, vector[Child*]& reached) noexcept nogil:
    """Add the children of all literals that are prefixes of *segment*."""
    cdef size_t place
    while stem.text.size() <= length and memcmp(stem.text.data(), segment, stem.text.size()) == 0:
        if stem.child is not NULL:
            reached.push_back(stem.child)
        segment += stem.text.size()
        length -= stem.text.size()
        if length == 0:
            return
        place = branch_of(stem, segment[0])
        if place == stem.branches.size():
            return
        stem = stem.branches[place]
