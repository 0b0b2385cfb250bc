# What stands in front of a message for those who asked for more than it; used by the switch without the interpreter. See heads.pyx.

from libc.stdint cimport int64_t, uint64_t
from libcpp.string cimport string

from sbusd.dataplane.outbox cimport Tally


cdef void append_sender(string& text, uint64_t connection, const string& cred) noexcept nogil
cdef void append_line(string& text, int64_t time, uint64_t connection, const string& cred, Tally* tally) noexcept nogil
