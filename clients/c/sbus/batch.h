/* Batches: several packets in one. No I/O. Spec: sbus-protocol(7) section 6, Batches. */
#ifndef SBUS_BATCH_H
#define SBUS_BATCH_H

#include "packet.h"

#define SBUS_BATCH_HEAD_ "CMSG !/batch" /* and its NUL */

/* A batch that is being made, in memory of the caller. Its parts are private. */
struct sbus_batch {
    char *data_;
    size_t capacity_, size_;
    unsigned count_;
};

/* Start a batch in *buffer*. A size of more than SBUS_BATCH_BYTES has no effect; every packet in a batch needs 4 bytes more than alone. */
static inline void sbus_batch_start(struct sbus_batch *batch, void *buffer, size_t size) {
    batch->data_ = (char *)buffer;
    batch->capacity_ = size < SBUS_BATCH_BYTES ? size : SBUS_BATCH_BYTES;
    batch->size_ = sizeof SBUS_BATCH_HEAD_;
    batch->count_ = 0;
    if (batch->capacity_ >= sizeof SBUS_BATCH_HEAD_)
        memcpy(batch->data_, SBUS_BATCH_HEAD_, sizeof SBUS_BATCH_HEAD_);
}

/* Return the number of packets in *batch*. */
static inline unsigned sbus_batch_count(const struct sbus_batch *batch) {
    return batch->count_;
}

/* Add "<verb><key>", and NUL and payload unless *payload* is NULL. */
static inline int sbus_batch_add_(struct sbus_batch *batch, const char *verb, const char *key, const void *payload, size_t size) {
    size_t verb_size = strlen(verb), key_size = strlen(key), length, free_bytes;
    char *to;
    unsigned i;
    free_bytes = batch->capacity_ > batch->size_ ? batch->capacity_ - batch->size_ : 0;
    length = verb_size + key_size + (payload ? 1 : 0);
    if (size && !payload) {
        errno = EINVAL;
        return -1;
    }
    if (size > SBUS_PACKET_BYTES || key_size > SBUS_PACKET_BYTES || length + size + 4 > free_bytes) {
        errno = ENOBUFS;
        return -1;
    }
    to = batch->data_ + batch->size_;
    length += size;
    for (i = 0; i < 4; i++)
        *to++ = (char)(unsigned char)(length >> 8 * i & 0xff);
    memcpy(to, verb, verb_size);
    memcpy(to + verb_size, key, key_size);
    if (payload)
        to[verb_size + key_size] = 0;
    if (size)
        memcpy(to + verb_size + key_size + 1, payload, size);
    batch->size_ += length + 4;
    batch->count_++;
    return 0;
}

/* Add a message. Returns 0, or -1 with errno ENOBUFS if it does not fit: send the batch, then add it again; EINVAL if *payload* is
 * NULL and *size* is not 0. */
static inline int sbus_batch_publish(struct sbus_batch *batch, const char *key, const void *payload, size_t size) {
    return sbus_batch_add_(batch, "MSG ", key, size ? payload : "", size);
}

/* Return the bytes to send for *batch*: a single packet goes alone, without the head of a batch. */
static inline struct sbus_bytes sbus_batch_bytes_(const struct sbus_batch *batch) {
    size_t head = sizeof SBUS_BATCH_HEAD_ + 4;
    return batch->count_ == 1 ? sbus_bytes_(batch->data_ + head, batch->size_ - head) : sbus_bytes_(batch->data_, batch->size_);
}

/* Remove all packets. */
static inline void sbus_batch_clear(struct sbus_batch *batch) {
    batch->size_ = sizeof SBUS_BATCH_HEAD_;
    batch->count_ = 0;
}

/* Remove the first packet from *rest*, the payload of an SBUS_BATCH packet, and put it into *inner*.
 *
 * Returns 1; 0 if *rest* is empty; -1 with errno EINVAL if the batch is malformed here. Then the rest is lost: its beginning is unknown.
 * Test an empty payload before the first call: a batch without packets is malformed too. */
static inline int sbus_batch_next(struct sbus_bytes *rest, struct sbus_bytes *inner) {
    size_t length = 0, i;
    if (rest->size == 0)
        return 0;
    for (i = 0; rest->size >= 4 && i < 4; i++)
        length |= (size_t)(unsigned char)rest->data[i] << 8 * i;
    if (length == 0 || length > rest->size - 4)
        goto malformed;
    *inner = sbus_bytes_(rest->data + 4, length);
    if (sbus_starts(*inner, SBUS_BATCH_HEAD_) && (length == sizeof SBUS_BATCH_HEAD_ - 1 || inner->data[sizeof SBUS_BATCH_HEAD_ - 1] == 0))
        goto malformed;
    *rest = sbus_after_(*rest, 4 + length);
    return 1;
malformed:
    *rest = sbus_bytes_("", 0);
    errno = EINVAL;
    return -1;
}

#endif
