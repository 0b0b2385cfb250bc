/* D-Bus: a broadcast signal with an array of bytes. Source: the D-Bus specification, "Message Protocol". */
#include "stream.h"

#include "bus.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { METHOD_CALL = 1, METHOD_RETURN = 2, SIGNAL = 4 };
enum { PATH = 1, INTERFACE = 2, MEMBER = 3, DESTINATION = 6, SIGNATURE = 8 };
#define FIXED_BYTES 16
#define DAEMON "org.freedesktop.DBus"

static void align(struct piece *piece, size_t size) {
    while (piece->length % size)
        piece->bytes[piece->length++] = 0;
}

static void number(struct piece *piece, uint32_t value) {
    align(piece, sizeof value);
    memcpy(piece->bytes + piece->length, &value, sizeof value);
    piece->length += sizeof value;
}

static void words(struct piece *piece, const char *text) {
    number(piece, (uint32_t)strlen(text));
    memcpy(piece->bytes + piece->length, text, strlen(text) + 1);
    piece->length += strlen(text) + 1;
}

static void field(struct piece *piece, char code, char type, const char *text) {
    align(piece, 8);
    memcpy(piece->bytes + piece->length, (char[]){code, 1, type, 0}, 4);
    piece->length += 4;
    if (type != 'g') {
        words(piece, text);
        return;
    }
    piece->bytes[piece->length++] = (char)strlen(text);
    memcpy(piece->bytes + piece->length, text, strlen(text) + 1);
    piece->length += strlen(text) + 1;
}

/* Begin a message: all of its head, whose body is *body* bytes of *signature* (NULL: it has none). */
static void begin(struct piece *piece, int type, const char *path, const char *interface, const char *member, const char *destination,
                  const char *signature, size_t body) {
    static uint32_t serial;
    memcpy(piece->bytes, (char[]){'l', (char)type, type == SIGNAL, 1}, 4);
    piece->length = 4;
    number(piece, (uint32_t)body);
    number(piece, ++serial);
    number(piece, 0);
    field(piece, PATH, 'o', path);
    field(piece, INTERFACE, 's', interface);
    field(piece, MEMBER, 's', member);
    if (destination)
        field(piece, DESTINATION, 's', destination);
    if (signature)
        field(piece, SIGNATURE, 'g', signature);
    uint32_t fields = (uint32_t)(piece->length - FIXED_BYTES);
    memcpy(piece->bytes + 12, &fields, sizeof fields);
    align(piece, 8);
}

static size_t whole(const struct wire *wire, const char *bytes) {
    uint32_t body, fields;
    if (bytes[0] != 'l')
        stream_unexpected(wire, bytes, FIXED_BYTES);
    memcpy(&body, bytes + 4, sizeof body);
    memcpy(&fields, bytes + 12, sizeof fields);
    return FIXED_BYTES + ((size_t)fields + 7) / 8 * 8 + body;
}

static void call(struct wire *wire, const char *member, const char *argument) {
    static char answer[FRAME_MAX];
    struct piece piece;
    size_t body = argument ? 4 + strlen(argument) + 1 : 0;
    begin(&piece, METHOD_CALL, "/org/freedesktop/DBus", DAEMON, member, DAEMON, argument ? "s" : NULL, body);
    if (argument)
        words(&piece, argument);
    stream_write(wire, piece.bytes, piece.length);
    do {
        stream_read(wire, answer, FIXED_BYTES);
        size_t length = whole(wire, answer);
        if (length > sizeof answer)
            stream_unexpected(wire, answer, FIXED_BYTES);
        stream_read(wire, answer + FIXED_BYTES, length - FIXED_BYTES);
        if (answer[1] != METHOD_RETURN && answer[1] != SIGNAL) /* any other type is an error */
            stream_unexpected(wire, answer + FIXED_BYTES, length - FIXED_BYTES);
    } while (answer[1] != METHOD_RETURN);
}

static void greet(struct wire *wire) {
    char user[16], line[80];
    int digits = snprintf(user, sizeof user, "%u", geteuid());
    int length = snprintf(line, sizeof line, "%cAUTH EXTERNAL ", 0);
    for (int i = 0; i < digits; i++)
        length += snprintf(line + length, sizeof line - (size_t)length, "%02x", user[i]);
    length += snprintf(line + length, sizeof line - (size_t)length, "\r\n");
    stream_write(wire, line, (size_t)length);
    stream_await(wire, "OK ", "REJECTED");
    stream_write(wire, "BEGIN\r\n", 7);
    call(wire, "Hello", NULL);
}

static void subscribe(struct wire *wire) {
    call(wire, "AddMatch", "type='signal',interface='bench.Load'");
}

static void frame(struct wire *wire) {
    begin(&wire->head, SIGNAL, "/bench/Load", "bench.Load", "Message", NULL, "ay", wire->payload + 4);
    number(&wire->head, (uint32_t)wire->payload);
    wire->tail.length = 0;
}

static size_t parse(const struct wire *wire, const char *bytes, size_t length, const char **payload) {
    if (length < FIXED_BYTES)
        return 0;
    size_t frame = whole(wire, bytes);
    if (length < frame)
        return 0;
    uint32_t body;
    memcpy(&body, bytes + 4, sizeof body);
    if (bytes[1] == SIGNAL && body == wire->payload + 4)
        *payload = bytes + frame - wire->payload;
    return frame;
}

const struct protocol dbus_protocol = {
    .name = "dbus", .connect = stream_connect, .greet = greet, .subscribe = subscribe, .frame = frame,
    .put = stream_put, .flush = stream_flush, .receive = stream_receive, .parse = parse,
};
