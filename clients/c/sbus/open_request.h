/* The requests that a service has taken and not responded to, and the watch of their callers. Spec: sbus-rpc(7) section 7.
 *
 * A request is cancelled by a message of the connection that made it, or by the end of that connection. Nothing is remembered of a message
 * about any other request. */
#ifndef SBUS_OPEN_REQUEST_H
#define SBUS_OPEN_REQUEST_H

#include "connect.h"
#include "members.h"

#define SBUS_MOST_OPEN_ 1024     /* requests of one user that wait for their responses */
#define SBUS_MOST_STREAMS_ 64    /* streams of one user */
#define SBUS_MOST_GRANTED_ 1024u /* parts that a caller can grant ahead */
#define SBUS_LOOK_ "sbus.h/"     /* in a response of the bus: the caller that the next list is about; without a number: its end */
#define SBUS_DISCONNECTED_ "!/event/disconnect/"

/* Return the request *number*, NULL if there is none or it has been responded to. */
static inline struct sbus_open_request_ *sbus_open_find_(const struct sbus *bus, uint64_t number) {
    struct sbus_open_request_ *open = bus->open_;
    while (open && open->number != number)
        open = open->next;
    return open;
}

/* Return how many requests of *user* are open, or only how many of them are streams. */
static inline size_t sbus_open_count_(const struct sbus *bus, int64_t user, bool streams) {
    const struct sbus_open_request_ *open;
    size_t count = 0;
    for (open = bus->open_; open; open = open->next)
        count += open->user == user && (!streams || open->sent);
    return count;
}

/* Note the request *uid* of *caller* for *command*. Returns it, or NULL with errno ENOMEM. */
static inline struct sbus_open_request_ *sbus_open_add_(struct sbus *bus, const struct sbus_sender *caller, struct sbus_bytes uid,
                                                const char *command, uint64_t granted) {
    size_t size = strlen(command) + 1;
    struct sbus_open_request_ *open = (struct sbus_open_request_ *)malloc(sizeof *open + uid.size + 1 + size);
    if (!open)
        return NULL;
    memset(open, 0, sizeof *open);
    open->number = ++bus->taken_;
    open->caller = caller->id;
    open->user = caller->uid;
    open->granted = granted < SBUS_MOST_GRANTED_ ? granted : SBUS_MOST_GRANTED_;
    memcpy(open->uid, uid.data, uid.size);
    open->uid[uid.size] = 0;
    open->command = open->uid + uid.size + 1;
    memcpy(open->command, command, size);
    open->next = bus->open_;
    bus->open_ = open;
    return open;
}

/* Return whether the end of *caller* is reported. */
static inline bool sbus_is_watched_(const struct sbus *bus, uint64_t caller) {
    const struct sbus_open_request_ *open;
    for (open = bus->open_; open; open = open->next)
        if (open->caller == caller && open->is_watched)
            return true;
    return false;
}

/* Forget the request *number*, and its caller if it is the last request that needs the watch. */
static inline void sbus_open_close_(struct sbus *bus, uint64_t number) {
    struct sbus_open_request_ **place = &bus->open_, *open;
    char pattern[60];
    while (*place && (*place)->number != number)
        place = &(*place)->next;
    open = *place;
    if (!open)
        return;
    *place = open->next;
    if (bus->fd_ >= 0 && open->is_watched && !sbus_is_watched_(bus, open->caller)) {
        /* A full socket costs a subscription to an event that occurs at most once. */
        snprintf(pattern, sizeof pattern, "UNSUB " SBUS_DISCONNECTED_ "%llu", (unsigned long long)open->caller);
        (void)send(bus->fd_, pattern, strlen(pattern), MSG_NOSIGNAL | (bus->options_ & SBUS_NONBLOCK ? MSG_DONTWAIT : 0));
    }
    free(open);
}

/* Handle a message about the request *uid* of *caller* for *command*: it is cancelled, or parts up to number *granted* are accepted. */
static inline void sbus_open_follow_(struct sbus *bus, uint64_t caller, struct sbus_bytes uid, const char *command, bool is_cancelled,
                                     uint64_t granted) {
    struct sbus_open_request_ *open;
    for (open = bus->open_; open; open = open->next) {
        if (open->is_cancelled || open->caller != caller || !sbus_equal(uid, open->uid) || strcmp(open->command, command) != 0)
            continue;
        open->is_cancelled = is_cancelled;
        granted = granted < open->sent + SBUS_MOST_GRANTED_ ? granted : open->sent + SBUS_MOST_GRANTED_;
        if (!is_cancelled && open->granted && granted > open->granted)
            open->granted = granted;
        return;
    }
}

/* Return whether the bus was asked, after the last loss, if *caller* is connected. */
static inline bool sbus_is_sure_(const struct sbus *bus, uint64_t caller) {
    const struct sbus_open_request_ *open;
    for (open = bus->open_; open; open = open->next)
        if (open->caller == caller && open->is_sure)
            return true;
    return false;
}

/* Watch the caller of *open*, whose responses arrive at *ret*: subscribe to the event of its end, and then ask whether it is connected. The
 * packets go out together, or errno says why not; then the next attempt can succeed. */
static inline int sbus_open_watch_(struct sbus *bus, struct sbus_open_request_ *open, const char *ret) {
    struct sbus_batch batch;
    struct sbus_bytes bytes;
    struct iovec piece;
    char buffer[5000], text[60];
    if (!sbus_is_sure_(bus, open->caller)) {
        sbus_batch_start(&batch, buffer, sizeof buffer);
        snprintf(text, sizeof text, SBUS_DISCONNECTED_ "%llu", (unsigned long long)open->caller);
        if (!sbus_is_watched_(bus, open->caller))
            sbus_batch_add_(&batch, "SUB ", text, NULL, 0);
        snprintf(text, sizeof text, SBUS_LOOK_ "%llu", (unsigned long long)open->caller);
        sbus_batch_add_(&batch, "CMSG ", "!/bus/ping", text, strlen(text));
        sbus_batch_add_(&batch, "CMSG ", "!/bus/members", ret, strlen(ret));
        sbus_batch_add_(&batch, "CMSG ", "!/bus/ping", SBUS_LOOK_, strlen(SBUS_LOOK_));
        bytes = sbus_batch_bytes_(&batch);
        piece.iov_base = (void *)(uintptr_t)bytes.data;
        piece.iov_len = bytes.size;
        if (sbus_flush(bus) < 0 || sbus_send_pieces_(bus, &piece, 1) < 0)
            return -1;
    }
    open->is_watched = open->is_sure = true;
    return 0;
}

/* Cancel the requests of *caller*: it has disconnected. */
static inline void sbus_open_abandon_(struct sbus *bus, uint64_t caller) {
    struct sbus_open_request_ *open;
    for (open = bus->open_; open; open = open->next)
        if (open->caller == caller)
            open->is_cancelled = true;
}

/* Handle a packet that was lost: it can have been about any caller. */
static inline void sbus_open_lost_(struct sbus *bus) {
    struct sbus_open_request_ *open;
    bus->looked_for_ = 0; /* what follows can be the list of another question */
    for (open = bus->open_; open; open = open->next) {
        open->is_sure = false;                           /* the event of the end can be lost */
        open->is_broken = open->is_broken || open->sent; /* a grant can be lost */
    }
}

/* Note what *packet* says about callers. Returns whether it is only for the watch. The event of an end is not: the program has to learn that
 * a request is cancelled now. */
static inline bool sbus_open_note_(struct sbus *bus, const struct sbus_packet *packet) {
    struct sbus_page_ page;
    struct sbus_bytes rest = packet->kind == SBUS_MESSAGE ? packet->key : packet->payload;
    uint64_t id = 0;
    if (packet->kind == SBUS_LOST)
        sbus_open_lost_(bus);
    else if (packet->kind == SBUS_MESSAGE && bus->open_ && sbus_skip_(&rest, SBUS_DISCONNECTED_) && sbus_id_(&rest, 20, &id))
        sbus_open_abandon_(bus, id);
    if (packet->kind != SBUS_CONTROL)
        return false;
    if (sbus_equal(packet->key, "!/bus/ping") && sbus_skip_(&rest, SBUS_LOOK_)) {
        bus->looked_for_ = sbus_number_(rest, 20, &id) ? id : 0;
        return true;
    }
    if (!bus->looked_for_ || !sbus_equal(packet->key, "!/bus/members"))
        return false;
    if (!sbus_read_members_(rest, &page, NULL, 0) || page.count > 0)
        return true;
    sbus_open_abandon_(bus, bus->looked_for_);
    return false;
}

#endif
