# cython: language_level=3
"""Reads the control groups of the processes that connected: `PIDFD_GET_INFO`, ioctl_pidfd(2); `/proc/PID/cgroup`, cgroups(7).

The kernel returns the number of a control group at once, since Linux 6.13. Its path is only in /proc, where other processes can delay a
reader: they hold locks of the kernel that it needs. So a thread reads paths, without the interpreter's lock, and answers on a socket.
"""

from libc.errno cimport EINTR, EINVAL, ENOTTY, ESRCH, errno
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memset
from posix.time cimport timespec

from sbusd.dataplane.libc cimport (
    MSG_NOSIGNAL, O_CLOEXEC, O_RDONLY, SO_PEERPIDFD, SOL_SOCKET, close, getsockopt, ioctl, open, poll, pollfd, read, recv, send, set_errno,
    socklen_t,
)

import os
import struct

cdef enum:
    TEXT_SIZE = 16384           # a longer /proc/PID/cgroup is not read: one line of a path has at most 4096 bytes
    TRIES = 3                   # a process can be moved while it is read
    ANSWER_HEAD = 20

REQUEST = struct.Struct("=Qii")
"""A request to the thread: the connection, a pidfd, which the thread closes, and the pid of that process."""

ANSWER = struct.Struct("=QQi")
"""The beginning of an answer: the connection, the number of the control group or 0, and an errno. With errno 0 the text follows."""

ANSWER_BYTES = ANSWER.size + TEXT_SIZE
"""Maximum size of an answer."""

cdef extern from *:
    """
    #include <stdint.h>
    #include <poll.h>
    #include <sys/timerfd.h>
    /* From linux/pidfd.h, which older systems do not have in this form. */
    struct sbus_pidfd_info { uint64_t mask, cgroupid; uint32_t ids[11]; int32_t exit_code; };
    #define SBUS_PIDFD_GET_INFO 0xC040FF0Bul
    #define SBUS_PIDFD_CGROUP 4u
    #define SBUS_PIDFD_EXIT 8u
    """
    struct sbus_pidfd_info:
        uint64_t mask
        uint64_t cgroupid
    unsigned long SBUS_PIDFD_GET_INFO
    uint64_t SBUS_PIDFD_CGROUP, SBUS_PIDFD_EXIT
    short POLLIN

cdef extern from "<sys/timerfd.h>" nogil:
    struct itimerspec:
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, itimerspec* value, itimerspec* old)
    int TFD_CLOEXEC, TFD_NONBLOCK, CLOCK_MONOTONIC

cdef struct Request:
    uint64_t connection
    int32_t pidfd
    int32_t pid

cdef struct Answer:
    uint64_t connection
    uint64_t cgroup
    int32_t failure
    char text[TEXT_SIZE]


def cgroup_of(int fd):
    """Return the number of the control group of the process that connected *fd*, 0 if only its path can be read, -1 if neither can.

    If the process has ended, this is its last one. Numbers are never used again, and the path of a control group does not change.
    """
    cdef int pidfd = -1
    cdef socklen_t length = sizeof(pidfd)
    cdef uint64_t number
    cdef int failure
    if getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) < 0:
        return -1
    number = cgroup_number(pidfd)
    failure = errno
    close(pidfd)
    if number:
        return number
    return 0 if failure == ENOTTY or failure == EINVAL else -1


cdef uint64_t cgroup_number(int pidfd) noexcept nogil:
    """Return the number of the control group of a process, or 0 and set errno."""
    cdef sbus_pidfd_info info
    memset(&info, 0, sizeof(info))
    info.mask = SBUS_PIDFD_CGROUP | SBUS_PIDFD_EXIT
    if ioctl(pidfd, SBUS_PIDFD_GET_INFO, &info) < 0:
        return 0
    if not info.mask & SBUS_PIDFD_CGROUP:
        set_errno(ESRCH)
        return 0
    return info.cgroupid


def answer_requests(int fd):
    """Answer requests on the SEQPACKET socket *fd*, and close it once its other end is closed. Does not hold the interpreter's lock."""
    with nogil:
        serve(fd)
        close(fd)


cdef void serve(int fd) noexcept nogil:
    """Answer one request after another."""
    cdef Request request
    cdef Answer answer
    cdef ssize_t length
    while True:
        length = recv(fd, &request, sizeof(request), 0)
        if length < 0 and errno == EINTR:
            continue
        if length != sizeof(request):
            return
        answer.connection = request.connection
        length = read_group(request.pidfd, request.pid, &answer)
        close(request.pidfd)
        while send(fd, &answer, ANSWER_HEAD + length, MSG_NOSIGNAL) < 0:
            if errno != EINTR:
                return


cdef ssize_t read_group(int pidfd, int32_t pid, Answer* answer) noexcept nogil:
    """Read the control group of a process into *answer*, and return the length of the text; 0 if that fails."""
    cdef uint64_t after
    cdef ssize_t length
    cdef pollfd watched
    cdef int i
    for i in range(TRIES):
        answer.failure = 0
        answer.cgroup = cgroup_number(pidfd)
        length = read_text(pid, answer)
        # The text is that of this process only if it has not ended: the kernel can give its pid to another one.
        watched.fd, watched.events, watched.revents = pidfd, POLLIN, 0
        if poll(&watched, 1, 0) != 0:
            answer.failure = ESRCH
        if answer.failure:
            return 0
        after = cgroup_number(pidfd)
        if answer.cgroup == after:
            return length
    answer.failure = EINTR
    return 0


cdef ssize_t read_text(int32_t pid, Answer* answer) noexcept nogil:
    """Read ``/proc/PID/cgroup`` and return its length, or set the failure."""
    cdef char path[32]
    cdef ssize_t length = 0, count
    cdef int fd
    snprintf(path, sizeof(path), b"/proc/%d/cgroup", pid)
    fd = open(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        answer.failure = errno
        return 0
    while length < TEXT_SIZE:
        count = read(fd, answer.text + length, TEXT_SIZE - length)
        if count < 0 and errno == EINTR:
            continue
        if count <= 0:
            break
        length += count
    if count < 0:
        answer.failure = errno
    elif length == TEXT_SIZE:
        answer.failure = EINVAL
    close(fd)
    return length


def new_timer():
    """Return a timer of the monotonic clock, timerfd_create(2), which the caller closes. Raises OSError."""
    cdef int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
    if fd < 0:
        raise OSError(errno, os.strerror(errno))
    return fd


def set_timer(int fd, double seconds):
    """Let the timer *fd* be readable after *seconds*, more than 0; 0 stops it."""
    cdef itimerspec value
    memset(&value, 0, sizeof(value))
    value.it_value.tv_sec = <int64_t>seconds
    value.it_value.tv_nsec = <long>((seconds - <int64_t>seconds) * 1e9)
    timerfd_settime(fd, 0, &value, NULL)
