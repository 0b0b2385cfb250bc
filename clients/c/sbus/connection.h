/* A connection to a bus: its state, its socket and its errors. See sbus.h(3). */
#ifndef SBUS_CONNECTION_H
#define SBUS_CONNECTION_H

#include "address.h"
#include "batch.h"

#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Options of sbus_connect(). */
enum {
    SBUS_RECONNECT = 1, /* sbus_next() connects again after the bus has closed the connection */
    SBUS_BATCHES = 2,   /* the bus may send several packets in one; sbus_next() returns them one by one */
    SBUS_SENDERS = 4,   /* each message has its sender */
    SBUS_NONBLOCK = 8   /* a send that would block fails with EAGAIN */
};

#define SBUS_RECEIVE_BYTES_ (SBUS_PACKET_BYTES + 16384u) /* the longest packet, and what the bus can add to it */
#define SBUS_FIRST_DELAY_NS_ 50000000                    /* after the first failed attempt to reconnect */
#define SBUS_LONGEST_DELAY_NS_ 5000000000
#define SBUS_SHORT_GAP_NS_ 20000  /* a publication that follows another so soon may be gathered ... */
#define SBUS_LONGEST_WAIT_NS_ 1000000 /* ... for so long */
#define SBUS_REMEMBERED_ 1024         /* requests that are recognized if they are repeated */
#define SBUS_JOIN_ "CMSG group/join" /* of a member of a queue group */
#define SBUS_SERVICE_ "SUB at own address, and group/join " /* of a service that shares the requests */
#define SBUS_SERVICE_ALL_ "SUB, also at own address "           /* of a service that gets every request */
#define SBUS_SERVICE_GROUP_ "rpc"                               /* the queue group of services */

/* A request that was received. */
struct sbus_seen_ {
    uint64_t id, hash;
};

/* A request that this service has taken and not responded to. See open_request.h. */
struct sbus_open_request_ {
    struct sbus_open_request_ *next;
    uint64_t number;        /* by which the program's struct sbus_request finds it */
    uint64_t caller;        /* number of the connection */
    int64_t user;           /* of the caller, -1: not of this host */
    uint64_t granted, sent; /* parts of the response */
    bool is_cancelled;      /* whether the caller wants no response any more, or has disconnected */
    bool is_broken;         /* whether messages of the caller can be lost that its stream needs */
    bool is_watched;        /* whether the end of the caller is reported */
    bool is_sure;           /* whether the bus was asked, after the last loss, if the caller is connected */
    char *command;          /* behind the uid */
    char uid[1];            /* as long as is needed */
};

/* A packet that is sent again on a new connection: its first word, and its pattern, the name of a mode, or a queue group, NUL and its
 * pattern. A NUL follows, which is not counted. */
struct sbus_saved_ {
    struct sbus_saved_ *next;
    const char *verb;
    size_t size;
    char text[1]; /* as long as is needed */
};

struct sbus_call_; /* in pending_call.h */
struct sbus_held_;

/* A connection. Its parts are private. It is used by one thread at a time, and by one process: not on both sides of fork(2). */
struct sbus {
    int fd_;
    int blob_fd_; /* of the connection to sbus-blob, -1: none */
    unsigned options_;
    char *address_;
    char *buffer_;               /* the packet that sbus_next() has received last */
    struct sbus_bytes unread_;   /* what remains of a batch in it */
    struct sbus_saved_ *saved_;  /* in the order in which they are sent again */
    struct sbus_batch gathered_; /* publications that wait for company */
    char *gather_buffer_;
    int64_t last_publication_, first_gathered_, due_, connected_at_;
    unsigned failures_;
    uint64_t id_; /* number of this connection, 0: not known */
    struct sbus_seen_ *requests_; /* a ring, only of services */
    unsigned next_request_;
    struct sbus_open_request_ *open_; /* the newest first */
    uint64_t taken_;          /* number of the newest request */
    uint64_t looked_for_;     /* the caller whose connection the bus is asked about next, 0: none */
    struct sbus_call_ *call_; /* the call that has not ended */
    struct sbus_held_ *reply_; /* what the last call has returned, if it is not in the buffer */
    bool is_calling_; /* whether responses of services arrive */
    bool has_turns_; /* whether order/fair is set because it serves, and not by the program */
    bool is_full_; /* whether the socket did not accept what was gathered */
    char closing_words_[160]; /* the last error of the bus: it can be why the connection ends */
    char text_[320];
};

#if defined __GNUC__
#define SBUS_FORMAT_(number, first) __attribute__((format(printf, number, first)))
#else
#define SBUS_FORMAT_(number, first)
#endif

/* Set the text of sbus_error() and errno. Returns -1. */
SBUS_FORMAT_(3, 4) static inline int sbus_fail_(struct sbus *bus, int error, const char *format, ...) {
    va_list arguments;
    size_t size = sizeof bus->text_, used = (size_t)snprintf(bus->text_, size, "%s: ", bus->address_ ? bus->address_ : "sbus");
    used = used < size / 2 ? used : size / 2; /* a long address is cut */
    va_start(arguments, format);
    vsnprintf(bus->text_ + used, size - used, format, arguments);
    va_end(arguments);
    errno = error;
    return -1;
}

/* Return why the last function with *bus* failed, in one line of text. It is valid until the next call. */
static inline const char *sbus_error(const struct sbus *bus) {
    return bus->text_;
}

/* Return the descriptor to poll(2) for POLLIN; -1 until the next connection. It can change with each call of sbus_next(). */
static inline int sbus_fd(const struct sbus *bus) {
    return bus->fd_;
}

static inline int64_t sbus_now_(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Send one packet whole, made of *pieces*. */
static inline int sbus_send_pieces_(struct sbus *bus, struct iovec *pieces, int count) {
    struct msghdr message;
    ssize_t sent;
    if (bus->fd_ < 0)
        return sbus_fail_(bus, ENOTCONN, "not sent: not connected to the bus");
    memset(&message, 0, sizeof message);
    message.msg_iov = pieces;
    message.msg_iovlen = (size_t)count;
    do
        sent = sendmsg(bus->fd_, &message, MSG_NOSIGNAL | (bus->options_ & SBUS_NONBLOCK ? MSG_DONTWAIT : 0));
    while (sent < 0 && errno == EINTR);
    if (sent >= 0)
        return 0;
    return sbus_fail_(bus, errno, "not sent: %s", strerror(errno));
}

/* Send "<verb><key>", and NUL and payload unless *payload* is NULL. The payload is not copied. */
static inline int sbus_send_(struct sbus *bus, const char *verb, const char *key, const void *payload, size_t size) {
    struct iovec pieces[3];
    size_t key_size = strlen(key), verb_size = strlen(verb);
    if (size && !payload)
        return sbus_fail_(bus, EINVAL, "not sent: a size without a payload");
    if (size > SBUS_PACKET_BYTES || key_size > SBUS_PACKET_BYTES || verb_size + key_size + 1 + size > SBUS_PACKET_BYTES)
        return sbus_fail_(bus, EMSGSIZE, "not sent: the packet is longer than %u bytes", SBUS_PACKET_BYTES);
    pieces[0].iov_base = (void *)(uintptr_t)verb;
    pieces[0].iov_len = verb_size;
    pieces[1].iov_base = (void *)(uintptr_t)key; /* with its NUL, if a payload follows */
    pieces[1].iov_len = key_size + (payload ? 1 : 0);
    pieces[2].iov_base = (void *)(uintptr_t)payload;
    pieces[2].iov_len = size;
    return sbus_send_pieces_(bus, pieces, payload && size ? 3 : 2);
}

/* Send what sbus_gather() made wait. It remains if the socket does not accept it now, and for the next connection.
 *
 * Returns 0, or -1 with errno as for sbus_publish(). */
static inline int sbus_flush(struct sbus *bus) {
    struct sbus_bytes bytes;
    struct iovec piece;
    if (!bus->gather_buffer_ || !sbus_batch_count(&bus->gathered_))
        return 0;
    bytes = sbus_batch_bytes_(&bus->gathered_);
    piece.iov_base = (void *)(uintptr_t)bytes.data;
    piece.iov_len = bytes.size;
    bus->is_full_ = sbus_send_pieces_(bus, &piece, 1) < 0;
    if (bus->is_full_)
        return -1;
    sbus_batch_clear(&bus->gathered_);
    return 0;
}

/* Connect to the bus at bus->address_. */
static inline int sbus_open_(struct sbus *bus, bool may_block) {
    struct sockaddr_un name;
    socklen_t size;
    int type = 0, number = sbus_address_descriptor_(bus->address_);
    if (number >= 0) {
        size = sizeof type;
        if (getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_SEQPACKET)
            return sbus_fail_(bus, type ? EPROTOTYPE : errno, "cannot connect: not a SEQPACKET socket");
        fcntl(number, F_SETFD, FD_CLOEXEC);
        bus->fd_ = number;
    } else {
        if (sbus_address_parse_(bus->address_, &name, &size) < 0)
            return sbus_fail_(bus, errno, "cannot connect: not the address of a bus: %s", strerror(errno));
        bus->fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (may_block ? 0 : SOCK_NONBLOCK), 0);
        if (bus->fd_ < 0 || connect(bus->fd_, (struct sockaddr *)&name, size) < 0) {
            int error = errno;
            if (bus->fd_ >= 0)
                close(bus->fd_);
            bus->fd_ = -1;
            return sbus_fail_(bus, error, "cannot connect: %s", strerror(error));
        }
        if (!may_block)
            fcntl(bus->fd_, F_SETFL, fcntl(bus->fd_, F_GETFL) & ~O_NONBLOCK);
    }
    bus->connected_at_ = sbus_now_();
    bus->closing_words_[0] = 0;
    bus->id_ = 0;
    bus->is_calling_ = false;
    bus->is_full_ = false;
    return 0;
}

/* Close the connection: the bus has closed its end. The callers of its requests are notified that this service has disconnected. */
static inline void sbus_lost_(struct sbus *bus) {
    struct sbus_open_request_ *open;
    int64_t now = sbus_now_();
    for (open = bus->open_; open; open = open->next) {
        open->is_cancelled = true;
        open->is_watched = open->is_sure = false;
    }
    bus->looked_for_ = 0;
    if (bus->fd_ >= 0)
        close(bus->fd_);
    bus->fd_ = -1;
    bus->unread_ = sbus_bytes_("", 0);
    if (now - bus->connected_at_ >= SBUS_LONGEST_DELAY_NS_)
        bus->failures_ = 0;
    bus->due_ = bus->failures_ ? now + SBUS_FIRST_DELAY_NS_ : now;
}

#endif
