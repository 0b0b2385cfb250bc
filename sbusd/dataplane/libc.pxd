# Declarations of the C library that Cython does not have.

from libc.stdint cimport uint32_t, uint64_t
from posix.time cimport timespec
from posix.types cimport pid_t, uid_t, gid_t

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    struct iovec:
        void* iov_base
        size_t iov_len
    struct msghdr:
        void* msg_name
        socklen_t msg_namelen
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
        int msg_flags
    struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    struct sockaddr:
        pass
    int recvmmsg(int fd, mmsghdr* messages, unsigned int count, int flags, timespec* timeout)
    int sendmmsg(int fd, mmsghdr* messages, unsigned int count, int flags)
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    ssize_t recvmsg(int fd, msghdr* message, int flags)
    ssize_t send(int fd, const void* data, size_t length, int flags)
    ssize_t recv(int fd, void* data, size_t length, int flags)
    int accept4(int fd, sockaddr* address, socklen_t* length, int flags)
    int setsockopt(int fd, int level, int option, const void* value, socklen_t length)
    int getsockopt(int fd, int level, int option, void* value, socklen_t* length)
    int shutdown(int fd, int how)
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_TRUNC, MSG_CTRUNC, MSG_PEEK
    int SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM
    int SOL_SOCKET, SO_SNDBUF, SO_PEEK_OFF, SO_TYPE, SHUT_RDWR

cdef extern from *:
    """
    #include <sys/socket.h>
    #ifndef SO_PEERGROUPS
    #define SO_PEERGROUPS 59
    #endif
    #ifndef SO_PEERPIDFD
    #define SO_PEERPIDFD 77
    #endif
    #ifndef SO_PASSRIGHTS
    #define SO_PASSRIGHTS 83
    #endif
    struct peer_credentials { pid_t pid; uid_t uid; gid_t gid; };
    """
    int SO_PEERCRED, SO_PEERGROUPS, SO_PEERPIDFD, SO_PASSRIGHTS
    struct peer_credentials:
        pid_t pid
        uid_t uid
        gid_t gid

cdef extern from "<time.h>" nogil:
    int clock_gettime(int clock, timespec* time)
    int CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME, CLOCK_THREAD_CPUTIME_ID

cdef extern from "<sys/resource.h>" nogil:
    struct rusage:
        long ru_nvcsw
    int getrusage(int who, rusage* usage)
    int RUSAGE_THREAD

cdef extern from * nogil:
    """
    #include <errno.h>
    static inline void set_errno(int code) { errno = code; }
    """
    void set_errno(int code)

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int operation, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int count, int timeout)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD
    uint32_t EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* descriptors, unsigned long count, int timeout)
    short POLLRDHUP

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    int madvise(void* address, size_t length, int advice)
    void* MAP_FAILED
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MADV_DONTNEED, MADV_NOHUGEPAGE

cdef extern from "<fcntl.h>" nogil:
    int open(const char* path, int flags)
    int O_RDONLY, O_CLOEXEC

cdef extern from "<endian.h>" nogil:
    uint32_t htole32(uint32_t word)
    uint32_t le32toh(uint32_t word)

cdef extern from "<malloc.h>" nogil:
    int mallopt(int parameter, int value)
    int M_MXFAST, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    ssize_t read(int fd, void* data, size_t length)

cdef extern from "<linux/sockios.h>" nogil:
    int SIOCOUTQ

cdef extern from "<sys/ioctl.h>" nogil:
    int FIONREAD
    int ioctl(int fd, unsigned long request, ...)
