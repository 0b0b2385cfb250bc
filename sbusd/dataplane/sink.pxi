"""The calls of the control plane about clients, as C functions: each short-lived client needs all of them.

A control plane may have a `ClientSink` for them, which is compiled. Any other is called through `PythonSink`.
"""

from sbusd.dataplane.contract import End
from sbusd.dataplane.counters import ConnectionCounters

cdef tuple _ENDS = tuple(End)               # by their numbers
cdef object _new_tuple = tuple.__new__      # without the Python function around it


cdef class ClientSink:
    """The part of `sbusd.dataplane.contract.Sink` about clients."""

    cdef int begin(self, Connection* connection) except -1:
        """Handle a new connection: ``connected``."""
        raise NotImplementedError

    cdef bint answer(self, Connection* connection, const char* packet, size_t length, int64_t now) noexcept nogil:
        """Handle a packet without the interpreter and return True, or do nothing and return False: then `handle` gets it.
        *now* is in nanoseconds of the monotonic clock."""
        return False

    cdef int handle(self, Connection* connection, bytes packet) except -1:
        """Handle a packet that is not a well-formed MSG: ``control``."""
        raise NotImplementedError

    cdef int end(self, Connection* connection, uint64_t lost) except -1:
        """Record *lost* packets, if any, and forget a connection: ``lost``, ``ended``."""
        raise NotImplementedError

    cdef int release(self, uint64_t connection) except -1:
        """Release what a connection that has ended was charged with: ``closed``."""
        raise NotImplementedError


cdef class PythonSink(ClientSink):
    """A sink in Python, `sbusd.dataplane.contract.Sink`."""

    def __init__(self, sink):
        self.sink = sink

    cdef int begin(self, Connection* connection) except -1:
        """Call ``connected``."""
        self.sink.connected(connection.id, connection.out.fd)
        return 0

    cdef int handle(self, Connection* connection, bytes packet) except -1:
        """Call ``control``."""
        self.sink.control(connection.id, packet)
        return 0

    cdef int end(self, Connection* connection, uint64_t lost) except -1:
        """Call ``lost`` and ``ended``."""
        if lost:
            self.sink.lost(connection.id, lost)
        self.sink.ended(connection.id, end_of(connection), last_counters(connection))
        return 0

    cdef int release(self, uint64_t connection) except -1:
        """Call ``closed``."""
        self.sink.closed(connection)
        return 0


cdef object counters_of(Connection* connection, uint64_t queued_packets, uint64_t queued_bytes):
    """Return a connection's counters; the caller passes those of its queue."""
    # By position: by name it takes four times as long, and each client that ends has counters.
    return _new_tuple(ConnectionCounters, (
        connection.reading.packets, connection.reading.bytes, connection.out.delivered_packets, connection.out.delivered_bytes,
        queued_packets, queued_bytes, connection.out.lost_packets, connection.reading.refused, connection.out.replaced_packets,
    ))


cdef object last_counters(Connection* connection):
    """Return the counters of a connection that has ended."""
    return counters_of(connection, connection.out.left_packets, connection.out.left_bytes)


cdef object end_of(Connection* connection):
    """Return why a connection ended."""
    return _ENDS[connection.end]
