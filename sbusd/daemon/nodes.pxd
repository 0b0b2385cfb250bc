# The shape of the trie, for the router. See nodes.pyx.

from libc.stdint cimport uint32_t
from libcpp.map cimport map as cpp_map
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef struct Subscriber:
    uint32_t slot           # whose pattern ends here
    uint32_t instances      # how many times it is stored


cdef union Held:
    Subscriber one                      # of one subscriber
    vector[Subscriber]* many            # of more, sorted by slot


cdef struct Subscribers:
    Held held
    uint32_t count                      # 0, 1, or MANY; nearly every pattern has one, which takes no memory of its own


cdef enum:
    MANY = 2


cdef cppclass Stem:
    string text                         # the bytes between the stem above and this one
    vector[Stem*] branches              # by the first byte of their text
    Node* node                          # what hangs on the literal that ends here, or NULL


cdef cppclass Node:
    cpp_map[string, Node*]* exact       # children by their whole segment; NULL while there are none
    Stem* starred                       # children for `<literal>*`, in a radix tree of the literals; NULL while there are none
    Subscribers here                    # patterns that end with this segment
    Subscribers rest                    # patterns that end with a separator behind this segment


cdef Node* new_node() noexcept nogil
cdef void free_node(Node* node) noexcept nogil
cdef bint is_empty(Node* node) noexcept nogil
cdef bint is_live(const char* pattern, size_t length, char separator) noexcept nogil
cdef size_t segment_length(const char* text, size_t length, char separator) noexcept nogil
cdef void insert_below(Node* node, uint32_t slot, const char* pattern, size_t length, char separator) noexcept nogil
cdef bint erase_below(Node* node, uint32_t slot, const char* pattern, size_t length, char separator) noexcept nogil
cdef void descend(Node* node, const char* segment, size_t length, bint with_stars, vector[Node*]& reached) noexcept nogil
