# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""Which of the messages that wait for a client go next, by its order. Spec: sbus-protocol(7) §7."""

from libc.stdint cimport uint64_t
from libcpp.algorithm cimport partial_sort
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from sbusd.dataplane.outbox cimport BATCH_PACKETS, ORDER_RANDOM, ORDER_STACK, Outbox, Packet, bytes_in

cdef enum:
    RANDOM_PACKETS = 4096       # contract.RANDOM_PACKETS: a look at all of a long queue would take longer than a turn may

cdef vector[pair[uint64_t, size_t]] ranked  # for ORDER_RANDOM: what each packet would free, upside down, and its place


cdef size_t choose(Outbox* box, size_t* chosen) noexcept nogil:
    """Set *chosen* to the places of the messages that go next, at most BATCH_PACKETS, and return how many they are."""
    cdef size_t total = 0 if box.waiting is NULL else box.waiting.size()
    cdef size_t count = min(total, <size_t>BATCH_PACKETS)
    cdef size_t i
    cdef Packet* packet
    cdef pair[uint64_t, size_t] rank
    if box.order == ORDER_RANDOM:
        ranked.clear()
        for i in range(min(total, <size_t>RANDOM_PACKETS)):
            packet = box.waiting[0][i].packet
            # Freed at once is what no other queue still holds.
            rank.first = <uint64_t>0xFFFFFFFF - (bytes_in(packet) if packet.references == 1 else 0)
            rank.second = i
            ranked.push_back(rank)
        partial_sort(ranked.begin(), ranked.begin() + count, ranked.end())
        for i in range(count):
            chosen[i] = ranked[i].second
    else:
        for i in range(count):
            chosen[i] = total - 1 - i if box.order == ORDER_STACK else i
    return count
