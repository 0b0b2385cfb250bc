#include "message.h"

#include <errno.h>
#include <string.h>

static const char head[] = "MSG " MESSAGE_PATTERN "00000000";
#define KEY_DIGITS 8
#define DIGITS_END (sizeof head - 1)
#define PAYLOAD_START sizeof head

void message_init(struct message *message, uint32_t payload, uint32_t keys) {
    message->length = PAYLOAD_START + payload;
    message->keys = keys;
    if (payload < sizeof(uint64_t) || message->length > sizeof message->packet)
        die("a payload has 8 to %zu bytes, not %u", sizeof message->packet - PAYLOAD_START, payload);
    memset(message->packet, 'x', sizeof message->packet);
    memcpy(message->packet, head, sizeof head);
}

void message_number(struct message *message, uint32_t sequence) {
    uint64_t number = sequence;
    memcpy(message->packet + PAYLOAD_START, &number, sizeof number);
    if (message->keys < 2)
        return;
    uint32_t key = sequence % message->keys;
    for (unsigned digit = 0; digit < KEY_DIGITS; digit++, key /= 10)
        message->packet[DIGITS_END - 1 - digit] = (char)('0' + key % 10);
}

void message_check(const struct message *like, const char *packet, size_t length, uint32_t sequence) {
    uint64_t number;
    if (length != like->length || memcmp(packet, "MSG ", 4) != 0)
        bus_unexpected(packet, length);
    memcpy(&number, packet + PAYLOAD_START, sizeof number);
    errno = 0;
    if (number != sequence)
        die("message %u was due and %lu came: lost, doubled or out of order", sequence, (unsigned long)number);
}
