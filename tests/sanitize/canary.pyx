# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Deliberate errors of memory and arithmetic: a build that does not find them checks nothing."""

from libc.limits cimport INT_MAX
from libc.stdlib cimport free, malloc


def read_past_the_end(int length):
    """Read the byte behind an allocation of *length* bytes."""
    cdef unsigned char* data = <unsigned char*>malloc(length)
    cdef int i
    for i in range(length):
        data[i] = 0
    try:
        return data[length]
    finally:
        free(data)


def read_what_is_freed(int length):
    """Read a byte of an allocation that was given back."""
    cdef unsigned char* data = <unsigned char*>malloc(length)
    data[0] = length
    free(data)
    return data[0]


def overflow(int addend):
    """Add to the largest int."""
    cdef int sum = INT_MAX
    sum += addend
    return sum
