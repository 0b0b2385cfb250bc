/* The connection to sbus-blob(8): requests and their responses, with descriptors. It is made at the first request. */
#ifndef SBUS_BLOB_SOCKET_H
#define SBUS_BLOB_SOCKET_H

#include "blob_reply.h"
#include "connection.h"

#define SBUS_BLOB_FDS_ 253 /* that the kernel lets a service send in one packet */

/* Close the connection to sbus-blob. */
static inline void sbus_blob_close_(struct sbus *bus) {
    if (bus->blob_fd_ >= 0)
        close(bus->blob_fd_);
    bus->blob_fd_ = -1;
}

/* Note that the service is not there or does not work as it must. The next request makes a new connection. Returns -1. */
static inline int sbus_blob_lost_(struct sbus *bus, int error, const char *words) {
    sbus_blob_close_(bus);
    return sbus_fail_(bus, error, "sbus-blob: %s", words);
}

/* Put the address of the service into *name*. */
static inline int sbus_blob_address_(struct sbus *bus, struct sockaddr_un *name, socklen_t *size) {
    static const char suffix[] = ".socket";
    char path[sizeof name->sun_path + sizeof "-blob"];
    const char *given = getenv("SBUS_BLOB_ADDRESS");
    size_t length = strlen(bus->address_), end = sizeof suffix - 1;
    bool has_suffix = length >= end && strcmp(bus->address_ + length - end, suffix) == 0;
    if (!given || !*given) {
        if (strncmp(bus->address_, "/dev/fd/", 8) == 0 || strncmp(bus->address_, "/dev/unix/abstract", 18) == 0)
            return sbus_fail_(bus, EINVAL, "sbus-blob: the address of the bus is not a path; set $SBUS_BLOB_ADDRESS");
        length -= has_suffix ? end : 0;
        if (length >= sizeof name->sun_path)
            return sbus_fail_(bus, ENAMETOOLONG, "sbus-blob: %s", strerror(ENAMETOOLONG));
        snprintf(path, sizeof path, "%.*s-blob%s", (int)length, bus->address_, has_suffix ? suffix : "");
        given = path;
    }
    if (sbus_address_parse_(given, name, size) < 0)
        return sbus_fail_(bus, errno, "sbus-blob: its address is invalid: %s", strerror(errno));
    return 0;
}

/* Connect to the service unless that is done, until *deadline*, in nanoseconds; -1: without a limit. */
static inline int sbus_blob_connect_(struct sbus *bus, int64_t deadline) {
    struct sockaddr_un name;
    struct timespec pause = {0, 10000000};
    socklen_t size;
    if (bus->blob_fd_ >= 0)
        return 0;
    if (sbus_blob_address_(bus, &name, &size) < 0)
        return -1;
    bus->blob_fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bus->blob_fd_ < 0)
        return sbus_blob_lost_(bus, errno, strerror(errno));
    while (connect(bus->blob_fd_, (struct sockaddr *)&name, size) < 0) {
        if (errno != EAGAIN && errno != EINTR)
            return sbus_blob_lost_(bus, ENOTCONN, errno == ENOENT || errno == ECONNREFUSED ? "it does not run" : strerror(errno));
        if (deadline >= 0 && sbus_now_() >= deadline)
            return sbus_blob_lost_(bus, ETIMEDOUT, "it did not accept the connection in time");
        nanosleep(&pause, NULL); /* too many clients wait to be accepted */
    }
    return 0;
}

/* Send *request*, with the descriptor *fd* unless it is -1. */
static inline int sbus_blob_send_(struct sbus *bus, const char *request, int fd) {
    union {
        struct cmsghdr header; /* aligns the room */
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message;
    struct iovec piece;
    memset(&message, 0, sizeof message);
    memset(&control, 0, sizeof control);
    piece.iov_base = (void *)(uintptr_t)request;
    piece.iov_len = strlen(request);
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    return sendmsg(bus->blob_fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -1 : 0;
}

/* Receive a packet into *text*; *fd* gets its first descriptor, or -1. Others are closed. Returns its size, or -1 with errno. */
static inline ssize_t sbus_blob_receive_(struct sbus *bus, char *text, size_t room, int *fd) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(SBUS_BLOB_FDS_ * sizeof(int))];
    } control;
    struct msghdr message;
    struct cmsghdr *part;
    struct iovec piece;
    ssize_t size;
    memset(&message, 0, sizeof message);
    piece.iov_base = text;
    piece.iov_len = room;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.room;
    message.msg_controllen = sizeof control.room;
    *fd = -1;
    size = recvmsg(bus->blob_fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0)
        return -1;
    for (part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        size_t i, count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        for (i = 0; i < count; i++) {
            int each;
            memcpy(&each, CMSG_DATA(part) + i * sizeof each, sizeof each);
            if (*fd < 0)
                *fd = each;
            else
                close(each);
        }
    }
    if (!(message.msg_flags & MSG_TRUNC))
        return size;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    errno = EMSGSIZE;
    return -1;
}

/* Wait for the response until *deadline*. The caller closes *fd*, also after an error. */
static inline int sbus_blob_await_(struct sbus *bus, int64_t deadline, char *text, struct sbus_blob_reply_ *reply, int *fd) {
    ssize_t size;
    while ((size = sbus_blob_receive_(bus, text, SBUS_BLOB_PACKET_BYTES_, fd)) < 0) {
        struct pollfd ready;
        int64_t rest = deadline < 0 ? -1 : (deadline - sbus_now_() + 999999) / 1000000;
        if (errno != EAGAIN && errno != EINTR)
            return errno == EMSGSIZE ? sbus_blob_lost_(bus, EPROTO, "its response is too long")
                                     : sbus_blob_lost_(bus, ENOTCONN, strerror(errno));
        if (deadline >= 0 && rest <= 0)
            return sbus_blob_lost_(bus, ETIMEDOUT, "it did not respond in time"); /* its response must not be taken for the next one */
        ready.fd = bus->blob_fd_;
        ready.events = POLLIN;
        poll(&ready, 1, rest > 3600000 ? 3600000 : (int)rest);
    }
    if (size == 0)
        return sbus_blob_lost_(bus, ENOTCONN, "it closed the connection; it may have been restarted");
    if (!sbus_blob_read_(sbus_bytes_(text, (size_t)size), reply))
        return sbus_blob_lost_(bus, EPROTO, "its response is malformed");
    if (reply->error.size) {
        int error = sbus_equal(reply->error, "ENOENT") ? ENOENT : sbus_equal(reply->error, "EAGAIN") ? EAGAIN : sbus_errno_(reply->error);
        return sbus_fail_(bus, error ? error : EPROTO, "sbus-blob refused the request: %.*s %.*s", (int)reply->error.size,
                          reply->error.data, (int)(reply->reason.size < 200 ? reply->reason.size : 200), reply->reason.data);
    }
    return 0;
}

/* Send a request, and wait for its response, whose members are in *text*. The caller closes *answer*, also after an error. */
static inline int sbus_blob_exchange_(struct sbus *bus, const char *request, int fd, int timeout_ms, char *text,
                                      struct sbus_blob_reply_ *reply, int *answer) {
    int64_t deadline = timeout_ms < 0 ? -1 : sbus_now_() + (int64_t)timeout_ms * 1000000;
    bool is_new = bus->blob_fd_ < 0;
    *answer = -1;
    for (;;) {
        int failure;
        if (sbus_blob_connect_(bus, deadline) < 0)
            return -1;
        failure = sbus_blob_send_(bus, request, fd) < 0 ? errno : 0;
        if (failure == EPERM && fd >= 0 && sbus_blob_send_(bus, "{\"request\":\"stats\"}", -1) == 0) {
            /* The kernel can refuse descriptors until the service has accepted the connection: a response shows that it has. */
            if (sbus_blob_await_(bus, deadline, text, reply, answer) < 0)
                return -1;
            if (*answer >= 0)
                close(*answer);
            *answer = -1;
            failure = sbus_blob_send_(bus, request, fd) < 0 ? errno : 0;
        }
        if (!failure)
            return sbus_blob_await_(bus, deadline, text, reply, answer);
        if (is_new)
            return sbus_blob_lost_(bus, ENOTCONN, strerror(failure));
        sbus_blob_close_(bus); /* by a service that has been restarted */
        is_new = true;
    }
}

#endif
