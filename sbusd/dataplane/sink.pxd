# The calls of the control plane about clients, as C functions. See sink.pxi.

from libc.stdint cimport int64_t, uint64_t


cdef class ClientSink:
    cdef int begin(self, Connection* connection) except -1
    cdef bint answer(self, Connection* connection, const char* packet, size_t length, int64_t now) noexcept nogil
    cdef int handle(self, Connection* connection, bytes packet) except -1
    cdef int end(self, Connection* connection, uint64_t lost) except -1
    cdef int release(self, uint64_t connection) except -1


cdef class PythonSink(ClientSink):
    cdef object sink


cdef object last_counters(Connection* connection)
cdef object end_of(Connection* connection)
