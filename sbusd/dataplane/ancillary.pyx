# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""Descriptors that peers send (SCM_RIGHTS): refused by the kernel, or never received. Source: unix(7), socket(7), proc_pid_fdinfo(5).

A thread that receives a packet without room for its descriptors, or that closes a socket with such packets unread, drops these
descriptors. That may be the last close of a file that another user has prepared: of a TCP socket with SO_LINGER it blocks for as long as
that user likes. To receive and close them one by one is worse: close(2) then also flushes, which a FUSE file may never finish, and a
process with such a descriptor cannot even exit.

So Linux 6.16 and later can refuse the send (SO_PASSRIGHTS). On an earlier kernel each packet is first read with MSG_PEEK, which
only duplicates references, and sets MSG_CTRUNC if there are any. Then only packets without descriptors are removed from the queue. A
socket whose queue has descriptors is closed by a thread that may block, `sbusd.dataplane.socket_closer`.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EINTR, errno
from libc.stdio cimport snprintf
from libc.stdlib cimport strtoul
from libc.string cimport strstr

from sbusd.dataplane.libc cimport (
    MSG_CTRUNC, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, O_CLOEXEC, O_RDONLY, SHUT_RDWR, SO_PASSRIGHTS, SO_PEEK_OFF, SO_TYPE,
    SOCK_STREAM, SOL_SOCKET, close, getsockopt, iovec, msghdr, open, read, recv, recvmmsg, recvmsg, set_errno, setsockopt, shutdown, socklen_t,
)

cdef enum:
    MOST_PACKETS = 64           # read with MSG_PEEK in one call; as many as a batch has
    DRAIN_PACKETS = 4096        # unread packets that are dropped before a socket is closed; more than a socket buffer holds
    DRAIN_BYTES = 65536         # read from a stream at once meanwhile
    FDINFO_BYTES = 512
    TRIES = 4                   # of a receive that a signal or a pending error interrupts

cdef char drained[DRAIN_BYTES]          # unread bytes of a stream
cdef mmsghdr emptied[MOST_PACKETS]      # without room: they remove packets that were read with MSG_PEEK


cdef bint is_refusing(int fd) noexcept nogil:
    """Return whether the kernel refuses descriptors that the peer of *fd* sends now."""
    cdef int passes = 1
    cdef socklen_t length = sizeof(passes)
    return getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &passes, &length) == 0 and passes == 0


cdef bint is_stream_socket(int fd) noexcept nogil:
    """Return whether a socket is of type SOCK_STREAM."""
    cdef int kind = 0
    cdef socklen_t length = sizeof(kind)
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &length) == 0 and kind == SOCK_STREAM


cdef Passing refuse_passing(int fd, bint is_new) noexcept nogil:
    """Let the kernel refuse descriptors that the peer of *fd* sends from now on; return whether some can still be there.

    *is_new*: the socket was just accepted, so it has had the option of its listener from the start.
    """
    cdef int passes = 1, off = 0
    cdef socklen_t length = sizeof(passes)
    if getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &passes, &length) < 0:
        return POSSIBLE
    if passes and setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off)) < 0:
        return POSSIBLE
    if (is_new and not passes) or waiting_descriptors(fd) == 0:
        return REFUSED
    return LEFT_OVER


cdef long waiting_descriptors(int fd) noexcept nogil:
    """Return the number of descriptors in unread packets of *fd*; -1 if the kernel does not report it (before Linux 5.7)."""
    cdef char text[FDINFO_BYTES]
    cdef char* found
    cdef ssize_t length
    cdef int info
    snprintf(text, sizeof(text), "/proc/self/fdinfo/%d", fd)
    info = open(text, O_RDONLY | O_CLOEXEC)
    if info < 0:
        return -1
    length = read(info, text, sizeof(text) - 1)
    close(info)
    if length <= 0:
        return -1
    text[length] = 0
    found = strstr(text, "scm_fds:")
    if found is NULL:
        return -1
    return <long>strtoul(found + 8, NULL, 10)


cdef int receive_checked(int fd, mmsghdr* inbound, unsigned int count, timespec* span, Passing* passing, bint* has_descriptors) noexcept nogil:
    """Receive like recvmmsg(2), at most *count* packets, but none with descriptors; *has_descriptors*: the packet after them has some.

    When the queue is empty, a *passing* that is LEFT_OVER becomes REFUSED. Returns -1 with errno set as recvmmsg(2) does, and -2 if
    the packets could not be removed.
    """
    cdef int seen, clean, i, beginning = 0
    has_descriptors[0] = False
    count = min(count, <unsigned int>MOST_PACKETS)
    # Each MSG_PEEK moves the offset for the next one, and only removed packets move it back.
    setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &beginning, sizeof(beginning))
    seen = recvmmsg(fd, inbound, count, MSG_DONTWAIT | MSG_PEEK, span)
    if seen < 0:
        if errno == EAGAIN and passing[0] == LEFT_OVER:
            passing[0] = REFUSED
        return -1
    clean = seen
    for i in range(seen):
        if inbound[i].msg_hdr.msg_flags & MSG_CTRUNC:
            # Nothing from here on is removed.
            has_descriptors[0] = True
            clean = min(clean, i)
            break
        if inbound[i].msg_hdr.msg_flags & MSG_TRUNC:
            # What follows is the rest of the same packet.
            clean = min(clean, i + 1)
    return clean if take_out(fd, inbound, clean) else -2


cdef bint take_out(int fd, mmsghdr* inbound, int count) noexcept nogil:
    """Remove *count* packets that were read with MSG_PEEK from the queue of *fd*; return False if they are not the same."""
    cdef int done = 0, taken, i, tries = 0
    while done < count:
        taken = recvmmsg(fd, emptied, count - done, MSG_DONTWAIT | MSG_TRUNC, NULL)
        if taken < 0:
            tries += 1
            if tries < TRIES and (errno == EINTR or errno == ECONNRESET):
                continue
            return False
        for i in range(taken):
            if emptied[i].msg_len != inbound[done + i].msg_len and not inbound[done + i].msg_hdr.msg_flags & MSG_TRUNC:
                # MSG_PEEK can pass over a packet of no bytes. None of these had descriptors, but the data belongs to another packet.
                return False
        done += taken
    return True


cdef ssize_t receive_checked_bytes(int fd, char* room, size_t size, Passing* passing, bint* has_descriptors) noexcept nogil:
    """Receive from a stream like recv(2), but nothing that was sent with descriptors; *has_descriptors*: what follows was."""
    cdef ssize_t clean = peek_bytes(fd, room, size, has_descriptors), low = 0, middle
    cdef bint is_reached
    if clean < 0 and errno == EAGAIN and passing[0] == LEFT_OVER:
        passing[0] = REFUSED
    if clean <= 0:
        return clean
    if has_descriptors[0]:
        # A read sees them if it reaches the first byte that was sent with them. None of the reads removes anything.
        while clean - low > 1:
            middle = low + (clean - low) // 2
            if peek_bytes(fd, room, middle, &is_reached) == middle and not is_reached:
                low = middle
            else:
                clean = middle
        clean = low
        if clean == 0:
            set_errno(EAGAIN)
            return -1
    # Only the peer's end can change the queue, and only behind this.
    return recv(fd, room, clean, MSG_DONTWAIT)


cdef ssize_t peek_bytes(int fd, char* room, size_t size, bint* has_descriptors) noexcept nogil:
    """Read the next bytes of a stream without removing them; *has_descriptors*: some of them were sent with descriptors."""
    cdef iovec part
    cdef msghdr message
    cdef ssize_t count
    part.iov_base = room
    part.iov_len = size
    message.msg_name = message.msg_control = NULL
    message.msg_namelen = message.msg_controllen = 0
    message.msg_iov = &part
    message.msg_iovlen = 1
    message.msg_flags = 0
    count = recvmsg(fd, &message, MSG_DONTWAIT | MSG_PEEK)
    has_descriptors[0] = count > 0 and message.msg_flags & MSG_CTRUNC
    return count


cdef bint hang_up(int fd, Passing passing, bint is_stream) noexcept nogil:
    """Close a connected socket so that the peer can still read what it was sent; return False if a thread that may block must do it."""
    cdef int i
    # shutdown(2) reaches the peer even while another process holds a duplicate. If packets of the peer were unread, close(2) would
    # make its next recv(2) fail with ECONNRESET, and hide the last words. So they are dropped first.
    shutdown(fd, SHUT_RDWR)
    # The peer cannot send any more, so the result stays true.
    if passing != REFUSED and waiting_descriptors(fd) != 0:
        return False
    for i in range(DRAIN_PACKETS):
        if is_stream:
            if recv(fd, drained, DRAIN_BYTES, MSG_DONTWAIT) <= 0:
                break
        elif recv(fd, NULL, 0, MSG_DONTWAIT | MSG_TRUNC) <= 0:
            break
    close(fd)
    return True


def refuse(int fd, *, bint is_new=False):
    """Let the kernel refuse descriptors sent to the Unix socket *fd*, and if it listens, those sent to its future connections.

    *is_new*: it was just accepted. Returns True if none can be in its unread packets.
    """
    return refuse_passing(fd, is_new) == REFUSED


def has_waiting(int fd):
    """Return whether descriptors may be in unread packets of the Unix socket *fd*."""
    return waiting_descriptors(fd) != 0
