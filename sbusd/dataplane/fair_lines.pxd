# The order of messages in a queue in which users take turns. See fair_lines.pyx.

from libc.stdint cimport uint32_t, uint64_t

from sbusd.dataplane.outbox cimport ORDER_FAIR, Entry, Outbox


cdef inline bint is_fair(Outbox* box) noexcept nogil:
    """Return whether messages that come now wait in the line of their user."""
    return box.order == ORDER_FAIR and (box.lines is NULL or not box.lines.is_closed)


cdef inline bint has_gaps(Outbox* box) noexcept nogil:
    """Return whether messages were lost whose user is known, and that are in no notice yet."""
    return box.lines is not NULL and not box.lines.gaps.empty()


cdef void add_to_line(Outbox* box, Entry entry, uint32_t uid) noexcept nogil
cdef void attribute_loss(Outbox* box, uint32_t uid) noexcept nogil
cdef void restore_line(Outbox* box, uint32_t uid, uint64_t unreported, uint64_t noticed) noexcept nogil
cdef bint add_notice(Outbox* box) noexcept nogil
cdef void take_turns(Outbox* box) noexcept nogil
cdef void close_lines(Outbox* box) noexcept nogil
cdef void abandon_lines(Outbox* box) noexcept nogil
