/* The callees of a call: which connections have got its request, and are services. Spec: sbus-rpc(7) section 3. */
#ifndef SBUS_CALLEES_H
#define SBUS_CALLEES_H

#include "pending_call.h"
#include "publish.h"
#include "receive.h"

/* Keep *packet* if it is a response and the callees are not known yet. One is kept for each connection, two of a stream, which can be a part
 * and the end, and a few for each user, so that no user can push out the response of another one. Returns false with errno ENOMEM. */
static inline bool sbus_hold_(struct sbus *bus, struct sbus_call_ *call, const struct sbus_packet *packet) {
    struct sbus_held_ **end, *made;
    const char *start = packet->sender.cred.data; /* the rest that is needed follows it */
    size_t size, of_user = 0, of_connection = 0;
    if (call->is_resolved || packet->kind != SBUS_MESSAGE || !packet->sender.known || !sbus_equal(packet->key, call->ret))
        return true;
    for (end = &call->held; *end; end = &(*end)->next) {
        of_user += (*end)->packet.sender.uid == packet->sender.uid;
        of_connection += (*end)->packet.sender.id == packet->sender.id;
        if (of_connection >= (call->window ? 2 : 1) || of_user >= SBUS_MOST_HELD_)
            return true;
    }
    size = (size_t)(packet->payload.data + packet->payload.size - start);
    made = (struct sbus_held_ *)malloc(sizeof *made + size);
    if (!made) {
        sbus_fail_(bus, ENOMEM, "call failed: no memory for a response");
        return false;
    }
    memcpy(made->bytes, start, size);
    made->next = NULL;
    made->packet = *packet;
    made->packet.key.data = made->bytes + (packet->key.data - start);
    made->packet.payload.data = made->bytes + (packet->payload.data - start);
    made->packet.sender.cred.data = made->bytes;
    if (packet->sender.origin.size)
        made->packet.sender.origin.data = made->bytes + (packet->sender.origin.data - start);
    *end = made;
    return true;
}

/* Return the next packet of a call, after noting in *call* what the bus reports; -1 with errno ETIMEDOUT at the deadline. */
static inline int sbus_call_next_(struct sbus *bus, struct sbus_call_ *call, struct sbus_packet *packet) {
    const char *words = bus->closing_words_;
    struct sbus_bytes key;
    uint64_t id;
    size_t i;
    bool is_late = sbus_now_() >= call->deadline;
    int status = 0, wait_ms = sbus_milliseconds_(call->deadline);
    if (!is_late || call->late++ < SBUS_MOST_LATE_)
        status = sbus_next(bus, packet, wait_ms < 0 ? 60000 : wait_ms);
    if (status == 0 && call->is_sent && bus->fd_ < 0)
        return sbus_fail_(bus, ECONNRESET, "call failed: the connection was lost");
    if (status == 0 && !is_late)
        return 0; /* poll(2) waits for at most a minute at once */
    if (status == 0)
        return sbus_fail_(bus, ETIMEDOUT, "call failed: no response in time%s%s", *words ? "; last error of the bus: " : "", words);
    if (status < 0)
        return -1;
    if (packet->kind == SBUS_RECONNECTED)
        return sbus_fail_(bus, ECONNRESET, "call failed: the connection was lost; it is back");
    if (packet->kind == SBUS_LOST && call->window && call->is_sent)
        return sbus_fail_(bus, EBADMSG, "call failed: the bus discarded messages, and a part of the response can be among them");
    key = packet->key;
    if (packet->kind == SBUS_MESSAGE && sbus_skip_(&key, "!/event/disconnect/") && sbus_id_(&key, 20, &id))
        for (i = 0; i < call->count; i++)
            if (call->members[i].id == id)
                call->members[i].is_gone = true;
    if (packet->kind == SBUS_CONTROL && sbus_equal(packet->key, "!/bus/members"))
        call->is_listed = sbus_read_members_(packet->payload, &call->page, call->ids, SBUS_MOST_LISTED_);
    return sbus_hold_(bus, call, packet) ? 1 : -1;
}

/* Wait until the bus has handled everything that was sent. */
static inline int sbus_call_barrier_(struct sbus *bus, struct sbus_call_ *call) {
    struct sbus_packet packet;
    if (sbus_control(bus, "!/bus/ping", call->uid, strlen(call->uid)) < 0)
        return -1;
    call->is_listed = false;
    for (;;) {
        int status = sbus_call_next_(bus, call, &packet);
        if (status < 0)
            return -1;
        if (status > 0 && packet.kind == SBUS_CONTROL && sbus_equal(packet.key, "!/bus/ping") && sbus_equal(packet.payload, call->uid))
            return 0;
    }
}

/* Ask for the members of *key*; *after* is the number behind which the page begins. */
static inline int sbus_ask_members_(struct sbus *bus, struct sbus_call_ *call, const char *key, uint64_t after) {
    char question[400];
    int size = snprintf(question, sizeof question, "%s%c%llu", key, 0, (unsigned long long)after);
    if (sbus_control(bus, "!/bus/members", question, after ? (size_t)size : strlen(key)) < 0 || sbus_call_barrier_(bus, call) < 0)
        return -1;
    if (call->is_listed)
        return 0;
    return sbus_fail_(bus, EPERM, "call failed: the bus does not list the services: %s",
                      *bus->closing_words_ ? bus->closing_words_ : "packets were lost");
}

/* Connect again if necessary, learn the own address, and subscribe to responses; once for each connection. */
static inline int sbus_call_prepare_(struct sbus *bus, struct sbus_call_ *call) {
    struct sbus_packet packet;
    const struct sbus_saved_ *saved;
    char pattern[90];
    for (saved = bus->saved_; saved; saved = saved->next)
        if (strcmp(saved->verb, "CMSG ") != 0)
            return sbus_fail_(bus, EBUSY, "call failed: the connection has subscriptions; use another one for calls");
    while (bus->fd_ < 0 && bus->options_ & SBUS_RECONNECT) {
        int status = sbus_next(bus, &packet, sbus_milliseconds_(call->deadline));
        if (status < 0)
            return -1;
        if (status == 0 && sbus_now_() >= call->deadline)
            return sbus_fail_(bus, ETIMEDOUT, "call failed: not connected to the bus");
    }
    if (bus->is_calling_)
        return 0;
    if (sbus_set(bus, "sender/on") < 0 || sbus_control(bus, "!/conn/whoami", NULL, 0) < 0 || sbus_call_barrier_(bus, call) < 0)
        return -1;
    if (!bus->id_)
        return sbus_fail_(bus, ENOSYS, "call failed: the bus has no addresses");
    snprintf(pattern, sizeof pattern, "!/conn/%llu/ret/", (unsigned long long)bus->id_);
    if (sbus_send_(bus, "SUB ", pattern, NULL, 0) < 0)
        return -1;
    bus->is_calling_ = true;
    return 0;
}

/* Note the connection *id* as a possible callee. */
static inline void sbus_call_add_(struct sbus_call_ *call, uint64_t id) {
    if (call->count == SBUS_MOST_MEMBERS_)
        return;
    memset(&call->members[call->count], 0, sizeof *call->members);
    call->members[call->count++].id = id;
}

/* Note all connections that get messages with *key* as possible callees. */
static inline int sbus_call_members_(struct sbus *bus, struct sbus_call_ *call, const char *key) {
    uint64_t after = 0;
    size_t i;
    do {
        if (sbus_ask_members_(bus, call, key, after) < 0)
            return -1;
        for (i = 0; i < call->page.count && i < SBUS_MOST_LISTED_; i++)
            sbus_call_add_(call, call->ids[i]);
        if (call->page.next <= after)
            return 0; /* pages go up, and 0 is the last */
        after = call->page.next;
    } while (call->count < SBUS_MOST_MEMBERS_);
    return 0;
}

/* Wait for the receipt of the request, and note the connections that have got it as possible callees. */
static inline int sbus_call_recipients_(struct sbus *bus, struct sbus_call_ *call, const char *key) {
    struct sbus_packet packet;
    uint64_t id;
    int status;
    do {
        status = sbus_call_next_(bus, call, &packet);
        if (status < 0)
            return -1;
    } while (status == 0 || packet.kind != SBUS_RECEIPT || !sbus_equal(packet.token, call->uid));
    if (packet.count == 0 && *bus->closing_words_)
        return sbus_fail_(bus, EPERM, "call failed: %s", bus->closing_words_);
    if (packet.count == 0)
        return sbus_fail_(bus, ENOENT, "call failed: no service for %s", key);
    if (!packet.recipients.size)
        return sbus_call_members_(bus, call, key);
    while (packet.recipients.size && sbus_next_recipient_(&packet.recipients, &id))
        sbus_call_add_(call, id);
    return 0;
}

/* Watch *member*, and find out whether it is a service of *key*. One that has left meanwhile may have been one. */
static inline int sbus_call_look_(struct sbus *bus, struct sbus_call_ *call, struct sbus_member_ *member, const char *key) {
    unsigned long long id = member->id;
    char own[340];
    snprintf(own, sizeof own, "!/event/disconnect/%llu", id);
    if (sbus_send_(bus, "SUB ", own, NULL, 0) < 0)
        return -1;
    snprintf(own, sizeof own, "!/conn/%llu/%s", id, key);
    if (sbus_ask_members_(bus, call, own, 0) < 0)
        return -1;
    member->is_service = call->page.count > 0 && (!call->is_start || call->page.uid == 0 || call->page.uid == (int64_t)geteuid());
    if (member->is_service || call->is_start)
        return 0;
    if (sbus_ask_members_(bus, call, key, id - 1) < 0)
        return -1;
    if (call->page.first != id)
        member->is_service = member->is_gone = true;
    return 0;
}

/* Find the callees of the request that was sent to *key*. */
static inline int sbus_call_callees_(struct sbus *bus, struct sbus_call_ *call, const char *key) {
    size_t i, services = 0;
    if (sbus_call_recipients_(bus, call, key) < 0)
        return -1;
    for (i = 0; i < call->count; i++) {
        if (sbus_call_look_(bus, call, &call->members[i], key) < 0)
            return -1;
        services += call->members[i].is_service;
    }
    call->is_resolved = true;
    return services ? 0 : sbus_fail_(bus, ENOENT, "call failed: no service for %s", key);
}

#endif
