/* The beginning and the end of a connection: connect, reconnect, close. See sbus.h(3). */
#ifndef SBUS_CONNECT_H
#define SBUS_CONNECT_H

#include "pending_call.h"
#include "subscription.h"

/* Make one attempt to reconnect, and set the time of the next one. */
static inline int sbus_reconnect_(struct sbus *bus) {
    int64_t now = sbus_now_(), delay = SBUS_FIRST_DELAY_NS_;
    unsigned i;
    for (i = 0; i < bus->failures_ && delay < SBUS_LONGEST_DELAY_NS_; i++)
        delay *= 2;
    if (delay > SBUS_LONGEST_DELAY_NS_)
        delay = SBUS_LONGEST_DELAY_NS_;
    delay -= now % (delay / 2); /* many clients lose the same bus at the same moment */
    bus->failures_++;
    if (sbus_open_(bus, false) == 0 && sbus_restore_(bus) == 0)
        return 0;
    if (bus->fd_ >= 0)
        sbus_lost_(bus);
    bus->due_ = now + delay;
    return -1;
}

/* Close the connection and release its memory. What was gathered is sent before.
 *
 * Returns 0, or -1 with errno as for sbus_publish() if gathered publications could not be sent; the connection is closed then too. */
static inline int sbus_close(struct sbus *bus) {
    int status = sbus_flush(bus), error = errno;
    struct sbus_saved_ *saved;
    struct sbus_open_request_ *open;
    if (bus->fd_ >= 0)
        close(bus->fd_);
    bus->fd_ = -1;
    if (bus->blob_fd_ >= 0)
        close(bus->blob_fd_);
    bus->blob_fd_ = -1;
    while ((saved = bus->saved_) != NULL) {
        bus->saved_ = saved->next;
        free(saved);
    }
    while ((open = bus->open_) != NULL) {
        bus->open_ = open->next;
        free(open);
    }
    sbus_call_free_(bus->call_);
    bus->call_ = NULL;
    free(bus->gather_buffer_);
    free(bus->requests_);
    free(bus->reply_);
    free(bus->buffer_);
    free(bus->address_);
    bus->gather_buffer_ = bus->buffer_ = bus->address_ = NULL;
    bus->requests_ = NULL;
    bus->reply_ = NULL;
    errno = error;
    return status;
}

/* Connect to the bus at *address*; NULL: $SBUS_ADDRESS, or the bus of the system. *options* are any of SBUS_RECONNECT and so on.
 *
 * Returns 0, or -1 with errno as of connect(2) or malloc(3), or EINVAL for an address that cannot be connected to (again). Then *bus* may
 * only be used with sbus_error() and sbus_close(), which need not be called. */
static inline int sbus_connect(struct sbus *bus, const char *address, unsigned options) {
    const char *used = sbus_address(address);
    int error;
    memset(bus, 0, sizeof *bus);
    bus->fd_ = bus->blob_fd_ = -1;
    bus->options_ = options;
    bus->unread_ = sbus_bytes_("", 0);
    bus->address_ = (char *)malloc(strlen(used) + 1);
    bus->buffer_ = (char *)malloc(SBUS_RECEIVE_BYTES_); /* the system provides only the pages that packets touch */
    if (!bus->address_ || !bus->buffer_) {
        sbus_close(bus);
        return sbus_fail_(bus, ENOMEM, "cannot connect: no memory");
    }
    memcpy(bus->address_, used, strlen(used) + 1);
    if (options & SBUS_RECONNECT && sbus_address_descriptor_(used) >= 0)
        sbus_fail_(bus, EINVAL, "a descriptor cannot be reconnected; leave out SBUS_RECONNECT");
    else if (sbus_open_(bus, true) == 0 && (!(options & SBUS_SENDERS) || sbus_set(bus, "sender/on") == 0) &&
             (!(options & SBUS_BATCHES) || sbus_set(bus, "batch/on") == 0))
        return 0;
    error = errno;
    sbus_close(bus);
    errno = error;
    return -1;
}

#endif
