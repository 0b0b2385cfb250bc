# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""What stands in front of a message for those who want to know more than it says. Spec: sbus-protocol(7) §6, ``!/from/`` and ``!/tap``.

Credentials are the bus's own words, numbers and slashes, so they stand in JSON as they are.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libcpp.algorithm cimport sort
from libcpp.string cimport string

from sbusd.dataplane.outbox cimport MISSED, Tally


cdef void append_sender(string& text, uint64_t connection, const string& cred) noexcept nogil:
    """Append the head that names the sender of a message."""
    cdef char number[24]
    text.append(b"CMSG !/from/", 12)
    text.append(number, snprintf(number, sizeof(number), "%llu/", <unsigned long long>connection))
    text.append(cred)
    text.push_back(0)


cdef void append_line(string& text, int64_t time, uint64_t connection, const string& cred, Tally* tally) noexcept nogil:
    """Append the head that tells a tap of a message: when and by whom it was published, and what became of it."""
    cdef char part[128]
    text.append(b"CMSG !/tap", 10)
    text.push_back(0)
    text.append(part, snprintf(part, sizeof(part), "{\"kind\":\"message\",\"time\":%lld,\"id\":%llu,\"cred\":\"",
                               <long long>time, <unsigned long long>connection))
    text.append(cred)
    text.append(part, snprintf(part, sizeof(part), "\",\"recipients\":%u,\"queued\":%u,\"discarded\":%u",
                               tally.handed + tally.queued, tally.queued, tally.discarded))
    if tally.missed_count:
        append_missed(text, tally)
    text.append(b"}\n", 2)


cdef void append_missed(string& text, Tally* tally) noexcept nogil:
    """Append which connections a message matched and did not reach, if they are few enough to be named: none if not."""
    cdef uint32_t i, count = tally.missed_count if tally.missed_count <= <uint32_t>MISSED else 0
    cdef char number[24]
    sort(&tally.missed[0], &tally.missed[0] + count)
    text.append(b",\"missed\":[", 11)
    for i in range(count):
        text.append(number, snprintf(number, sizeof(number), ",%llu" if i else "%llu", <unsigned long long>tally.missed[i]))
    text.push_back(93)      # ]
