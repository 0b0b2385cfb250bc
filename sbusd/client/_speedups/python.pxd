# What the client's compiled modules take from Python itself and Cython does not declare, in one place.

from cpython.object cimport PyObject

cdef extern from "Python.h":
    # A new object of *type*, which has no constructor of its own, with every slot empty.
    object PyType_GenericAlloc(type type, Py_ssize_t items)
    # What object.__setattr__ does: a frozen dataclass forbids all else.
    int PyObject_GenericSetAttr(object target, object name, object value) except -1
    # Sets the error of this thread. With StopIteration any other value than an exception is the result of what was awaited.
    void PyErr_SetObject(PyObject* kind, PyObject* value)
    PyObject* PyExc_StopIteration
    # Of a type's slots the one that is set here: what next() calls. NULL without an error, or with StopIteration, is the end.
    ctypedef PyObject* (*iternextfunc)(PyObject*) noexcept
    ctypedef struct type_slots "PyTypeObject":
        iternextfunc tp_iternext
