# cython: language_level=3, boundscheck=False, wraparound=False
"""Runs of messages in a batch: packets next to each other that have the same head, such as those of one program with one key.

The head of a message is ``MSG <key> NUL``, with ``CMSG !/from/<sender> NUL`` before it if there is a sender. A program that
passes messages on decides by the head alone, so once for each run; then it copies payloads behind another head. Compiled because a
message takes 20 ns here, and 2,000 ns in Python. Spec: sbus-protocol(7) §6.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t
from libc.string cimport memchr, memcmp, memcpy

cdef enum:
    LENGTH_BYTES = 4  # of a packet in a batch
    VERB_BYTES = 4    # "MSG "

cdef const char* _from = b"CMSG !/from/"
cdef Py_ssize_t _from_bytes = 12


def measure_run(bytes batch not None, Py_ssize_t place):
    """Return the end of the run at *place* in *batch*, and of its packets: their number, and the bytes of the head and of the longest.

    *place* is the offset of the length of a packet. A packet that is not a message is a run of its own, with a head of 0 bytes. A number
    of 0: the length of the packet extends past the end of the batch, or is 0.

    Raises:
        ValueError: *place* is not in the batch.
    """
    cdef const char* data = PyBytes_AS_STRING(batch)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(batch)
    cdef Py_ssize_t length, head, longest, count, first
    if not 0 <= place <= size:
        raise ValueError("invalid place: not in the batch")
    length = packet_at(data, place, size)
    if length == 0:
        return place, 0, 0, 0
    first = place + LENGTH_BYTES
    head = head_of(data + first, length)
    longest = length
    place = first + length
    count = 1
    while head:
        length = packet_at(data, place, size)
        if length < head or memcmp(data + place + LENGTH_BYTES, data + first, head) != 0:
            break
        longest = max(longest, length)
        place += LENGTH_BYTES + length
        count += 1
    return place, count, head, longest


def replace_heads(bytes batch not None, Py_ssize_t place, Py_ssize_t count, Py_ssize_t head, bytes new not None, Py_ssize_t most):
    """Return the first of *count* packets at *place*, with *new* instead of their heads, each with its length; their number; and their end.

    *head* is the size of each head in bytes. The packets are at most *most* bytes long together, so there may be none of them.

    Raises:
        ValueError: the packets are not in the batch, or shorter than the head.
    """
    cdef const char* data = PyBytes_AS_STRING(batch)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(batch)
    cdef const char* fresh = PyBytes_AS_STRING(new)
    cdef Py_ssize_t fresh_bytes = PyBytes_GET_SIZE(new)
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t number = 0
    cdef Py_ssize_t end = place
    cdef Py_ssize_t length, grown
    cdef bytes made
    cdef char* target
    if not 0 <= place <= size or head < 0:
        raise ValueError("invalid place: not in the batch")
    while number < count:
        length = packet_at(data, end, size)
        if length == 0 or length < head:
            raise ValueError("invalid run: not all of it is in the batch")
        grown = LENGTH_BYTES + fresh_bytes + length - head
        if total + grown > most:
            break
        total += grown
        end += LENGTH_BYTES + length
        number += 1
    made = PyBytes_FromStringAndSize(NULL, total)
    target = PyBytes_AS_STRING(made)
    while place < end:
        length = length_at(data + place) - head
        put_length(target, <uint32_t>(fresh_bytes + length))
        target += LENGTH_BYTES
        memcpy(target, fresh, fresh_bytes)
        target += fresh_bytes
        memcpy(target, data + place + LENGTH_BYTES + head, length)
        target += length
        place += LENGTH_BYTES + head + length
    return made, number, end


cdef inline Py_ssize_t packet_at(const char* data, Py_ssize_t place, Py_ssize_t size) noexcept:
    """Return the size of the packet whose length is at *place*; 0 if it is not all in *size* bytes."""
    cdef Py_ssize_t length
    if place > size - LENGTH_BYTES:
        return 0
    length = length_at(data + place)
    return length if length <= size - place - LENGTH_BYTES else 0


cdef inline Py_ssize_t head_of(const char* packet, Py_ssize_t size) noexcept:
    """Return the size of the head of a message, 0 if *packet* is not one."""
    cdef const char* end
    cdef Py_ssize_t before = 0
    if size > _from_bytes and memcmp(packet, _from, _from_bytes) == 0:
        end = <const char*>memchr(packet, 0, size)
        if end == NULL or end == packet + _from_bytes:
            return 0
        before = end - packet + 1
    if size - before <= VERB_BYTES or memcmp(packet + before, b"MSG ", VERB_BYTES) != 0:
        return 0
    end = <const char*>memchr(packet + before, 0, size - before)
    return 0 if end == NULL else end - packet + 1


cdef inline void put_length(char* place, uint32_t length) noexcept:
    """Write 32 bits, little endian, at *place*."""
    cdef unsigned char* octets = <unsigned char*>place
    octets[0] = length & 0xff
    octets[1] = (length >> 8) & 0xff
    octets[2] = (length >> 16) & 0xff
    octets[3] = (length >> 24) & 0xff


cdef inline uint32_t length_at(const char* place) noexcept:
    """Return the 32 bits, little endian, at *place*."""
    cdef const unsigned char* octets = <const unsigned char*>place
    return octets[0] | (<uint32_t>octets[1] << 8) | (<uint32_t>octets[2] << 16) | (<uint32_t>octets[3] << 24)
