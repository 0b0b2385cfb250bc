# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled parts of the client: the scanner, and :class:`Taker`.

The scanner finds messages in packets, and joins packets. ``plain_scanner`` is the same in Python, and documents each function. Compiled
because in Python this is nearly the whole cost of receiving: 1,000 to 2,000 ns for a message of a batch, against 50 ns here. It is also a
fifth of the cost of publishing.

``publication_encoder`` makes the packets that publish: a third of the cost of a gathered message in Python.

With ``Taker`` each step of ``async for`` over items that are ready costs as much as a function call; a coroutine would cost twice that.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t
from libc.string cimport memchr, memcmp, memcpy

from sbus import plain_scanner
from sbus.items import Message
from sbus.protocol.packets import BATCH_HEAD, MAX_PACKET_BYTES

# Declarations of Python's C API that Cython lacks.
cdef extern from "Python.h":
    # A new object of *type*, which has no constructor of its own, with every slot empty.
    object PyType_GenericAlloc(type type, Py_ssize_t items)
    # object.__setattr__: a frozen dataclass forbids every other way to set an attribute.
    int PyObject_GenericSetAttr(object target, object name, object value) except -1
    # Sets the error of this thread. With StopIteration, a value that is not an exception is the result of an awaited object.
    void PyErr_SetObject(PyObject* kind, PyObject* value)
    PyObject* PyExc_StopIteration
    # The only slot of a type that is set here: next() calls it. NULL without an error, or with StopIteration, is the end.
    ctypedef PyObject* (*iternextfunc)(PyObject*) noexcept
    ctypedef struct type_slots "PyTypeObject":
        iternextfunc tp_iternext

cdef enum:
    LENGTH_BYTES = 4  # of a packet in a batch
    CACHED_HEADS = 512      # keys whose packet head is cached, and as many of type str: most programs publish to few keys
    CACHED_KEY_BYTES = 1024
    VERB_BYTES = 4    # "MSG "
    LEAST_BYTES = 5   # of a message: the verb, and the NUL after an empty key

cdef type _message_type = Message
cdef str _key = "key_bytes"
cdef str _payload = "payload"
cdef str _sender = "sender"
cdef bytes _batch_head = BATCH_HEAD
cdef Py_ssize_t _most = MAX_PACKET_BYTES


def measure_run(bytes batch not None, Py_ssize_t place):
    cdef const char* data = PyBytes_AS_STRING(batch)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(batch)
    cdef Py_ssize_t length
    cdef Py_ssize_t count = 0
    if place < 0:
        raise ValueError("invalid place in a batch: must be 0 or more")
    while place <= size - LENGTH_BYTES - LEAST_BYTES:
        length = length_at(data + place)
        if length > size - place - LENGTH_BYTES or not is_message(data + place + LENGTH_BYTES, length):
            break
        place += LENGTH_BYTES + length
        count += 1
    return place, count


def take_apart(bytes batch not None, Py_ssize_t place, Py_ssize_t end):
    cdef const char* data = PyBytes_AS_STRING(batch)
    cdef Py_ssize_t length
    cdef list messages = []
    cdef bytes key = b""
    if not 0 <= place <= end <= PyBytes_GET_SIZE(batch):
        raise ValueError("invalid run: not in the batch")
    while place < end:
        length = length_at(data + place) if place <= end - LENGTH_BYTES - LEAST_BYTES else 0
        place += LENGTH_BYTES
        if length > end - place or not is_message(data + place, length):
            raise ValueError("invalid run: not all of it are messages")
        key = key_of(data + place, length, key)
        messages.append(make_message(data + place, length, key, None))
        place += length
    return messages


def message_of(bytes packet not None, sender=None):
    cdef const char* data = PyBytes_AS_STRING(packet)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(packet)
    if not is_message(data, size):
        return None
    return make_message(data, size, key_of(data, size, b""), sender)


def join_batch(list packets not None):
    cdef Py_ssize_t head = PyBytes_GET_SIZE(_batch_head)
    cdef Py_ssize_t total = head
    cdef Py_ssize_t length
    cdef object packet      # bytes or a subclass, which a variable of type bytes does not accept
    cdef bytes batch
    cdef char* place
    for packet in packets:
        if not isinstance(packet, bytes):
            raise TypeError(f"invalid packet: must be bytes, not {type(packet).__name__}")
        length = PyBytes_GET_SIZE(packet)
        total += LENGTH_BYTES + length
        # One place decides what is an error.
        if length == 0 or total > _most or begins_like_batch(PyBytes_AS_STRING(packet), length):
            return plain_scanner.join_batch(packets)
    if total == head:
        return plain_scanner.join_batch(packets)
    batch = PyBytes_FromStringAndSize(NULL, total)
    place = PyBytes_AS_STRING(batch)
    memcpy(place, PyBytes_AS_STRING(_batch_head), head)
    place += head
    for packet in packets:
        length = PyBytes_GET_SIZE(packet)
        put_length(place, <uint32_t>length)
        memcpy(place + LENGTH_BYTES, PyBytes_AS_STRING(packet), length)
        place += LENGTH_BYTES + length
    return batch


cdef inline bint begins_like_batch(const char* packet, Py_ssize_t size) noexcept:
    """Return whether a packet begins like a batch, without the NUL."""
    cdef Py_ssize_t head = PyBytes_GET_SIZE(_batch_head) - 1
    return size >= head and memcmp(packet, PyBytes_AS_STRING(_batch_head), head) == 0


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


cdef inline bint is_message(const char* packet, Py_ssize_t size) noexcept:
    """Return whether a packet is a MSG with a NUL after its key."""
    if size < LEAST_BYTES or memcmp(packet, b"MSG ", VERB_BYTES) != 0:
        return False
    return memchr(packet + VERB_BYTES, 0, size - VERB_BYTES) != NULL


cdef inline bytes key_of(const char* packet, Py_ssize_t size, bytes last):
    """Return the key of a message, or *last* itself if it is equal: most messages of a batch share one key, and one object for it."""
    cdef const char* start = packet + VERB_BYTES
    cdef Py_ssize_t length = <const char*>memchr(start, 0, size - VERB_BYTES) - start
    if length == PyBytes_GET_SIZE(last) and memcmp(PyBytes_AS_STRING(last), start, length) == 0:
        return last
    return PyBytes_FromStringAndSize(start, length)


cdef inline object make_message(const char* packet, Py_ssize_t size, bytes key, object sender):
    """Return the message of a packet, without the constructor, which takes three times as long as everything else here."""
    cdef Py_ssize_t head = VERB_BYTES + PyBytes_GET_SIZE(key) + 1
    cdef object message = PyType_GenericAlloc(_message_type, 0)
    PyObject_GenericSetAttr(message, _key, key)
    PyObject_GenericSetAttr(message, _payload, PyBytes_FromStringAndSize(packet + head, size - head))
    PyObject_GenericSetAttr(message, _sender, sender)
    return message


def publication_encoder(encode):
    """Return a function that does as *encode*, of a key and a payload, and keeps the head of the packets of each key.

    *encode* returns a packet that ends with the payload and depends on nothing else, or raises an error. Only its packets of payloads
    that are bytes, with keys that are bytes or str, are used for others.
    """
    cdef dict heads = {}
    cdef dict text_heads = {}   # in one with bytes, python -b would warn

    def publication(key, payload):
        cdef dict cache = text_heads if type(key) is str else heads
        cdef object head
        if type(payload) is bytes and (type(key) is str or type(key) is bytes):
            head = cache.get(key)
            if head is not None and PyBytes_GET_SIZE(head) + PyBytes_GET_SIZE(payload) <= _most:
                return joined(<bytes>head, <bytes>payload)
            packet = encode(key, payload)
            if head is None and len(key) <= CACHED_KEY_BYTES:
                if len(cache) >= CACHED_HEADS:
                    cache.clear()
                cache[key] = packet[:len(packet) - len(payload)]
            return packet
        return encode(key, payload)

    return publication


cdef inline bytes joined(bytes head, bytes payload):
    """Return the bytes of both."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(head)
    cdef bytes packet = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(payload))
    memcpy(PyBytes_AS_STRING(packet), PyBytes_AS_STRING(head), size)
    memcpy(PyBytes_AS_STRING(packet) + size, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
    return packet


@cython.final
@cython.freelist(8)
cdef class Taken:
    """An awaitable that has its result: awaiting it never suspends the task."""

    cdef object item

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(self.item)


cdef PyObject* deliver(PyObject* taken) noexcept:
    """Do as ``Taken.__next__``, but set StopIteration directly, which saves the traceback of a raised exception."""
    PyErr_SetObject(PyExc_StopIteration, <PyObject*>(<Taken>taken).item)
    return NULL


(<type_slots*>Taken).tp_iternext = deliver


@cython.final
cdef class Taker:
    """An iterator over the deque *ready*. If that is empty, or *refusals* is not, the coroutine function *wait* returns the next item."""

    cdef object ready
    cdef object shift
    cdef object refusals
    cdef object wait

    def __init__(self, ready, refusals, wait):
        self.ready = ready
        self.shift = ready.popleft
        self.refusals = refusals
        self.wait = wait

    def __aiter__(self):
        return self

    def __anext__(self):
        cdef Taken taken
        if self.ready and not self.refusals:
            taken = Taken.__new__(Taken)
            taken.item = self.shift()
            return taken
        return self.wait()
