/* Packets that a client receives: their kinds and parts. No I/O. Spec: sbus-protocol(7) sections 2, 6 and 8. */
#ifndef SBUS_PACKET_H
#define SBUS_PACKET_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The longest packet that the bus accepts. */
#define SBUS_PACKET_BYTES 409600u
/* The longest batch that the bus and its clients make. */
#define SBUS_BATCH_BYTES 65536u

/* Bytes in the memory of another object. They can contain NUL, and no NUL needs to follow. */
struct sbus_bytes {
    const char *data;
    size_t size;
};

enum sbus_kind {
    SBUS_MESSAGE = 1, /* key, payload; sender with SBUS_SENDERS; group if it is for a member of a queue group */
    SBUS_LOST,        /* count messages are missing here, 0: an unknown number */
    SBUS_REPLACED,    /* count messages were replaced by newer ones with the same keys */
    SBUS_RECEIPT,     /* token; count of recipients, -1: unknown; recipients, if they were requested */
    SBUS_REFUSED,     /* error, 0 if the code is unknown; payload: code and words of the bus; of a message also NUL and its key */
    SBUS_RECONNECTED, /* not from the bus: sbus_next() has connected again */
    SBUS_BATCH,       /* payload: the packets; sbus_next() returns them one by one instead */
    SBUS_CONTROL,     /* any other control message: key, payload */
    SBUS_SUBSCRIBE,   /* key: the pattern; only from clients */
    SBUS_UNSUBSCRIBE  /* key: the pattern; only from clients */
};

/* The publisher of a message, as the bus knows it. */
struct sbus_sender {
    bool known;               /* whether the bus has named it; if not, the rest is 0 */
    uint64_t id;              /* number of its connection; 0: the bus itself */
    int64_t uid, gid, pid;    /* -1 if there is an origin: the author is not a user of this host */
    struct sbus_bytes cred;   /* credentials of the connection, in the form of !/cred/whoami */
    struct sbus_bytes origin; /* for messages that the connection passes on: from where; else empty */
};

struct sbus_packet {
    enum sbus_kind kind;
    int error;
    int64_t count;
    bool has_payload; /* whether there is a NUL after the key */
    struct sbus_bytes key, payload, token, group;
    struct sbus_bytes recipients; /* numbers of connections with ',' between them; empty: the bus has not listed them */
    struct sbus_sender sender;
};

static inline struct sbus_bytes sbus_bytes_(const char *data, size_t size) {
    struct sbus_bytes bytes;
    bytes.data = data;
    bytes.size = size;
    return bytes;
}

/* Return whether *bytes* are exactly those of *text*. */
static inline bool sbus_equal(struct sbus_bytes bytes, const char *text) {
    size_t size = strlen(text);
    return bytes.size == size && (size == 0 || memcmp(bytes.data, text, size) == 0);
}

/* Return whether *bytes* begin with those of *text*. */
static inline bool sbus_starts(struct sbus_bytes bytes, const char *text) {
    size_t size = strlen(text);
    return bytes.size >= size && (size == 0 || memcmp(bytes.data, text, size) == 0);
}

/* Return *bytes* without the first *count*. */
static inline struct sbus_bytes sbus_after_(struct sbus_bytes bytes, size_t count) {
    return sbus_bytes_(bytes.data + count, bytes.size - count);
}

/* Return how many bytes precede the first *byte*; all of them if there is none. */
static inline size_t sbus_before_(struct sbus_bytes bytes, char byte) {
    const void *found = bytes.size ? memchr(bytes.data, byte, bytes.size) : NULL;
    return found ? (size_t)((const char *)found - bytes.data) : bytes.size;
}

/* Put the number that *bytes* spell in at most *digits* decimal digits into *number*; return false if they spell none. */
static inline bool sbus_number_(struct sbus_bytes bytes, size_t digits, uint64_t *number) {
    uint64_t value = 0;
    size_t i;
    if (bytes.size == 0 || bytes.size > digits)
        return false;
    for (i = 0; i < bytes.size; i++) {
        unsigned digit = (unsigned)(unsigned char)bytes.data[i] - '0';
        if (digit > 9 || value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *number = value;
    return true;
}

/* Remove the bytes before the next '/' from *bytes* and put their number into *number*; the '/' stays. */
static inline bool sbus_id_(struct sbus_bytes *bytes, size_t digits, uint64_t *number) {
    size_t size = sbus_before_(*bytes, '/');
    bool valid = sbus_number_(sbus_bytes_(bytes->data, size), digits, number);
    *bytes = sbus_after_(*bytes, size);
    return valid;
}

static inline bool sbus_skip_(struct sbus_bytes *bytes, const char *text) {
    if (!sbus_starts(*bytes, text))
        return false;
    *bytes = sbus_after_(*bytes, strlen(text));
    return true;
}

/* Parse <id>/<cred>, or <id>/<cred>/<origin>. Credentials can be chained; the last ones before the origin are those of the sender. */
static inline bool sbus_parse_sender_(struct sbus_bytes text, struct sbus_sender *sender) {
    uint64_t id, gid, uid, pid;
    const char *cred;
    if (!sbus_id_(&text, 20, &id) || !sbus_skip_(&text, "/"))
        return false;
    cred = text.data;
    do {
        if (!sbus_skip_(&text, "!/cred/") || !sbus_id_(&text, 10, &gid) || !sbus_skip_(&text, "/") || !sbus_id_(&text, 10, &uid))
            return false;
        if (!sbus_skip_(&text, "/") || !sbus_id_(&text, 10, &pid))
            return false;
    } while (sbus_starts(text, "/!/cred/") && sbus_skip_(&text, "/"));
    if (text.size == 1)
        return false; /* a '/' and no origin */
    sender->known = true;
    sender->id = id;
    sender->cred = sbus_bytes_(cred, (size_t)(text.data - cred));
    sender->origin = text.size ? sbus_after_(text, 1) : text;
    sender->uid = text.size ? -1 : (int64_t)uid;
    sender->gid = text.size ? -1 : (int64_t)gid;
    sender->pid = text.size ? -1 : (int64_t)pid;
    return true;
}

/* Return the errno value of an error of the bus, 0 for a code that this version does not know. */
static inline int sbus_errno_(struct sbus_bytes code) {
    static const struct {
        const char *name;
        int value;
    } codes[] = {{"EPROTO", EPROTO}, {"EACCES", EACCES}, {"EPERM", EPERM},   {"EMSGSIZE", EMSGSIZE}, {"ENOSYS", ENOSYS},
                 {"EINVAL", EINVAL}, {"EMFILE", EMFILE}, {"EDQUOT", EDQUOT}, {"ENOBUFS", ENOBUFS}};
    size_t i;
    for (i = 0; i < sizeof codes / sizeof *codes; i++)
        if (sbus_equal(code, codes[i].name))
            return codes[i].value;
    return 0;
}

/* Parse the message in !/from/; the packet stays as it is if that is not a complete MSG packet. */
static inline void sbus_parse_from_(struct sbus_packet *packet) {
    struct sbus_bytes inner = packet->payload;
    struct sbus_sender sender;
    size_t size;
    memset(&sender, 0, sizeof sender);
    if (!sbus_skip_(&inner, "MSG ") || !sbus_parse_sender_(sbus_after_(packet->key, strlen("!/from/")), &sender))
        return;
    size = sbus_before_(inner, 0);
    if (size == inner.size)
        return;
    packet->kind = SBUS_MESSAGE;
    packet->sender = sender;
    packet->key = sbus_bytes_(inner.data, size);
    packet->payload = sbus_after_(inner, size + 1);
}

/* Parse the message in !/group/<group>, with or without its sender; the packet stays as it is if that is not a complete MSG packet. */
static inline void sbus_parse_group_(struct sbus_packet *packet) {
    struct sbus_packet inner = *packet;
    struct sbus_bytes rest = packet->payload;
    size_t size;
    if (sbus_skip_(&rest, "CMSG ")) {
        size = sbus_before_(rest, 0);
        if (size == rest.size || !sbus_starts(rest, "!/from/"))
            return;
        inner.key = sbus_bytes_(rest.data, size);
        inner.payload = sbus_after_(rest, size + 1);
        sbus_parse_from_(&inner);
    } else if (sbus_skip_(&rest, "MSG ") && (size = sbus_before_(rest, 0)) < rest.size) {
        inner.kind = SBUS_MESSAGE;
        inner.key = sbus_bytes_(rest.data, size);
        inner.payload = sbus_after_(rest, size + 1);
    }
    if (inner.kind != SBUS_MESSAGE)
        return;
    inner.group = sbus_after_(packet->key, strlen("!/group/"));
    *packet = inner;
}

/* Take the first number from a list of recipients, which then begins with the next one. Returns false if it does not begin with a number
 * that ',' and another byte, or the end, follow. */
static inline bool sbus_next_recipient_(struct sbus_bytes *list, uint64_t *id) {
    size_t size = sbus_before_(*list, ',');
    if (!sbus_number_(sbus_bytes_(list->data, size), 20, id) || size + 1 == list->size)
        return false;
    *list = sbus_after_(*list, size < list->size ? size + 1 : size);
    return true;
}

/* Parse <token> NUL <recipients>, and NUL and the list of the recipients if there is one. */
static inline void sbus_parse_receipt_(struct sbus_packet *packet) {
    size_t size = sbus_before_(packet->payload, 0), digits;
    struct sbus_bytes count = size < packet->payload.size ? sbus_after_(packet->payload, size + 1) : sbus_bytes_("", 0), list, rest;
    uint64_t number = 0, id;
    digits = sbus_before_(count, 0);
    list = sbus_after_(count, digits < count.size ? digits + 1 : digits);
    if (!sbus_equal(count, "-") && !sbus_number_(sbus_bytes_(count.data, digits), 18, &number))
        return;
    for (rest = list; rest.size;)
        if (!sbus_next_recipient_(&rest, &id))
            return;
    if (digits < count.size && !list.size)
        return; /* a NUL and no list */
    packet->kind = SBUS_RECEIPT;
    packet->token = sbus_bytes_(packet->payload.data, size);
    packet->count = sbus_equal(count, "-") ? -1 : (int64_t)number;
    packet->recipients = list;
}

/* Find out what the control message is about. One of a form that this version does not know stays SBUS_CONTROL. */
static inline void sbus_parse_control_(struct sbus_packet *packet) {
    uint64_t number;
    if (sbus_equal(packet->key, "!/batch"))
        packet->kind = SBUS_BATCH;
    else if (!packet->has_payload)
        return;
    else if (sbus_starts(packet->key, "!/from/"))
        sbus_parse_from_(packet);
    else if (sbus_starts(packet->key, "!/group/"))
        sbus_parse_group_(packet);
    else if (sbus_equal(packet->key, "!/bus/receipt"))
        sbus_parse_receipt_(packet);
    else if (sbus_equal(packet->key, "!/bus/error")) {
        packet->kind = SBUS_REFUSED;
        packet->error = sbus_errno_(sbus_bytes_(packet->payload.data, sbus_before_(packet->payload, ' ')));
    } else if (sbus_equal(packet->key, "!/bus/lost") || sbus_equal(packet->key, "!/bus/replaced")) {
        if (!sbus_number_(packet->payload, 18, &number))
            return;
        packet->kind = sbus_equal(packet->key, "!/bus/lost") ? SBUS_LOST : SBUS_REPLACED;
        packet->count = (int64_t)number;
    }
}

/* Parse one complete packet, whose parts then point into *data*. Any bytes are allowed.
 *
 * Returns 0, or -1 with errno EPROTO if it is not of the four kinds, or is a MSG without NUL. */
static inline int sbus_parse(const void *data, size_t size, struct sbus_packet *packet) {
    struct sbus_bytes rest = sbus_bytes_(size ? (const char *)data : "", size);
    size_t length;
    memset(packet, 0, sizeof *packet);
    packet->token = packet->group = packet->recipients = packet->sender.cred = packet->sender.origin = sbus_bytes_("", 0);
    if (sbus_skip_(&rest, "MSG "))
        packet->kind = SBUS_MESSAGE;
    else if (sbus_skip_(&rest, "CMSG "))
        packet->kind = SBUS_CONTROL;
    else if (sbus_skip_(&rest, "SUB "))
        packet->kind = SBUS_SUBSCRIBE;
    else if (sbus_skip_(&rest, "UNSUB "))
        packet->kind = SBUS_UNSUBSCRIBE;
    length = sbus_before_(rest, 0);
    packet->has_payload = length < rest.size;
    packet->key = sbus_bytes_(rest.data, length);
    packet->payload = packet->has_payload ? sbus_after_(rest, length + 1) : sbus_bytes_("", 0);
    if (packet->kind == SBUS_CONTROL)
        sbus_parse_control_(packet);
    if (packet->kind && (packet->kind != SBUS_MESSAGE || packet->has_payload))
        return 0;
    errno = EPROTO;
    return -1;
}

#endif
