/* What actor.c says about results, and the payloads that it publishes. */
#ifndef ACTIONS_H
#define ACTIONS_H

#include <sbus.h>

struct actor {
    struct sbus bus;
    struct sbus_request requests[2];
    char payload[SBUS_PACKET_BYTES + 1];
};

/* Return a payload of *size* bytes that begins with *number* in four bytes, little endian, if there is room, and has every byte value. */
char *numbered(struct actor *actor, long number, size_t size);

/* Write "ok", or the name of the error and the text of the header. */
void say(const struct sbus *bus, int status);

/* Write a packet in one line: kind, key, payload in hexadecimal, count, error, token, sender. */
void show(const struct sbus_packet *packet);

/* Do a command for a call or a request that goes step by step. Returns false if *verb* is none. */
bool act_on_request(struct actor *actor, const char *verb, const char *first, const char *second, const char *third);

/* Do a command for a blob. Returns false if *verb* is none. */
bool act_on_blob(struct actor *actor, const char *verb, const char *first, const char *second, const char *third);

/* Write a tab, and *bytes* in hexadecimal. */
void show_bytes(struct sbus_bytes bytes);

#endif
