# What the trie does with its stems. See radix_tree.pyx; their shape is in trie.pxd.

from libcpp.vector cimport vector

from sbusd.dataplane.trie cimport Child, Stem


cdef Child** grow(Stem** link, const char* literal, size_t length) noexcept nogil
cdef Child** on_stem(Stem* stem, const char* literal, size_t length) noexcept nogil
cdef void prune(Stem** root, const char* literal, size_t length) noexcept nogil
cdef void climb(Stem* stem, const char* segment, size_t length, vector[Child*]& reached) noexcept nogil
