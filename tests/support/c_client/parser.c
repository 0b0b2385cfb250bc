/* Parses packets from standard input, each behind its length (32 bits, little endian), and writes a line for each, and one for each packet
 * in a batch, one for the envelope in a message with the key rpc/x, and a last one that begins with "end". */
#include <sbus.h>

#include "actions.h"

/* Show the envelope of a call, which changes. */
static void show_envelope(struct sbus_bytes payload) {
    struct sbus_envelope_ envelope;
    if (!sbus_envelope_parse_(payload, &envelope)) {
        puts("none");
        return;
    }
    printf("envelope\t%llu\t%llu", (unsigned long long)envelope.exp, (unsigned long long)envelope.now);
    show_bytes(envelope.uid);
    show_bytes(envelope.cmd);
    show_bytes(envelope.ret);
    show_bytes(envelope.err);
    show_bytes(envelope.dat);
    show_bytes(envelope.ctx);
    printf("\t%llu\t%llu", (unsigned long long)envelope.cancel, (unsigned long long)envelope.seq);
    printf("\t%llu\t%llu", (unsigned long long)envelope.more, (unsigned long long)envelope.win);
    putchar('\n');
}

/* Parse a copy of exactly *size* bytes, so that the sanitizer sees each access beyond. */
static int parse_copy(const char *data, size_t size) {
    struct sbus_packet packet;
    struct sbus_bytes rest, inner;
    int status;
    char *copy = (char *)malloc(size ? size : 1);
    if (size)
        memcpy(copy, data, size);
    if (sbus_parse(copy, size, &packet) < 0) {
        puts(errno == EPROTO ? "malformed" : "another error");
        free(copy);
        return -1;
    }
    show(&packet);
    if (packet.kind == SBUS_MESSAGE && sbus_equal(packet.key, "rpc/x"))
        show_envelope(packet.payload);
    if (packet.kind == SBUS_BATCH) {
        rest = packet.payload;
        if (rest.size == 0)
            puts("empty");
        while ((status = sbus_batch_next(&rest, &inner)) > 0)
            parse_copy(inner.data, inner.size);
        if (status < 0)
            puts("invalid");
    }
    free(copy);
    return 0;
}

int main(void) {
    static char data[SBUS_PACKET_BYTES];
    unsigned char head[4];
    while (fread(head, 1, sizeof head, stdin) == sizeof head) {
        size_t size = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
        if (size > sizeof data || fread(data, 1, size, stdin) != size)
            return 1;
        parse_copy(data, size);
        puts("end");
        fflush(stdout);
    }
    return 0;
}
