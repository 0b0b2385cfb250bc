# Quotas that several users share. See shared_limits.pyx.

from libc.stdint cimport int64_t, uint32_t, uint64_t
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


cdef bint may_share(Pool* pool, uint32_t owner, uint32_t payer, size_t length) noexcept nogil
cdef bint is_pressed(Pool* pool, uint32_t owner, uint32_t payer, uint64_t packets, size_t length) noexcept nogil
cdef bint has_space(Pool* pool, size_t length) noexcept nogil
cdef void charge(Pool* pool, uint32_t owner, uint32_t payer, size_t length) noexcept nogil
cdef void discharge(Pool* pool, uint32_t owner, uint32_t payer, size_t length) noexcept nogil
cdef void charge_known(Pool* pool, uint32_t owner, uint32_t payer, int64_t count, size_t size) noexcept nogil
cdef void vacate(Pool* pool, Pool* queue) noexcept nogil
