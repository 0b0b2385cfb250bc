/* A connection of the bench to one of the daemons that are compared, and what each protocol has to do on it.
 *
 * Every protocol is spoken here by hand, so that the load costs each daemon's client about the same and as little as can be, and so that
 * the daemons are compared and not their libraries. */
#ifndef PEERS_WIRE_H
#define PEERS_WIRE_H

#include <stddef.h>

#define TOPIC "bench/load"
/* The largest payload of the bench, and the largest frame: a payload, and a head that is shorter than a kilobyte. */
#define PAYLOAD_MAX 65536
#define FRAME_MAX (PAYLOAD_MAX + 1024)
/* The most messages that leave, or are read, with one system call where each message is a packet. */
#define GROUP_MAX 64

struct wire;

/* Called for each message that has come; *context* is the caller's. */
typedef void (*take)(void *context, const char *payload, size_t length);

struct piece {
    char bytes[512];
    size_t length;
};

struct protocol {
    const char *name;
    struct wire *(*connect)(const struct protocol *protocol, const char *address);
    void (*greet)(struct wire *wire);        /* what must be said first */
    void (*subscribe)(struct wire *wire);    /* to TOPIC; returns when it is in force */
    void (*be_publisher)(struct wire *wire); /* NULL: nothing to be said */
    void (*frame)(struct wire *wire);        /* set head and tail for messages of wire->payload bytes */
    void (*put)(struct wire *wire, const char *payload); /* add a message to what flush sends */
    void (*flush)(struct wire *wire);
    /* Read once, with *flags* for recv(2), and call *taker* for each message that is whole. */
    void (*receive)(struct wire *wire, int flags, take taker, void *context);
    /* Streams: return the length of the first frame, or 0 if it is not whole; *payload stays NULL if it is not a message. */
    size_t (*parse)(const struct wire *wire, const char *bytes, size_t length, const char **payload);
};

struct wire {
    const struct protocol *protocol;
    int fd;
    size_t payload;     /* bytes of every message's payload */
    struct piece head;  /* of a frame that is sent */
    struct piece tail;
    char *rest;         /* the beginning of a frame whose end has not come */
    size_t rest_length;
};

extern const struct protocol sbus_protocol, sbus_batch_protocol, sbus_link_protocol, dbus_protocol, redis_protocol, nats_protocol, mqtt_protocol;

/* Open a connection that says what must be said first, for messages of *payload* bytes. */
struct wire *wire_open(const struct protocol *protocol, const char *address, size_t payload);

/* Set *piece* as printf does; for text protocols. */
void piece_print(struct piece *piece, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
