# Messages of the current batch for which their publisher vouches. See vouching.pxi.

from libcpp.string cimport string
from libcpp.vector cimport vector

from sbusd.dataplane.libc cimport iovec


cdef cppclass Vouching:
    bint is_used                        # the batch has, or had, such a message
    vector[string] origins              # by packet: `<words>/<cred>`; empty: the publisher does not vouch for it
    iovec outer[BATCH_PACKETS]          # the packets as they were received
    vector[string] texts                # of the heads
    bint has_heads                      # they are written
    Head heads[BATCH_PACKETS]           # by packet, of all packets of the batch
