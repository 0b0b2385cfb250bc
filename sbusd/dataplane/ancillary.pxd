# How the switch receives from peers that may send descriptors, and closes their sockets. See ancillary.pyx.

from posix.time cimport timespec

from sbusd.dataplane.libc cimport mmsghdr

cdef enum Passing:          # whether descriptors can be in a peer's unread packets
    REFUSED                 # no: the kernel refuses to send them, and did so from the start
    LEFT_OVER               # only in packets that were sent before it did
    POSSIBLE                # yes: this kernel cannot refuse them


cdef bint is_stream_socket(int fd) noexcept nogil
cdef bint is_refusing(int fd) noexcept nogil
cdef Passing refuse_passing(int fd, bint is_new) noexcept nogil
cdef int receive_checked(int fd, mmsghdr* inbound, unsigned int count, timespec* span, Passing* passing, bint* has_descriptors) noexcept nogil
cdef long waiting_descriptors(int fd) noexcept nogil
cdef ssize_t receive_checked_bytes(int fd, char* room, size_t size, Passing* passing, bint* has_descriptors) noexcept nogil
cdef bint hang_up(int fd, Passing passing, bint is_stream) noexcept nogil
