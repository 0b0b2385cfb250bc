/* Mosquitto: MQTT 3.1.1, quality of service 0, which is what a bus without acknowledgements is compared with. */
#include "stream.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CONNACK = 0x20, PUBLISH = 0x30, SUBACK = 0x90 };

static void text(struct piece *piece, const char *words) {
    size_t length = strlen(words);
    piece->bytes[piece->length++] = (char)(length >> 8);
    piece->bytes[piece->length++] = (char)length;
    memcpy(piece->bytes + piece->length, words, length);
    piece->length += length;
}

static void await(struct wire *wire, unsigned char kind, size_t length) {
    unsigned char answer[8];
    stream_read(wire, answer, length);
    /* The last byte is the result: 0 is granted in both answers. */
    if (answer[0] != kind || answer[length - 1] != 0)
        stream_unexpected(wire, (const char *)answer, length);
}

static void greet(struct wire *wire) {
    static unsigned number;
    char name[24];
    struct piece piece = {.bytes = {0x10, 0}, .length = 2};
    snprintf(name, sizeof name, "bench%d-%u", getpid() % 100000, number++);
    text(&piece, "MQTT");
    memcpy(piece.bytes + piece.length, "\x04\x02\0\0", 4); /* version 4, a clean session, no keep-alive */
    piece.length += 4;
    text(&piece, name);
    piece.bytes[1] = (char)(piece.length - 2);
    stream_write(wire, piece.bytes, piece.length);
    await(wire, CONNACK, 4);
}

static void subscribe(struct wire *wire) {
    struct piece piece = {.bytes = {(char)0x82, 0, 0, 1}, .length = 4};
    text(&piece, TOPIC);
    piece.bytes[piece.length++] = 0;
    piece.bytes[1] = (char)(piece.length - 2);
    stream_write(wire, piece.bytes, piece.length);
    await(wire, SUBACK, 5);
}

static void frame(struct wire *wire) {
    struct piece *head = &wire->head;
    size_t rest = 2 + sizeof TOPIC - 1 + wire->payload;
    head->length = 0;
    head->bytes[head->length++] = PUBLISH;
    for (; rest >= 128; rest >>= 7)
        head->bytes[head->length++] = (char)(rest | 128);
    head->bytes[head->length++] = (char)rest;
    text(head, TOPIC);
    wire->tail.length = 0;
}

/* A message comes as it was sent. */
static size_t parse(const struct wire *wire, const char *bytes, size_t length, const char **payload) {
    size_t whole = wire->head.length + wire->payload;
    if (length < whole)
        return 0;
    if (memcmp(bytes, wire->head.bytes, wire->head.length) != 0)
        stream_unexpected(wire, bytes, length);
    *payload = bytes + wire->head.length;
    return whole;
}

const struct protocol mqtt_protocol = {
    .name = "mqtt", .connect = stream_connect, .greet = greet, .subscribe = subscribe, .frame = frame,
    .put = stream_put, .flush = stream_flush, .receive = stream_receive, .parse = parse,
};
