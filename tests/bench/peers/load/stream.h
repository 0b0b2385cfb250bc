/* What the stream protocols share: a frame is a head, a payload and a tail; many of them leave with one write and come with one read. */
#ifndef PEERS_STREAM_H
#define PEERS_STREAM_H

#include "wire.h"

/* Connect to a path, or to 127.0.0.1 at a port where *address* is a number. */
struct wire *stream_connect(const struct protocol *protocol, const char *address);

void stream_write(struct wire *wire, const void *bytes, size_t length);

/* Read exactly *length* bytes; for the beginning of a connection, when nothing else comes. */
void stream_read(struct wire *wire, void *bytes, size_t length);

/* Read lines of text until one begins with *words*; a line that begins with *fault* ends the bench. */
void stream_await(struct wire *wire, const char *words, const char *fault);

/* The protocols' put, flush and receive. */
void stream_put(struct wire *wire, const char *payload);
void stream_flush(struct wire *wire);
void stream_receive(struct wire *wire, int flags, take taker, void *context);

/* Fail: *bytes* are not what the daemon's protocol allows here. */
_Noreturn void stream_unexpected(const struct wire *wire, const char *bytes, size_t length);

#endif
