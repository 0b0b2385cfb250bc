/* Responses of services, whole or in parts, and whether they are still wanted. Spec: sbus-rpc(7) section 7. See sbus.h(3), Services. */
#ifndef SBUS_RESPONSE_H
#define SBUS_RESPONSE_H

#include "envelope.h"
#include "open_request.h"
#include "publish.h"

/* A request to run. *caller* and *data* are valid until the next call of sbus_next(). */
struct sbus_request {
    struct sbus_sender caller;           /* as the bus has named it */
    struct sbus_bytes data;              /* the argument */
    char context[SBUS_CONTEXT_BYTES + 1]; /* the trace context, a W3C traceparent; empty if there is none. It proves nothing */
    uint64_t number_;
    char uid_[129], cmd_[257], ret_[4097];
};

/* Send a response: *error*, or *data*; *part* is its number, 0 if it is whole, and *more* whether others follow. */
static inline int sbus_send_response_(struct sbus *bus, const struct sbus_request *request, const char *error, struct sbus_bytes data,
                                      uint64_t part, bool more) {
    struct sbus_envelope_ envelope = sbus_empty_envelope_();
    size_t size;
    int status;
    char *json;
    if (!*request->ret_)
        return 0; /* the caller wants no response */
    envelope.now = (uint64_t)time(NULL);
    envelope.uid = sbus_bytes_(request->uid_, strlen(request->uid_));
    envelope.cmd = sbus_bytes_(request->cmd_, strlen(request->cmd_));
    envelope.seq = part;
    envelope.more = more;
    if (error)
        envelope.err = sbus_bytes_(error, strlen(error) < 4000 ? strlen(error) : 4000);
    else if (data.size)
        envelope.dat = data;
    json = sbus_envelope_write_(&envelope, &size);
    if (!json)
        return sbus_fail_(bus, errno, "no response sent: %s", strerror(errno));
    status = sbus_flush(bus) < 0 ? -1 : sbus_send_(bus, "MSG ", request->ret_, json, size);
    free(json);
    return status;
}

static inline int sbus_send_error_(struct sbus *bus, const struct sbus_request *request, const char *words) {
    return sbus_send_response_(bus, request, words, sbus_bytes_("", 0), 0, false);
}

/* Put the open request into *open*, NULL if the caller does not wait for a response. A request that is cancelled is forgotten.
 *
 * Returns 0, or -1 with errno EALREADY if it has been responded to, EBADMSG if its stream cannot go on: the caller gets an error then. */
static inline int sbus_find_request_(struct sbus *bus, const struct sbus_request *request, struct sbus_open_request_ **open) {
    *open = NULL;
    if (!*request->ret_)
        return 0;
    *open = sbus_open_find_(bus, request->number_);
    if (!*open)
        return sbus_fail_(bus, EALREADY, "no response sent: the request has been responded to, or was cancelled");
    if ((*open)->is_cancelled) {
        sbus_open_close_(bus, request->number_);
        *open = NULL;
        return 0;
    }
    if (!(*open)->is_broken)
        return 0;
    if (sbus_send_error_(bus, request, "the bus discarded messages to the service") < 0 && errno == EAGAIN)
        return -1;
    sbus_open_close_(bus, request->number_);
    return sbus_fail_(bus, EBADMSG, "no response sent: messages of the caller are lost; it has got an error");
}

/* End the request with a response. It stays open if the program can try again. */
static inline int sbus_finish_(struct sbus *bus, const struct sbus_request *request, const char *error, struct sbus_bytes data,
                               uint64_t part) {
    int status = sbus_send_response_(bus, request, error, data, part, false), reason = errno;
    if (status == 0 || (reason != EAGAIN && reason != EMSGSIZE && reason != ENOMEM))
        sbus_open_close_(bus, request->number_);
    errno = reason;
    return status;
}

/* Return whether the caller of *request* has cancelled it or has disconnected, or its stream cannot go on. The first question makes the bus
 * report the end of the caller; what the bus responds is read by sbus_next(). */
static inline bool sbus_request_cancelled(struct sbus *bus, const struct sbus_request *request) {
    struct sbus_open_request_ *open = *request->ret_ ? sbus_open_find_(bus, request->number_) : NULL;
    if (!open)
        return false;
    if (!open->is_cancelled && !open->is_sure)
        sbus_open_watch_(bus, open, request->ret_); /* after a failure, the next question tries again */
    return open->is_cancelled || open->is_broken;
}

/* Respond with an error, in words for the caller: UTF-8, not empty. It also ends a stream.
 *
 * Returns 0, also if the request was cancelled, which then gets no response. Or -1 with errno as for sbus_publish(), ENOMEM, EALREADY or
 * EBADMSG. After EAGAIN and ENOMEM, try again. */
static inline int sbus_respond_error(struct sbus *bus, const struct sbus_request *request, const char *words) {
    struct sbus_open_request_ *open;
    int status = sbus_find_request_(bus, request, &open);
    return status < 0 || !open ? status : sbus_finish_(bus, request, *words ? words : "failed", request->data, 0);
}

/* Respond with *size* bytes of *data*.
 *
 * Returns 0, or -1 with errno as for sbus_respond_error(), EINVAL after a part. After EMSGSIZE, when the result is too long, the caller has
 * got an error. */
static inline int sbus_respond(struct sbus *bus, const struct sbus_request *request, const void *data, size_t size) {
    struct sbus_open_request_ *open;
    int status = sbus_find_request_(bus, request, &open);
    if (status < 0 || !open)
        return status;
    if (open->sent)
        return sbus_fail_(bus, EINVAL, "no response sent: the caller has got parts; end the stream with sbus_respond_end()");
    status = sbus_finish_(bus, request, NULL, sbus_bytes_((const char *)data, size), 0);
    if (status < 0 && errno == EMSGSIZE && sbus_finish_(bus, request, "the result is too long", request->data, 0) == 0)
        return sbus_fail_(bus, EMSGSIZE, "the result is too long; the caller has got an error");
    return status;
}

/* Respond with the error *words* to a request whose response cannot be a stream, and fail with *error*. */
static inline int sbus_refuse_stream_(struct sbus *bus, const struct sbus_request *request, int error, const char *words) {
    if (sbus_finish_(bus, request, words, request->data, 0) < 0 && (errno == EAGAIN || errno == ENOMEM))
        return -1;
    return sbus_fail_(bus, error, "no part sent: %s", words);
}

/* Find the stream of *request*, and begin it if no part was sent. Returns 0, or -1 with errno as for sbus_respond_part(). */
static inline int sbus_find_stream_(struct sbus *bus, const struct sbus_request *request, struct sbus_open_request_ **open) {
    char words[320];
    int status = sbus_find_request_(bus, request, open);
    if (status < 0)
        return -1;
    if (!*request->ret_)
        return sbus_fail_(bus, EOPNOTSUPP, "no part sent: the caller wants no response");
    if (!*open)
        return sbus_fail_(bus, ECANCELED, "no part sent: the caller has cancelled the request or has disconnected");
    if (!(*open)->granted) {
        snprintf(words, sizeof words, "%s streams its response: call it with stream()", request->cmd_);
        return sbus_refuse_stream_(bus, request, EOPNOTSUPP, words);
    }
    if ((*open)->sent || sbus_open_count_(bus, (*open)->user, true) < SBUS_MOST_STREAMS_)
        return 0;
    snprintf(words, sizeof words, "busy: %d streams of user %lld are open", SBUS_MOST_STREAMS_, (long long)(*open)->user);
    return sbus_refuse_stream_(bus, request, EBUSY, words);
}

/* Return how many parts the caller accepts now. It accepts more while it reads: ask again when sbus_take_request() has returned 0. */
static inline unsigned sbus_parts_accepted(const struct sbus *bus, const struct sbus_request *request) {
    const struct sbus_open_request_ *open = *request->ret_ ? sbus_open_find_(bus, request->number_) : NULL;
    return open && !open->is_cancelled && !open->is_broken ? (unsigned)(open->granted - open->sent) : 0;
}

/* Respond with a part of *size* bytes; others, or the end, follow.
 *
 * Returns 0, or -1 with errno EAGAIN if the caller does not accept it yet, or the socket is full with SBUS_NONBLOCK; EMSGSIZE if the part is
 * too long, or ENOMEM: the stream goes on then. Or ECANCELED, EOPNOTSUPP if the caller accepts no parts, EBUSY if too many streams of its
 * user are open, EALREADY, EBADMSG, or as for sbus_publish(): the request has ended then. */
static inline int sbus_respond_part(struct sbus *bus, const struct sbus_request *request, const void *data, size_t size) {
    struct sbus_open_request_ *open;
    int error;
    if (sbus_find_stream_(bus, request, &open) < 0)
        return -1;
    if (open->sent >= open->granted)
        return sbus_fail_(bus, EAGAIN, "no part sent: the caller does not accept part %llu yet", (unsigned long long)open->sent + 1);
    if (sbus_send_response_(bus, request, NULL, sbus_bytes_((const char *)data, size), open->sent + 1, true) < 0) {
        error = errno;
        if (error != EAGAIN && error != EMSGSIZE && error != ENOMEM)
            sbus_open_close_(bus, request->number_);
        errno = error;
        return -1;
    }
    /* A stream that waits for its caller has to be notified if the caller disconnects. After a failure, sbus_request_cancelled() tries again. */
    if (++open->sent == open->granted && !open->is_sure)
        sbus_open_watch_(bus, open, request->ret_);
    return 0;
}

/* End a stream, which can have no part. Returns 0, or -1 with errno as for sbus_respond_part(). */
static inline int sbus_respond_end(struct sbus *bus, const struct sbus_request *request) {
    struct sbus_open_request_ *open;
    if (sbus_find_stream_(bus, request, &open) < 0)
        return -1;
    return sbus_finish_(bus, request, NULL, sbus_bytes_("", 0), open->sent + 1);
}

#endif
