# The switch, for a compiled control plane. See switch.pyx.

from sbusd.dataplane.plane cimport Plane


cdef class Switch:
    cdef Plane plane
