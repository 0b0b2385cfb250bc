# Quotas that several users share. See shared_limits.pxi.

from libc.stdint cimport uint32_t, uint64_t
from libcpp.vector cimport vector

cdef enum:
    NO_USER = 0xFFFFFFFF     # the uid of a connection whose user is not known yet; the kernel gives it to no user


cdef struct Share:
    uint32_t uid
    uint64_t packets
    uint64_t bytes
    uint64_t keys           # of its packets, with ORDER_LATEST; counted only in queues


cdef cppclass Pool:         # room that several users share
    uint64_t packets
    uint64_t bytes
    uint64_t packets_limit
    uint64_t bytes_limit
    vector[Share] shares    # of other users than the owner
