/* Redis: PUBLISH and SUBSCRIBE in RESP2. The publisher asks for no replies, as Redis offers to those who read none. */
#include "stream.h"

#include <string.h>

static void greet(struct wire *wire) {
    stream_write(wire, "PING\r\n", 6);
    stream_await(wire, "+PONG", "-");
}

static void be_publisher(struct wire *wire) {
    static const char off[] = "CLIENT REPLY OFF\r\n";
    stream_write(wire, off, sizeof off - 1);
}

static void subscribe(struct wire *wire) {
    static const char words[] = "SUBSCRIBE " TOPIC "\r\n";
    stream_write(wire, words, sizeof words - 1);
    stream_await(wire, ":1", "-");
}

static void frame(struct wire *wire) {
    piece_print(&wire->head, "*3\r\n$7\r\nPUBLISH\r\n$%zu\r\n" TOPIC "\r\n$%zu\r\n", sizeof TOPIC - 1, wire->payload);
    piece_print(&wire->tail, "\r\n");
}

static size_t parse(const struct wire *wire, const char *bytes, size_t length, const char **payload) {
    static struct piece head;
    static size_t head_payload;
    if (head_payload != wire->payload) {
        piece_print(&head, "*3\r\n$7\r\nmessage\r\n$%zu\r\n" TOPIC "\r\n$%zu\r\n", sizeof TOPIC - 1, wire->payload);
        head_payload = wire->payload;
    }
    size_t whole = head.length + wire->payload + 2;
    if (length < whole)
        return 0;
    if (memcmp(bytes, head.bytes, head.length) != 0)
        stream_unexpected(wire, bytes, length);
    *payload = bytes + head.length;
    return whole;
}

const struct protocol redis_protocol = {
    .name = "redis", .connect = stream_connect, .greet = greet, .subscribe = subscribe, .be_publisher = be_publisher, .frame = frame,
    .put = stream_put, .flush = stream_flush, .receive = stream_receive, .parse = parse,
};
