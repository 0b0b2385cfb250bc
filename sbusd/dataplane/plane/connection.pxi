"""A connection: whose it is, and what it has done."""

from libc.stdint cimport int64_t, uint32_t


cdef inline uint32_t uid_of(Connection* connection) noexcept nogil:
    """Return the uid of a connection's user."""
    return NO_USER if connection.out.account is NULL else connection.out.uid


cdef inline UserTime* user_time_of(Connection* connection) noexcept nogil:
    """Return what the user that is charged for a connection has taken, or NULL if the user is unknown."""
    if connection.out.account is NULL:
        return NULL
    return &connection.out.account.time


cdef inline int64_t blocked_ms(Connection* connection, int64_t now) noexcept nogil:
    """Return for how many milliseconds a connection has waited for recipients."""
    return (connection.publishing.blocked_ns + (now if connection.publishing.recipients else 0)) // MILLISECOND_NS


cdef inline int64_t blocked_others_ms(Connection* connection, int64_t now) noexcept nogil:
    """Return for how many milliseconds publishers have waited for a connection, in total."""
    return (connection.blocking.blocked_ns + <int64_t>connection.blocking.publishers.size() * now) // MILLISECOND_NS


cdef void add_traffic(TrafficSums* sums, Connection* connection, int64_t now) noexcept nogil:
    """Add what a connection has done until *now*, or until it ended."""
    sums.received_packets += connection.reading.packets
    sums.received_bytes += connection.reading.bytes
    sums.delivered_packets += connection.out.delivered_packets
    sums.delivered_bytes += connection.out.delivered_bytes
    sums.lost_packets += connection.out.lost_packets
    sums.refused_packets += connection.reading.refused
    sums.replaced_packets += connection.out.replaced_packets
    sums.blocked_ms += blocked_ms(connection, now)
    sums.blocked_others_ms += blocked_others_ms(connection, now)
