/* Streams: responses of services in parts. Spec: sbus-rpc(7) section 3, A stream. See sbus.h(3), Streams.
 *
 * A part is read when the program asks for it, so no part is queued here: at most the window of them is in the bus or in the socket. If a
 * service sends more, the queue of the bus can overflow, and its loss notice ends the stream. */
#ifndef SBUS_STREAM_H
#define SBUS_STREAM_H

#include "call.h"

/* Begin a call of *command* whose response can have parts, of which at most *window* are on the way, 1 to 1024. As sbus_call_start(). Then
 * call sbus_stream_next() until it does not return 1, or sbus_call_cancel(). */
static inline int sbus_stream_start(struct sbus *bus, const char *command, const void *data, size_t size, const char *context,
                                    unsigned window, int timeout_ms) {
    if (window < 1 || window > SBUS_MOST_GRANTED_)
        return sbus_fail_(bus, EINVAL, "call failed: invalid window %u: must be 1 to %u", window, SBUS_MOST_GRANTED_);
    return sbus_call_begin_(bus, command, sbus_bytes_(size ? (const char *)data : "", size), context, window, timeout_ms);
}

/* Cancel the request at other services than the one that streams, and accept more parts if the program has taken half of the window. */
static inline int sbus_stream_accept_more_(struct sbus *bus, struct sbus_call_ *call) {
    uint64_t granted = call->expected - 1 + call->window;
    if (!call->callee)
        return 0;
    if (sbus_call_withdraw_(bus, call, call->callee) < 0)
        return -1;
    if (2 * (granted - call->granted) < call->window)
        return 0;
    if (sbus_call_tell_(bus, call, call->callee, granted) < 0)
        return -1;
    call->granted = granted;
    return 0;
}

/* Handle a response of the callee. Returns 1 if it is a part, 0 if it is the end, -1 with errno EBADMSG if the stream cannot go on. */
static inline int sbus_stream_check_(struct sbus *bus, struct sbus_call_ *call, const struct sbus_envelope_ *envelope) {
    unsigned long long part = envelope->seq, expected = call->expected;
    if (!envelope->seq && call->expected == 1) {
        call->has_ended = true; /* the service does not stream */
        return 1;
    }
    if (envelope->seq != call->expected)
        return sbus_fail_(bus, EBADMSG, "call failed: part %llu of the response is missing; part %llu came", expected, part);
    if (!envelope->more) {
        call->has_ended = true;
        return 0;
    }
    call->expected++; /* it was accepted: that precedes the wait for it */
    return 1;
}

/* Forget the stream at its end. */
static inline int sbus_stream_end_(struct sbus *bus, struct sbus_call_ *call) {
    if (sbus_call_withdraw_(bus, call, call->callee) < 0 && (errno == EAGAIN || errno == ENOMEM))
        return -1;
    sbus_call_close_(bus);
    return 0;
}

/* Wait for the next part, for at most *timeout_ms* milliseconds, -1: without a limit. A response of a service that does not stream is a
 * single part.
 *
 * Returns 1 with a part; 0 after the last one; or -1 with errno ETIMEDOUT if none came in time, EINTR after a signal, or EAGAIN with
 * SBUS_NONBLOCK if the socket is full: then wait again, or cancel the stream. Or EBADMSG if a part is missing or invalid, or as for
 * sbus_call_wait(): then the stream has ended. */
static inline int sbus_stream_next(struct sbus *bus, int timeout_ms, struct sbus_reply *part) {
    struct sbus_call_ *call = bus->call_;
    struct sbus_envelope_ envelope;
    int status;
    memset(part, 0, sizeof *part);
    if (!call || !call->window)
        return sbus_fail_(bus, EINVAL, "not received: no stream on this connection is open");
    if (call->has_ended)
        return sbus_stream_end_(bus, call);
    sbus_call_limit_(call, timeout_ms);
    if (sbus_stream_accept_more_(bus, call) < 0 && (errno == EAGAIN || errno == ENOMEM))
        return -1; /* another failure is seen when the socket is read */
    if (sbus_call_receive_(bus, call, part, &envelope) < 0)
        return errno == ETIMEDOUT || errno == EINTR ? -1 : sbus_call_drop_(bus);
    status = sbus_stream_check_(bus, call, &envelope);
    if (status < 0)
        return sbus_call_drop_(bus);
    if (status == 0) {
        memset(part, 0, sizeof *part);
        return sbus_stream_end_(bus, call);
    }
    (void)sbus_call_withdraw_(bus, call, call->callee); /* at other services; the next call tries again */
    return 1;
}

#endif
