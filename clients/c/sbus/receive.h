/* Receiving: the next packet, for blocking programs and for event loops. See sbus.h(3). */
#ifndef SBUS_RECEIVE_H
#define SBUS_RECEIVE_H

#include "open_request.h"

/* Return the milliseconds until *deadline*, rounded up; -1 if there is none, which is INT64_MAX. */
static inline int sbus_milliseconds_(int64_t deadline) {
    int64_t left = deadline == INT64_MAX ? 0 : deadline - sbus_now_();
    if (deadline == INT64_MAX)
        return -1;
    left = left > 0 ? (left + 999999) / 1000000 : 0;
    return left < 60000 ? (int)left : 60000; /* callers compare the time again */
}

/* Return whether publications are gathered that the next call of sbus_next() sends; not those that the full socket has not accepted. */
static inline bool sbus_is_waiting_(const struct sbus *bus) {
    return bus->gather_buffer_ && sbus_batch_count(&bus->gathered_) && !bus->is_full_;
}

/* Return the events for which to poll(2) sbus_fd(): POLLIN, and POLLOUT while the socket does not accept what was gathered. */
static inline short sbus_events(const struct sbus *bus) {
    return (short)(POLLIN | (bus->is_full_ ? POLLOUT : 0));
}

/* Return how long poll(2) may wait for sbus_fd() before sbus_next() must be called, in milliseconds, -1: without a limit. *timeout_ms* is
 * the most. */
static inline int sbus_timeout(const struct sbus *bus, int timeout_ms) {
    int due = -1;
    if (bus->unread_.size || (bus->fd_ >= 0 && sbus_is_waiting_(bus)))
        due = 0;
    else if (bus->fd_ < 0 && bus->options_ & SBUS_RECONNECT)
        due = sbus_milliseconds_(bus->due_);
    return due < 0 || (timeout_ms >= 0 && timeout_ms < due) ? timeout_ms : due;
}

/* Keep the last error of the bus as printable text: it can be the reason why the connection ends. */
static inline void sbus_note_refusal_(struct sbus *bus, struct sbus_bytes words) {
    size_t i, size = sbus_before_(words, 0); /* the key of a refused message follows */
    size = size < sizeof bus->closing_words_ ? size : sizeof bus->closing_words_ - 1;
    for (i = 0; i < size; i++)
        bus->closing_words_[i] = words.data[i] >= ' ' && words.data[i] <= '~' ? words.data[i] : '?';
    bus->closing_words_[size] = 0;
}

#define SBUS_CONSUMED_ 2 /* the packet was for the header; another one can be there */

/* Parse what sbus_next() returns. Returns 1, SBUS_CONSUMED_, or -1 with errno. */
static inline int sbus_accept_(struct sbus *bus, struct sbus_bytes bytes, struct sbus_packet *packet) {
    if (sbus_parse(bytes.data, bytes.size, packet) < 0)
        return sbus_fail_(bus, EPROTO, "received a packet of an unknown kind");
    if (packet->kind == SBUS_REFUSED)
        sbus_note_refusal_(bus, packet->payload);
    if (sbus_open_note_(bus, packet))
        return SBUS_CONSUMED_;
    if (packet->kind == SBUS_CONTROL && sbus_equal(packet->key, "!/conn/whoami") && sbus_learn_address_(bus, packet->payload) < 0)
        return -1;
    return 1;
}

/* Return the next packet of the batch that was received last, as sbus_accept_(); 0 if there is none. */
static inline int sbus_next_in_batch_(struct sbus *bus, struct sbus_packet *packet) {
    struct sbus_bytes inner;
    int status = sbus_batch_next(&bus->unread_, &inner);
    if (status < 0)
        return sbus_fail_(bus, EPROTO, "received a malformed batch; the rest of it is lost");
    return status ? sbus_accept_(bus, inner, packet) : 0;
}

/* Read a packet without waiting. Returns 1 or SBUS_CONSUMED_; 0 if there is none, or the bus has closed the connection; -1 with errno. */
static inline int sbus_read_(struct sbus *bus, struct sbus_packet *packet) {
    struct msghdr message;
    struct iovec piece;
    ssize_t size;
    int status;
    memset(&message, 0, sizeof message);
    piece.iov_base = bus->buffer_;
    piece.iov_len = SBUS_RECEIVE_BYTES_;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    size = recvmsg(bus->fd_, &message, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    if (size == 0 || (size < 0 && errno == ECONNRESET)) {
        sbus_lost_(bus);
        return 0;
    }
    if (size < 0)
        return sbus_fail_(bus, errno, "cannot receive: %s", strerror(errno));
    if (message.msg_flags & MSG_TRUNC)
        return sbus_fail_(bus, EMSGSIZE, "received a packet of more than %u bytes; it is lost", SBUS_RECEIVE_BYTES_);
    status = sbus_accept_(bus, sbus_bytes_(bus->buffer_, (size_t)size), packet);
    if (status < 0 || packet->kind != SBUS_BATCH)
        return status;
    bus->unread_ = packet->payload;
    if (packet->payload.size == 0)
        return sbus_fail_(bus, EPROTO, "received a batch without packets");
    return sbus_next_in_batch_(bus, packet);
}

/* Do one step without a connection: return 1 if it is there again, 0 if not yet, -1 if it will not be. */
static inline int sbus_step_(struct sbus *bus, struct sbus_packet *packet) {
    if (!(bus->options_ & SBUS_RECONNECT)) {
        const char *words = bus->closing_words_;
        return sbus_fail_(bus, ECONNRESET, "the bus has closed the connection%s%s", *words ? "; its last error: " : "", words);
    }
    if (sbus_now_() < bus->due_ || sbus_reconnect_(bus) < 0)
        return 0;
    memset(packet, 0, sizeof *packet);
    packet->kind = SBUS_RECONNECTED;
    packet->key = packet->payload = packet->token = packet->group = packet->recipients = sbus_bytes_("", 0);
    packet->sender.cred = packet->sender.origin = packet->key;
    return 1;
}

/* Receive the next packet; what was gathered is sent before. *timeout_ms* 0: do not wait; -1: wait without limit.
 *
 * Returns 1 with a packet, which is valid until the next call with this bus; 0 if none came in time; or -1 with errno ECONNRESET if the bus
 * has closed the connection, EINTR after a signal, EPROTO or EMSGSIZE for a packet that this version cannot read: the next call returns the
 * one after it. */
static inline int sbus_next(struct sbus *bus, struct sbus_packet *packet, int timeout_ms) {
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : sbus_now_() + (int64_t)timeout_ms * 1000000;
    if (!bus->buffer_)
        return sbus_fail_(bus, ENOTCONN, "the connection was not opened, or it was closed");
    for (;;) {
        struct pollfd ready;
        int status, waited, wait_ms = sbus_milliseconds_(deadline);
        /* A failure is seen again when the socket is read, or is only that the socket is full. */
        if (bus->fd_ >= 0)
            sbus_flush(bus);
        status = bus->unread_.size ? sbus_next_in_batch_(bus, packet) : bus->fd_ >= 0 ? sbus_read_(bus, packet) : sbus_step_(bus, packet);
        if (status == SBUS_CONSUMED_)
            continue;
        if (status != 0)
            return status;
        if (bus->fd_ < 0 && (!(bus->options_ & SBUS_RECONNECT) || sbus_now_() >= bus->due_))
            continue; /* the connection has just ended */
        if (wait_ms == 0)
            return 0;
        ready.fd = bus->fd_;
        ready.events = sbus_events(bus);
        if (bus->fd_ < 0) /* wait for the next attempt */
            wait_ms = wait_ms < 0 || sbus_milliseconds_(bus->due_) < wait_ms ? sbus_milliseconds_(bus->due_) : wait_ms;
        waited = poll(&ready, 1, wait_ms);
        if (waited < 0)
            return sbus_fail_(bus, errno, "cannot wait: %s", strerror(errno));
    }
}

#endif
