# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""Which of the messages that wait for a client go next, by its order. Spec: sbus-protocol(7) §7."""

from libc.stdint cimport uint64_t
from libcpp.algorithm cimport partial_sort
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from sbusd.daemon.outbox cimport BATCH_PACKETS, ORDER_RANDOM, ORDER_STACK, Outbox, Packet, bytes_in

cdef vector[pair[uint64_t, size_t]] ranked  # for ORDER_RANDOM: what each packet would free, upside down, and its place


cdef size_t choose(Outbox* box, size_t* chosen) noexcept nogil:
    """Set *chosen* to the places of the messages that go next, at most BATCH_PACKETS, and return how many they are."""
    cdef size_t total = box.waiting.size() - box.first
    cdef size_t count = min(total, <size_t>BATCH_PACKETS)
    cdef size_t i
    cdef Packet* packet
    cdef pair[uint64_t, size_t] rank
    if box.order == ORDER_RANDOM:
        ranked.clear()
        for i in range(box.first, box.waiting.size()):
            packet = box.waiting[i].packet
            # Freed at once is what no other queue still holds.
            rank.first = <uint64_t>0xFFFFFFFF - (bytes_in(packet) if packet.references == 1 else 0)
            rank.second = i
            ranked.push_back(rank)
        partial_sort(ranked.begin(), ranked.begin() + count, ranked.end())
        for i in range(count):
            chosen[i] = ranked[i].second
    else:
        for i in range(count):
            chosen[i] = box.waiting.size() - 1 - i if box.order == ORDER_STACK else box.first + i
    return count
