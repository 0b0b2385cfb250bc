/* Services: take requests for commands. Spec: sbus-rpc(7) section 7. See sbus.h(3), Services. */
#ifndef SBUS_SERVICE_H
#define SBUS_SERVICE_H

#include "response.h"

/* Return whether the connection *id* has used the uid of a request before, and remember it. */
static inline bool sbus_is_repeated_(struct sbus *bus, uint64_t id, struct sbus_bytes uid) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a: a collision is possible only with requests of the same connection */
    size_t i;
    for (i = 0; i < uid.size; i++)
        hash = (hash ^ (unsigned char)uid.data[i]) * 1099511628211u;
    for (i = 0; i < SBUS_REMEMBERED_; i++)
        if (bus->requests_[i].id == id && bus->requests_[i].hash == hash)
            return true;
    bus->requests_[bus->next_request_].id = id;
    bus->requests_[bus->next_request_].hash = hash;
    bus->next_request_ = (bus->next_request_ + 1) % SBUS_REMEMBERED_;
    return false;
}

/* Return whether *command* can be the name of a command; of characters that are not printable, only those of ASCII are found. */
static inline bool sbus_is_command_(const char *command) {
    size_t i, size = strlen(command);
    for (i = 0; i < size; i++)
        if ((unsigned char)command[i] < ' ' || command[i] == '*' || command[i] == 0x7f)
            return false;
    return size > 0 && size <= 256 && sbus_is_utf8_(sbus_bytes_(command, size));
}

/* Let the users whose requests the bus has queued take turns, unless the program has chosen an order. */
static inline int sbus_begin_turns_(struct sbus *bus) {
    const struct sbus_saved_ *saved;
    for (saved = bus->saved_; saved; saved = saved->next)
        if (strcmp(saved->verb, "CMSG ") == 0 && strncmp(saved->text, SBUS_ORDER_, sizeof SBUS_ORDER_ - 1) == 0)
            return 0;
    if (sbus_set(bus, SBUS_ORDER_ "fair") < 0)
        return -1;
    bus->has_turns_ = true;
    return 0;
}

/* Leave that order if nothing is served any more: otherwise the answer to a ping would precede requests that have arrived. */
static inline int sbus_end_turns_(struct sbus *bus) {
    const struct sbus_saved_ *saved;
    for (saved = bus->saved_; saved; saved = saved->next)
        if (sbus_is_service_(saved))
            return 0;
    if (!bus->has_turns_)
        return 0;
    bus->has_turns_ = false;
    sbus_forget_(bus, "CMSG ", SBUS_ORDER_, sizeof SBUS_ORDER_ - 1);
    return bus->fd_ < 0 ? 0 : sbus_control(bus, SBUS_ORDER_ "queue", NULL, 0);
}

/* Serve *command* as *kind* of service, SBUS_SERVICE_ or SBUS_SERVICE_ALL_. */
static inline int sbus_serve_as_(struct sbus *bus, const char *kind, const char *command) {
    char pattern[300];
    if (!sbus_is_command_(command))
        return sbus_fail_(bus, EINVAL, "cannot serve: not the name of a command: %.64s", command);
    if (!bus->requests_ && !(bus->requests_ = (struct sbus_seen_ *)calloc(SBUS_REMEMBERED_, sizeof *bus->requests_)))
        return sbus_fail_(bus, ENOMEM, "cannot serve: no memory");
    snprintf(pattern, sizeof pattern, "rpc/%s", command);
    /* The bus reports its own address first: the pattern at this address precedes the other one, so that callers never see only that. */
    if (sbus_set(bus, "sender/on") < 0 || sbus_begin_turns_(bus) < 0 || !sbus_save_(bus, kind, pattern, strlen(pattern)))
        return -1;
    if ((bus->id_ ? sbus_subscribe_service_(bus, kind, true, pattern) : sbus_send_(bus, "CMSG ", "!/conn/whoami", NULL, 0)) == 0)
        return 0;
    sbus_forget_(bus, kind, pattern, strlen(pattern) + 1);
    return -1;
}

/* Serve *command*: its requests arrive as messages, for sbus_take_request(). Of all services of one user, one gets each request. Also after
 * a reconnection. Sets "order/fair", unless the program has set an order.
 *
 * Returns 0, or -1 with errno as for sbus_subscribe(), or EINVAL if the command is empty, too long, or has a '*' or a control character. */
static inline int sbus_serve(struct sbus *bus, const char *command) {
    return sbus_serve_as_(bus, SBUS_SERVICE_, command);
}

/* Serve *command* as sbus_serve() does, but get every request, whether or not other services get it.
 *
 * Returns 0, or -1 with errno as for sbus_serve(). */
static inline int sbus_serve_all(struct sbus *bus, const char *command) {
    return sbus_serve_as_(bus, SBUS_SERVICE_ALL_, command);
}

/* Stop serving *command*: no further requests arrive. Respond to those that have arrived.
 *
 * Returns 0, or -1 with errno as for sbus_publish(), ENOENT if the command is not served. */
static inline int sbus_stop_serving(struct sbus *bus, const char *command) {
    const char *kind = SBUS_SERVICE_;
    char pattern[300];
    snprintf(pattern, sizeof pattern, "rpc/%.256s", command);
    if (!sbus_forget_(bus, kind, pattern, strlen(pattern) + 1)) {
        kind = SBUS_SERVICE_ALL_;
        if (!sbus_forget_(bus, kind, pattern, strlen(pattern) + 1))
            return sbus_fail_(bus, ENOENT, "cannot stop: the command is not served: %.64s", command);
    }
    return sbus_flush(bus) < 0 || sbus_end_turns_(bus) < 0 ? -1 : bus->id_ ? sbus_subscribe_service_(bus, kind, false, pattern) : 0;
}

/* Return whether a message is not a request for this service: other services share the request with it, but the message was not delivered
 * to it as a member of their group. A program gets such messages if it also subscribes to a pattern that matches requests. */
static inline bool sbus_is_for_others_(const struct sbus *bus, const struct sbus_packet *packet, const char *command) {
    char pattern[300];
    if (packet->group.size || !sbus_starts(packet->key, "rpc/"))
        return false;
    snprintf(pattern, sizeof pattern, "rpc/%.256s", command);
    return sbus_is_saved_(bus, SBUS_SERVICE_, pattern) && !sbus_is_saved_(bus, SBUS_SERVICE_ALL_, pattern);
}

/* Read *packet* as a request for *command*, and check it. The payload of the packet changes.
 *
 * Returns 1 if the request has to be run, and then responded to by sbus_respond(), sbus_respond_error() or sbus_respond_end(). 0 if the packet
 * is not a request for this command; it can cancel one, or accept more parts of its response. Or -1 with errno EBADMSG, EACCES, EALREADY,
 * ETIME, EBUSY or ENOMEM if the request must not be run; nothing remains to be done. */
static inline int sbus_take_request(struct sbus *bus, const struct sbus_packet *packet, const char *command, struct sbus_request *request) {
    struct sbus_envelope_ envelope;
    struct sbus_open_request_ *open;
    struct sbus_bytes key = packet->key;
    unsigned long long id = packet->sender.id;
    char own[40], address[40];
    snprintf(own, sizeof own, "!/conn/%llu/", (unsigned long long)bus->id_);
    sbus_skip_(&key, own);
    if (packet->kind != SBUS_MESSAGE || !sbus_skip_(&key, "rpc/") || !sbus_equal(key, command) || !bus->requests_)
        return 0;
    if (sbus_is_for_others_(bus, packet, command))
        return 0;
    if (!packet->sender.known)
        return sbus_fail_(bus, EBADMSG, "discarded a request without a sender");
    if (!sbus_envelope_parse_(packet->payload, &envelope) || !sbus_equal(envelope.cmd, command) || envelope.err.size)
        return sbus_fail_(bus, EBADMSG, "discarded a malformed request of connection %llu", id);
    snprintf(address, sizeof address, "!/conn/%llu/", id);
    if (envelope.ret.size && !sbus_starts(envelope.ret, address))
        return sbus_fail_(bus, EACCES, "discarded a request of connection %llu: its response would go elsewhere", id);
    if (envelope.cancel || envelope.more) {
        sbus_open_follow_(bus, packet->sender.id, envelope.uid, command, envelope.cancel, envelope.win);
        return 0;
    }
    if (sbus_is_repeated_(bus, packet->sender.id, envelope.uid))
        return sbus_fail_(bus, EALREADY, "discarded a request that connection %llu has sent before", id);
    request->caller = packet->sender;
    request->data = envelope.dat;
    request->number_ = 0;
    snprintf(request->context, sizeof request->context, "%.*s", (int)envelope.ctx.size, envelope.ctx.data);
    snprintf(request->uid_, sizeof request->uid_, "%.*s", (int)envelope.uid.size, envelope.uid.data);
    snprintf(request->cmd_, sizeof request->cmd_, "%s", command);
    snprintf(request->ret_, sizeof request->ret_, "%.*s", (int)envelope.ret.size, envelope.ret.data);
    if (envelope.exp && envelope.now && (uint64_t)time(NULL) >= envelope.now + envelope.exp + 1) {
        sbus_send_error_(bus, request, "expired");
        return sbus_fail_(bus, ETIME, "did not run an expired request of connection %llu", id);
    }
    if (!*request->ret_)
        return 1; /* no response is wanted, so none has to be cancelled */
    if (sbus_open_count_(bus, packet->sender.uid, false) >= SBUS_MOST_OPEN_) {
        sbus_send_error_(bus, request, "busy");
        return sbus_fail_(bus, EBUSY, "did not run a request of connection %llu: %d requests of its user wait for responses", id,
                          SBUS_MOST_OPEN_);
    }
    open = sbus_open_add_(bus, &packet->sender, envelope.uid, command, envelope.win);
    if (!open) {
        sbus_send_error_(bus, request, "no memory");
        return sbus_fail_(bus, ENOMEM, "did not run a request of connection %llu: no memory", id);
    }
    request->number_ = open->number;
    return 1;
}

#endif
