/* The messages of the bench: one length for all of a run, a key of fixed width, a sequence number in front of the payload. */
#ifndef BENCH_MESSAGE_H
#define BENCH_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "bus.h"

/* The pattern that takes every message of the bench. */
#define MESSAGE_PATTERN "bench/load/"

struct message {
    char packet[BENCH_PACKET_BYTES];
    size_t length;
    uint32_t keys;
};

/* Make a message with *payload* bytes of payload, whose key will be one of *keys*. */
void message_init(struct message *message, uint32_t payload, uint32_t keys);

/* Number it: the sequence number goes into the payload and chooses the key. */
void message_number(struct message *message, uint32_t sequence);

/* Fail unless *packet* is the message *sequence* of the run that *like* belongs to: nothing lost, doubled, or out of order. */
void message_check(const struct message *like, const char *packet, size_t length, uint32_t sequence);

#endif
