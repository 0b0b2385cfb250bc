# How packets get from a publisher to its recipients. See delivery.pyx.

from sbusd.dataplane.connection cimport Connection
from sbusd.dataplane.plane cimport Plane

cdef enum:
    # The cost of a packet without its deliveries, measured, in nanoseconds.
    NODE_NS = 40                # to visit a node of the trie
    BYTES_PER_NS = 4            # received and sent: 16 us for 64 KiB, which take 13 to 15


cdef size_t route(Plane plane, Connection* sender, size_t i, size_t count) noexcept nogil
cdef void after_tap_send(Plane plane) noexcept nogil
