# cython: language_level=3
"""``async for`` over items that are ready: each step costs as much as a function call; a coroutine would cost twice that."""

cimport cython
from cpython.object cimport PyObject

from sbusd.client._speedups.python cimport PyErr_SetObject, PyExc_StopIteration, type_slots


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
