# What several connections of a user have done together; the fields of counters.UserTraffic, in their order.

from libc.stdint cimport uint64_t


cdef struct TrafficSums:
    uint64_t received_packets
    uint64_t received_bytes
    uint64_t delivered_packets
    uint64_t delivered_bytes
    uint64_t lost_packets
    uint64_t refused_packets
    uint64_t replaced_packets
    uint64_t blocked_ms
    uint64_t blocked_others_ms
