#include "stream.h"

#include "bus.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A read takes at most so much: what a Unix socket holds, and a frame more. */
#define READ_BYTES (262144 + FRAME_MAX)

/* One for all connections, as the packets' buffers of the sbus client are: 64 of them would only measure the cache. */
static char in[READ_BYTES];
static char out[GROUP_MAX * FRAME_MAX];
static size_t out_length;

static int connect_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        die("the path of the socket is too long: %s", path);
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect to %s", path);
    return fd;
}

static int connect_port(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect to port %s", port);
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
        die("TCP_NODELAY");
    return fd;
}

struct wire *stream_connect(const struct protocol *protocol, const char *address) {
    struct wire *wire = calloc(1, sizeof *wire);
    if (!wire || !(wire->rest = malloc(FRAME_MAX)))
        die("no memory");
    wire->protocol = protocol;
    wire->fd = address[0] == '/' ? connect_unix(address) : connect_port(address);
    return wire;
}

void stream_write(struct wire *wire, const void *bytes, size_t length) {
    const char *next = bytes;
    while (length > 0) {
        ssize_t sent = send(wire->fd, next, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            die("send to %s", wire->protocol->name);
        if (sent > 0) {
            next += sent;
            length -= (size_t)sent;
        }
    }
}

void stream_read(struct wire *wire, void *bytes, size_t length) {
    errno = 0;
    if (recv(wire->fd, bytes, length, MSG_WAITALL) != (ssize_t)length)
        die("%s ended the connection", wire->protocol->name);
}

void stream_await(struct wire *wire, const char *words, const char *fault) {
    for (;;) {
        static char line[65536];
        size_t length = 0;
        do
            stream_read(wire, line + length, 1);
        while (line[length++] != '\n' && length < sizeof line);
        if (length >= strlen(words) && memcmp(line, words, strlen(words)) == 0)
            return;
        if (length >= strlen(fault) && memcmp(line, fault, strlen(fault)) == 0)
            stream_unexpected(wire, line, length);
    }
}

void stream_put(struct wire *wire, const char *payload) {
    char *next = out + out_length;
    memcpy(next, wire->head.bytes, wire->head.length);
    next += wire->head.length;
    memcpy(next, payload, wire->payload);
    next += wire->payload;
    memcpy(next, wire->tail.bytes, wire->tail.length);
    out_length += wire->head.length + wire->payload + wire->tail.length;
}

void stream_flush(struct wire *wire) {
    stream_write(wire, out, out_length);
    out_length = 0;
}

void stream_receive(struct wire *wire, int flags, take taker, void *context) {
    memcpy(in, wire->rest, wire->rest_length);
    ssize_t got = recv(wire->fd, in + wire->rest_length, sizeof in - wire->rest_length, flags);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        die("%s ended the connection", wire->protocol->name);
    size_t length = wire->rest_length + (size_t)got, from = 0;
    while (from < length) {
        const char *payload = NULL;
        size_t frame = wire->protocol->parse(wire, in + from, length - from, &payload);
        if (frame == 0)
            break;
        if (payload)
            taker(context, payload, wire->payload);
        from += frame;
    }
    wire->rest_length = length - from;
    if (wire->rest_length > FRAME_MAX)
        stream_unexpected(wire, in + from, wire->rest_length);
    memcpy(wire->rest, in + from, wire->rest_length);
}

_Noreturn void stream_unexpected(const struct wire *wire, const char *bytes, size_t length) {
    char words[120];
    size_t shown = length < sizeof words - 1 ? length : sizeof words - 1;
    for (size_t i = 0; i < shown; i++)
        words[i] = bytes[i] >= ' ' && bytes[i] <= '~' ? bytes[i] : '.';
    words[shown] = 0;
    errno = 0;
    die("%s said what was not expected: %s", wire->protocol->name, words);
}
