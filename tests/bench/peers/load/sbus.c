/* sbus, in three ways: plain, each message a packet; with batches at both ends; and so from a publisher on the host alpha. */
#include "wire.h"

#include "bus.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BATCH_HEAD "CMSG !/batch" /* and its NUL */
#define TOPIC_OF_HOST "host/alpha/" TOPIC
#define LENGTH_BYTES sizeof(uint32_t)
#define SLOT_BYTES (65536 + FRAME_MAX + 192) /* the longest batch or packet; not a power of two, as BENCH_SLOT_BYTES */

static char (*slots)[SLOT_BYTES];
static struct iovec pieces[GROUP_MAX];
static struct mmsghdr headers[GROUP_MAX];
static unsigned waiting; /* messages that the next flush sends */

static struct wire *join(const struct protocol *protocol, const char *address) {
    struct wire *wire = calloc(1, sizeof *wire);
    if (!slots)
        slots = malloc(GROUP_MAX * sizeof *slots); /* lazily committed: only the pages that packets touch are ever there */
    if (!wire || !slots)
        die("no memory");
    for (int i = 0; i < GROUP_MAX; i++) {
        pieces[i] = (struct iovec){.iov_base = slots[i], .iov_len = SLOT_BYTES};
        headers[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    }
    wire->protocol = protocol;
    wire->fd = bus_connect(address);
    return wire;
}

static void greet(struct wire *wire) {
    bus_barrier(wire->fd);
}

static void subscribe(struct wire *wire) {
    bus_subscribe(wire->fd, TOPIC);
    bus_barrier(wire->fd);
}

static void accept_batches(struct wire *wire) {
    static const char question[] = "CMSG !/bus/features", on[] = "CMSG batch/on";
    char answer[4096];
    bus_send(wire->fd, question, sizeof question - 1);
    ssize_t length = recv(wire->fd, answer, sizeof answer, 0);
    errno = 0;
    if (length < 0 || !memmem(answer, (size_t)length, "batch", 5))
        die("this bus does not know batches");
    bus_send(wire->fd, on, sizeof on - 1);
}

static void subscribe_to_batches(struct wire *wire) {
    accept_batches(wire);
    subscribe(wire);
}

static void subscribe_to_host(struct wire *wire) {
    accept_batches(wire);
    piece_print(&wire->head, "MSG " TOPIC_OF_HOST);
    wire->head.length++;
    bus_subscribe(wire->fd, TOPIC_OF_HOST);
    bus_barrier(wire->fd);
}

static void frame(struct wire *wire) {
    piece_print(&wire->head, "MSG " TOPIC);
    wire->head.length++; /* the NUL that ends the key */
}

static size_t packet_length(const struct wire *wire) {
    return wire->head.length + wire->payload;
}

static void write_packet(const struct wire *wire, char *into, const char *payload) {
    memcpy(into, wire->head.bytes, wire->head.length);
    memcpy(into + wire->head.length, payload, wire->payload);
}

static void put(struct wire *wire, const char *payload) {
    write_packet(wire, slots[waiting], payload);
    pieces[waiting++].iov_len = packet_length(wire);
}

static void flush(struct wire *wire) {
    if (waiting == 1)
        bus_send(wire->fd, slots[0], pieces[0].iov_len);
    for (unsigned sent = waiting == 1; sent < waiting;) {
        int taken = sendmmsg(wire->fd, headers + sent, waiting - sent, MSG_NOSIGNAL);
        if (taken < 0 && errno != EINTR)
            die("sendmmsg to the bus");
        sent += taken > 0 ? (unsigned)taken : 0;
    }
    while (waiting > 0)
        pieces[--waiting].iov_len = SLOT_BYTES;
}

/* A batch is in the first slot: its head, then the length and the bytes of each packet. */
static void put_into_batch(struct wire *wire, const char *payload) {
    uint32_t length = (uint32_t)packet_length(wire);
    char *next = slots[0] + sizeof BATCH_HEAD + waiting++ * (LENGTH_BYTES + length);
    memcpy(next, &length, LENGTH_BYTES);
    write_packet(wire, next + LENGTH_BYTES, payload);
}

static void flush_batch(struct wire *wire) {
    size_t length = packet_length(wire);
    memcpy(slots[0], BATCH_HEAD, sizeof BATCH_HEAD);
    if (waiting == 1) /* a single packet is sent without a batch */
        bus_send(wire->fd, slots[0] + sizeof BATCH_HEAD + LENGTH_BYTES, length);
    else
        bus_send(wire->fd, slots[0], sizeof BATCH_HEAD + waiting * (LENGTH_BYTES + length));
    waiting = 0;
}

static void take_packet(struct wire *wire, const char *packet, size_t length, take taker, void *context) {
    if (length != packet_length(wire) || memcmp(packet, wire->head.bytes, wire->head.length) != 0)
        bus_unexpected(packet, length);
    taker(context, packet + wire->head.length, wire->payload);
}

static void take_batch(struct wire *wire, const char *packet, size_t length, take taker, void *context) {
    if (length < sizeof BATCH_HEAD || memcmp(packet, BATCH_HEAD, sizeof BATCH_HEAD) != 0) {
        take_packet(wire, packet, length, taker, context);
        return;
    }
    const char *next = packet + sizeof BATCH_HEAD, *end = packet + length;
    while (next < end) {
        uint32_t inner = 0;
        if ((size_t)(end - next) > LENGTH_BYTES)
            memcpy(&inner, next, LENGTH_BYTES);
        next += LENGTH_BYTES;
        if (inner == 0 || inner > (size_t)(end - next))
            bus_unexpected(packet, length);
        take_packet(wire, next, inner, taker, context);
        next += inner;
    }
}

static void receive(struct wire *wire, int flags, take taker, void *context) {
    /* Never more than is there: recvmmsg(2) would wait for all of them. */
    int count = recvmmsg(wire->fd, headers, GROUP_MAX, flags ? flags : MSG_WAITFORONE, NULL);
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (count < 0)
        die("recv from the bus");
    for (int i = 0; i < count; i++)
        take_batch(wire, slots[i], headers[i].msg_len, taker, context);
}

const struct protocol sbus_protocol = {
    .name = "sbus", .connect = join, .greet = greet, .subscribe = subscribe, .frame = frame,
    .put = put, .flush = flush, .receive = receive,
};

const struct protocol sbus_batch_protocol = {
    .name = "sbus-batch", .connect = join, .greet = greet, .subscribe = subscribe_to_batches, .frame = frame,
    .put = put_into_batch, .flush = flush_batch, .receive = receive,
};

const struct protocol sbus_link_protocol = {
    .name = "sbus-link", .connect = join, .greet = greet, .subscribe = subscribe_to_host, .frame = frame,
    .put = put_into_batch, .flush = flush_batch, .receive = receive,
};
