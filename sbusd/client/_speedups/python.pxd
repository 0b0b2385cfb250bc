# Declarations of Python's C API that the client's compiled modules need and Cython lacks.

from cpython.object cimport PyObject

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
