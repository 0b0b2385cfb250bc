/* Calls: run a command in a service. Spec: sbus-rpc(7) sections 3 to 5, and 7 about cancellation. See sbus.h(3), Calls. */
#ifndef SBUS_CALL_H
#define SBUS_CALL_H

#include "callees.h"
#include "service.h"

#define SBUS_START_ "trigger/start/" /* begins the commands that start services of others */
#define SBUS_MOST_STARTS_ 3          /* of a call: a service may end before the request arrives */

/* A response, or a part of one. It is valid until the next call of sbus_next(), or of a function that begins a call or waits for it. */
struct sbus_reply {
    struct sbus_sender callee;
    struct sbus_bytes data;
};

/* Send a message about the request, which services do not run: it cancels the request, or accepts parts up to number *granted*. *callee* is
 * 0 while the callees are not known. */
static inline int sbus_call_tell_(struct sbus *bus, const struct sbus_call_ *call, uint64_t callee, uint64_t granted) {
    struct sbus_envelope_ envelope = sbus_empty_envelope_();
    char key[310], *json;
    size_t size;
    int status;
    snprintf(key, sizeof key, "!/conn/%llu/%s", (unsigned long long)callee, call->key);
    envelope.exp = envelope.now = 1; /* it expired in 1970 */
    envelope.uid = sbus_bytes_(call->uid, strlen(call->uid));
    envelope.cmd = sbus_bytes_(call->key + 4, strlen(call->key + 4));
    envelope.cancel = !granted;
    envelope.more = granted > 0;
    envelope.win = granted;
    json = sbus_envelope_write_(&envelope, &size);
    if (!json)
        return sbus_fail_(bus, errno, "call failed: %s", strerror(errno));
    status = sbus_flush(bus) < 0 ? -1 : sbus_send_(bus, "MSG ", callee ? key : call->key, json, size);
    free(json);
    return status;
}

/* Cancel the request at its callees, except *chosen*, which is 0 for none. Returns 0, or -1 with errno if some of them are left. */
static inline int sbus_call_withdraw_(struct sbus *bus, struct sbus_call_ *call, uint64_t chosen) {
    size_t i;
    if (!call->is_sent)
        return 0;
    if (!call->is_resolved)
        return sbus_call_tell_(bus, call, 0, 0);
    for (i = 0; i < call->count; i++) {
        struct sbus_member_ *member = &call->members[i];
        if (!member->is_service || member->is_gone || member->id == chosen)
            continue;
        if (sbus_call_tell_(bus, call, member->id, 0) < 0)
            return -1;
        member->is_service = false;
    }
    return 0;
}

/* Forget the call that has not ended. */
static inline void sbus_call_close_(struct sbus *bus) {
    struct sbus_call_ *call = bus->call_;
    char pattern[60];
    size_t i;
    for (i = 0; bus->fd_ >= 0 && bus->is_calling_ && i < call->count; i++) {
        snprintf(pattern, sizeof pattern, "UNSUB " SBUS_DISCONNECTED_ "%llu", (unsigned long long)call->members[i].id);
        (void)send(bus->fd_, pattern, strlen(pattern), MSG_NOSIGNAL | (bus->options_ & SBUS_NONBLOCK ? MSG_DONTWAIT : 0));
    }
    sbus_call_free_(call);
    bus->call_ = NULL;
}

/* Forget the call after a failure, whose errno and text remain. A service that can still run the request is notified, if the socket accepts
 * that. */
static inline int sbus_call_drop_(struct sbus *bus) {
    char text[sizeof bus->text_];
    int error = errno;
    memcpy(text, bus->text_, sizeof text);
    if (bus->fd_ >= 0 && bus->is_calling_ && error != EPERM && (error != EREMOTEIO || bus->call_->callee))
        (void)sbus_call_withdraw_(bus, bus->call_, error == EREMOTEIO ? bus->call_->callee : 0);
    sbus_call_close_(bus);
    memcpy(bus->text_, text, sizeof text);
    errno = error;
    return -1;
}

/* Return 1 if *packet* is the response of a callee, which is read into *envelope*; -1 with errno if that is an error, else 0. */
static inline int sbus_call_check_(struct sbus *bus, struct sbus_call_ *call, const struct sbus_packet *packet,
                                   struct sbus_envelope_ *envelope) {
    bool is_callee = call->callee && call->callee == packet->sender.id;
    size_t i;
    if (packet->kind != SBUS_MESSAGE || !packet->sender.known || !sbus_equal(packet->key, call->ret))
        return 0;
    for (i = 0; !call->callee && i < call->count && !is_callee; i++)
        is_callee = call->members[i].is_service && call->members[i].id == packet->sender.id;
    if (!is_callee || !sbus_envelope_parse_(packet->payload, envelope) || !sbus_equal(envelope->uid, call->uid))
        return 0;
    call->callee = call->window ? packet->sender.id : 0; /* the first callee that responds goes on with a stream */
    if (envelope->err.size) {
        sbus_note_refusal_(bus, envelope->err);
        return sbus_fail_(bus, EREMOTEIO, "call failed in the service: %s", bus->closing_words_);
    }
    return 1;
}

/* Return whether a callee that can respond is still connected. */
static inline bool sbus_call_has_callee_(const struct sbus_call_ *call) {
    size_t i;
    for (i = 0; i < call->count; i++)
        if (call->members[i].is_service && !call->members[i].is_gone && (!call->callee || call->callee == call->members[i].id))
            return true;
    return false;
}

/* Wait until the deadline for a response of a callee: first look at those that have arrived before the callees were known. */
static inline int sbus_call_receive_(struct sbus *bus, struct sbus_call_ *call, struct sbus_reply *reply, struct sbus_envelope_ *envelope) {
    struct sbus_packet packet;
    struct sbus_held_ *held;
    int status = 0;
    free(bus->reply_);
    bus->reply_ = NULL;
    while (status == 0 && (held = call->held) != NULL) {
        call->held = held->next;
        packet = held->packet;
        status = sbus_call_check_(bus, call, &packet, envelope);
        if (status == 1)
            bus->reply_ = held;
        else
            free(held);
    }
    while (status == 0) {
        if (!sbus_call_has_callee_(call))
            return sbus_fail_(bus, ECONNABORTED, "call failed: the service has disconnected");
        status = sbus_call_next_(bus, call, &packet);
        if (status > 0)
            status = sbus_call_check_(bus, call, &packet, envelope);
    }
    if (status < 0)
        return -1;
    reply->callee = packet.sender;
    reply->data = envelope->dat;
    return 0;
}

/* Send the request and find its callees. */
static inline int sbus_call_send_(struct sbus *bus, struct sbus_call_ *call, struct sbus_bytes data, const char *context, int seconds) {
    struct sbus_envelope_ envelope = sbus_empty_envelope_();
    size_t size;
    int status;
    char *json;
    if (sbus_call_prepare_(bus, call) < 0)
        return -1;
    snprintf(call->ret, sizeof call->ret, "!/conn/%llu/ret/%s", (unsigned long long)bus->id_, call->uid);
    envelope.exp = (uint64_t)seconds;
    envelope.now = (uint64_t)time(NULL);
    envelope.uid = sbus_bytes_(call->uid, strlen(call->uid));
    envelope.cmd = sbus_bytes_(call->key + 4, strlen(call->key + 4));
    envelope.ret = sbus_bytes_(call->ret, strlen(call->ret));
    envelope.dat = data;
    envelope.win = call->granted;
    if (context)
        envelope.ctx = sbus_bytes_(context, strlen(context));
    json = sbus_envelope_write_(&envelope, &size);
    if (!json)
        return sbus_fail_(bus, errno, "call failed: %s", strerror(errno));
    status = sbus_publish_for_(bus, "receipt/recipients", call->key, json, size, call->uid);
    free(json);
    call->is_sent = status == 0;
    return call->is_sent ? sbus_call_callees_(bus, call, call->key) : -1;
}

/* Make the id of a request that other clients cannot guess. */
static inline int sbus_call_uid_(char *uid) {
    unsigned char bytes[16];
    int i, fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
    if (fd >= 0)
        close(fd);
    if (size != (ssize_t)sizeof bytes)
        return -1;
    for (i = 0; i < 16; i++)
        snprintf(uid + 2 * i, 3, "%02x", (unsigned)bytes[i]);
    return 0;
}

/* Set how long the call can wait now. */
static inline void sbus_call_limit_(struct sbus_call_ *call, int timeout_ms) {
    call->deadline = timeout_ms < 0 ? INT64_MAX : sbus_now_() + (int64_t)timeout_ms * 1000000;
    call->late = 0;
}

/* Wait for the response until the deadline. */
static inline int sbus_call_end_(struct sbus *bus, struct sbus_reply *reply) {
    struct sbus_envelope_ envelope;
    memset(reply, 0, sizeof *reply);
    if (sbus_call_receive_(bus, bus->call_, reply, &envelope) == 0) {
        sbus_call_close_(bus);
        return 0;
    }
    return errno == ETIMEDOUT || errno == EINTR ? -1 : sbus_call_drop_(bus);
}

/* Begin a call, of a stream if *window* is not 0. If it *is_start*, only triggers that may start a service are its callees. */
static inline int sbus_call_open_(struct sbus *bus, const char *command, struct sbus_bytes data, const char *context, unsigned window,
                                  int timeout_ms, bool is_start) {
    struct sbus_call_ *call;
    if (!sbus_is_command_(command) || timeout_ms <= 0)
        return sbus_fail_(bus, EINVAL, "call failed: not the name of a command, or no timeout: %.64s", command);
    if (context && !sbus_is_context_(sbus_bytes_(context, strlen(context))))
        return sbus_fail_(bus, EINVAL, "call failed: the context is not a W3C traceparent: %.64s", context);
    if (bus->call_)
        return sbus_fail_(bus, EBUSY, "call failed: another call on this connection has not ended");
    call = (struct sbus_call_ *)calloc(1, sizeof *call);
    if (call)
        call->members = (struct sbus_member_ *)malloc(SBUS_MOST_MEMBERS_ * sizeof *call->members);
    if (!call || !call->members || sbus_call_uid_(call->uid) < 0) {
        sbus_call_free_(call);
        return sbus_fail_(bus, ENOMEM, "call failed: no memory, or no random numbers");
    }
    bus->call_ = call;
    bus->closing_words_[0] = 0;
    snprintf(call->key, sizeof call->key, "rpc/%s", command);
    call->deadline = sbus_now_() + (int64_t)timeout_ms * 1000000;
    call->is_start = is_start;
    call->window = window;
    call->expected = 1;
    call->granted = window ? 1 : 0; /* of each service: only one of them sends the next part */
    return sbus_call_send_(bus, call, data, context, timeout_ms / 1000 + 1) < 0 ? sbus_call_drop_(bus) : 0;
}

/* Return the milliseconds until *deadline*, 0 if it has passed. */
static inline int sbus_call_left_(int64_t deadline) {
    int64_t left = deadline - sbus_now_();
    return left > 0 ? (int)((left + 999999) / 1000000) : 0;
}

/* Let sbus-trigger start a service of *command* until *deadline*. Returns 0 when there is one, or -1 with errno: ENOENT if it cannot. */
static inline int sbus_call_have_started_(struct sbus *bus, const char *command, int64_t deadline) {
    char start[300], words[sizeof bus->closing_words_];
    struct sbus_reply reply;
    int status, left = sbus_call_left_(deadline);
    if (left <= 0)
        return sbus_fail_(bus, ETIMEDOUT, "call failed: no response in time");
    snprintf(start, sizeof start, SBUS_START_ "%s", command);
    if (!sbus_is_command_(start))
        return sbus_fail_(bus, ENOENT, "call failed: no service for rpc/%s", command);
    status = sbus_call_open_(bus, start, sbus_bytes_("", 0), NULL, 0, left, true);
    if (status == 0 && (status = sbus_call_end_(bus, &reply)) < 0 && bus->call_)
        status = sbus_call_drop_(bus);
    if (status == 0)
        return 0;
    if (errno == ENOENT || errno == EPERM)
        return sbus_fail_(bus, ENOENT, "call failed: no service for rpc/%s", command);
    if (errno == ECONNABORTED)
        return sbus_fail_(bus, ENOENT, "call failed: no service for rpc/%s: sbus-trigger has disconnected while it started a service",
                          command);
    if (errno != EREMOTEIO)
        return -1;
    memcpy(words, bus->closing_words_, sizeof words);
    return sbus_fail_(bus, ENOENT, "call failed: no service for rpc/%s: %s", command, words);
}

/* Do as sbus_call_open_(). If the command has no service, let one be started, and send the request again. */
static inline int sbus_call_begin_(struct sbus *bus, const char *command, struct sbus_bytes data, const char *context, unsigned window,
                                   int timeout_ms) {
    int64_t deadline = sbus_now_() + (int64_t)timeout_ms * 1000000;
    int starts;
    for (starts = 0;; starts++) {
        int left = starts ? sbus_call_left_(deadline) : timeout_ms;
        if (starts && left <= 0)
            return sbus_fail_(bus, ETIMEDOUT, "call failed: no response in time");
        if (sbus_call_open_(bus, command, data, context, window, left, false) == 0)
            return 0;
        if (errno != ENOENT || starts == SBUS_MOST_STARTS_ || sbus_call_have_started_(bus, command, deadline) < 0)
            return -1;
    }
}

/* Begin a call of *command*: send the request with *data*, and with the trace context *context* unless that is NULL, and find the services.
 * The connection must not have subscriptions. The request expires after *timeout_ms* milliseconds, which must be more than 0. Then call
 * sbus_call_wait() or sbus_call_cancel(), and before that no other function that receives.
 *
 * Returns 0, or -1 with errno ENOENT, ETIMEDOUT, EPERM, EBUSY, EINVAL, EMSGSIZE, ENOMEM, or as for sbus_next(): then the call has ended. */
static inline int sbus_call_start(struct sbus *bus, const char *command, const void *data, size_t size, const char *context,
                                  int timeout_ms) {
    return sbus_call_begin_(bus, command, sbus_bytes_(size ? (const char *)data : "", size), context, 0, timeout_ms);
}

/* Wait for the response of the call that sbus_call_start() has begun, for at most *timeout_ms* milliseconds, -1: without a limit.
 *
 * Returns 0 with the response, or -1 with errno ETIMEDOUT if none came in time, or EINTR after a signal: then wait again, or cancel the
 * call. Or ECONNABORTED, EREMOTEIO, ENOMEM, or as for sbus_next(), EINVAL if none has begun: then the call has ended. */
static inline int sbus_call_wait(struct sbus *bus, int timeout_ms, struct sbus_reply *reply) {
    if (!bus->call_ || bus->call_->window)
        return sbus_fail_(bus, EINVAL, "not received: no call on this connection waits for its response");
    sbus_call_limit_(bus->call_, timeout_ms);
    return sbus_call_end_(bus, reply);
}

/* Cancel the call or the stream of this connection, if there is one that has not ended: its services are notified.
 *
 * Returns 0, or -1 with errno EAGAIN with SBUS_NONBLOCK if the socket is full, or ENOMEM: then try again. */
static inline int sbus_call_cancel(struct sbus *bus) {
    if (!bus->call_)
        return 0;
    if (bus->fd_ >= 0 && bus->is_calling_ && sbus_call_withdraw_(bus, bus->call_, bus->call_->has_ended ? bus->call_->callee : 0) < 0 &&
        (errno == EAGAIN || errno == ENOMEM))
        return -1;
    sbus_call_close_(bus); /* without a connection, the bus has reported its end to the services */
    return 0;
}

/* Do as sbus_call(), with the trace context *context* unless that is NULL. */
static inline int sbus_call_traced(struct sbus *bus, const char *command, const void *data, size_t size, const char *context,
                                   int timeout_ms, struct sbus_reply *reply) {
    memset(reply, 0, sizeof *reply);
    if (sbus_call_start(bus, command, data, size, context, timeout_ms) < 0)
        return -1;
    if (sbus_call_end_(bus, reply) == 0)
        return 0;
    return bus->call_ ? sbus_call_drop_(bus) : -1;
}

/* Call *command* with *data*, and wait for at most *timeout_ms* milliseconds, which must be more than 0. The connection must not have
 * subscriptions. A call without a response in time, or that a signal interrupts, is cancelled.
 *
 * Returns 0 with the response of a service, or -1 with errno ENOENT, ECONNABORTED, EREMOTEIO, ETIMEDOUT, EPERM, EBUSY, EINVAL, EMSGSIZE,
 * ENOMEM, or as for sbus_next(). */
static inline int sbus_call(struct sbus *bus, const char *command, const void *data, size_t size, int timeout_ms,
                            struct sbus_reply *reply) {
    return sbus_call_traced(bus, command, data, size, NULL, timeout_ms, reply);
}

#endif
