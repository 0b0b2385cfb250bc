/* NATS: PUB and SUB in its text protocol, without acknowledgements, as its own clients do. */
#include "stream.h"

#include <string.h>

#define SUBJECT "bench.load"

static void barrier(struct wire *wire) {
    stream_write(wire, "PING\r\n", 6);
    stream_await(wire, "PONG", "-ERR");
}

static void greet(struct wire *wire) {
    static const char words[] = "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"c\",\"version\":\"1\"}\r\n";
    stream_await(wire, "INFO ", "-ERR");
    stream_write(wire, words, sizeof words - 1);
    barrier(wire);
}

static void subscribe(struct wire *wire) {
    static const char words[] = "SUB " SUBJECT " 1\r\n";
    stream_write(wire, words, sizeof words - 1);
    barrier(wire);
}

static void frame(struct wire *wire) {
    piece_print(&wire->head, "PUB " SUBJECT " %zu\r\n", wire->payload);
    piece_print(&wire->tail, "\r\n");
}

static size_t parse(const struct wire *wire, const char *bytes, size_t length, const char **payload) {
    static struct piece head;
    static size_t head_payload;
    if (head_payload != wire->payload) {
        piece_print(&head, "MSG " SUBJECT " 1 %zu\r\n", wire->payload);
        head_payload = wire->payload;
    }
    /* The server looks now and then whether its client is there; it gives up long after the bench has ended. */
    if (length >= 6 && memcmp(bytes, "PING\r\n", 6) == 0)
        return 6;
    size_t whole = head.length + wire->payload + 2;
    if (length < whole)
        return 0;
    if (memcmp(bytes, head.bytes, head.length) != 0)
        stream_unexpected(wire, bytes, length);
    *payload = bytes + head.length;
    return whole;
}

const struct protocol nats_protocol = {
    .name = "nats", .connect = stream_connect, .greet = greet, .subscribe = subscribe, .frame = frame,
    .put = stream_put, .flush = stream_flush, .receive = stream_receive, .parse = parse,
};
