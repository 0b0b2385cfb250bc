/* Publishing: single messages, gathered ones, batches, receipts. See sbus.h(3). */
#ifndef SBUS_PUBLISH_H
#define SBUS_PUBLISH_H

#include "connect.h"

/* Let publications wait for company, or send each at once, as is the default. See sbus.h(3), Gathering.
 *
 * Returns 0, or -1 with errno ENOMEM, or as for sbus_publish() if what was gathered cannot be sent. */
static inline int sbus_gather(struct sbus *bus, bool on) {
    int buffer = 0;
    socklen_t length = sizeof buffer;
    if (sbus_flush(bus) < 0)
        return -1;
    if (!on) {
        free(bus->gather_buffer_);
        bus->gather_buffer_ = NULL;
    } else if (!bus->gather_buffer_) {
        bus->gather_buffer_ = (char *)malloc(SBUS_BATCH_BYTES);
        if (!bus->gather_buffer_)
            return sbus_fail_(bus, ENOMEM, "no memory to gather publications");
        /* The kernel needs 32 bytes of SO_SNDBUF: a batch that does not fit would stay here. */
        if (bus->fd_ < 0 || getsockopt(bus->fd_, SOL_SOCKET, SO_SNDBUF, &buffer, &length) < 0 || buffer < 32)
            buffer = (int)SBUS_BATCH_BYTES + 32;
        sbus_batch_start(&bus->gathered_, bus->gather_buffer_, (size_t)buffer - 32);
        bus->last_publication_ = sbus_now_() - SBUS_SHORT_GAP_NS_ - 1;
    }
    return 0;
}

/* Do as sbus_publish() on a connection that gathers. After a failure this message is not gathered: the caller may publish it again. */
static inline int sbus_publish_gathering_(struct sbus *bus, const char *key, const void *payload, size_t size) {
    int64_t now = sbus_now_();
    bool is_soon = now - bus->last_publication_ <= SBUS_SHORT_GAP_NS_;
    bus->last_publication_ = now;
    if (sbus_batch_count(&bus->gathered_)) {
        if (is_soon && now - bus->first_gathered_ < SBUS_LONGEST_WAIT_NS_ && sbus_batch_publish(&bus->gathered_, key, payload, size) == 0)
            return 0;
        if (sbus_flush(bus) < 0)
            return -1;
    }
    if (!is_soon || sbus_batch_publish(&bus->gathered_, key, payload, size) < 0)
        return sbus_send_(bus, "MSG ", key, size ? payload : "", size);
    bus->first_gathered_ = now;
    return 0;
}

/* Publish *size* bytes of payload, which can contain NUL, under *key*.
 *
 * Returns 0 if the bus will read the message: it can still refuse it, and then sbus_next() returns SBUS_REFUSED. Or -1 with errno EMSGSIZE
 * if it is longer than 409,600 bytes or than the socket accepts, EAGAIN with SBUS_NONBLOCK if the socket is full, EPIPE or ENOTCONN without
 * a connection. */
static inline int sbus_publish(struct sbus *bus, const char *key, const void *payload, size_t size) {
    if (bus->gather_buffer_)
        return sbus_publish_gathering_(bus, key, payload, size);
    return sbus_send_(bus, "MSG ", key, size ? payload : "", size);
}

/* Send *batch*, unless it has no packet, and remove its packets. Returns 0, or -1 with errno as for sbus_publish(): then they remain. */
static inline int sbus_send_batch(struct sbus *bus, struct sbus_batch *batch) {
    struct sbus_bytes bytes;
    struct iovec piece;
    if (sbus_flush(bus) < 0)
        return -1;
    if (sbus_batch_count(batch) == 0)
        return 0;
    bytes = sbus_batch_bytes_(batch);
    piece.iov_base = (void *)(uintptr_t)bytes.data;
    piece.iov_len = bytes.size;
    if (sbus_send_pieces_(bus, &piece, 1) < 0)
        return -1;
    sbus_batch_clear(batch);
    return 0;
}

/* Publish, and request the receipt *kind*, such as "receipt/always". */
static inline int sbus_publish_for_(struct sbus *bus, const char *kind, const char *key, const void *payload, size_t size,
                                    const char *token) {
    if (strlen(token) > 128)
        return sbus_fail_(bus, EINVAL, "not sent: the token of a receipt has at most 128 bytes");
    if (size > SBUS_PACKET_BYTES || strlen(key) + size + 5 > SBUS_PACKET_BYTES) /* or the next message would get the receipt */
        return sbus_fail_(bus, EMSGSIZE, "not sent: the packet is longer than %u bytes", SBUS_PACKET_BYTES);
    if (sbus_control(bus, kind, token, strlen(token)) < 0)
        return -1;
    return sbus_send_(bus, "MSG ", key, size ? payload : "", size);
}

/* Publish, and request a receipt: sbus_next() returns SBUS_RECEIPT with *token*, at most 128 bytes, and the number of recipients.
 *
 * Returns 0, or -1 with errno as for sbus_publish(), EINVAL if the token is too long. */
static inline int sbus_publish_receipt(struct sbus *bus, const char *key, const void *payload, size_t size, const char *token) {
    return sbus_publish_for_(bus, "receipt/always", key, payload, size, token);
}

#endif
