# The trie of patterns. See trie.pxi.

from libc.stdint cimport uint32_t
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef struct Subscriber:
    uint32_t slot           # whose pattern ends here
    uint32_t instances      # how many times it is stored


cdef union Held:
    Subscriber one                      # of one subscriber
    vector[Subscriber]* many            # of several, sorted by slot
    Node* node                          # of a branch


cdef struct Subscribers:
    Held held
    uint32_t count                      # 0, 1, MANY, or BRANCH; nearly every pattern has one, which needs no list


cdef enum:
    MANY = 2
    BRANCH = 3


cdef struct Child:
    Item item                           # its text is the segment that leads here; a child on a stem has none
    Subscribers ends                    # of a leaf: of its pattern; of a branch: its node
    uint32_t tail_length                # of a leaf: the rest of the pattern after the segment, with the separator before it
    char text[4]                        # the segment, and then the tail


cdef cppclass Stem:
    string text                         # the bytes between the stem above and this one
    vector[Stem*] branches              # by the first byte of their text
    Child* child                        # the child of the literal that ends here, or NULL


cdef cppclass Node:
    Item* exact                         # children by their whole segment; NULL while there are none
    Stem* starred                       # children for `<literal>*`, in a radix tree of the literals; NULL while there are none
    Subscribers here                    # patterns that end with this segment
    Subscribers rest                    # patterns that end with a separator after this segment
