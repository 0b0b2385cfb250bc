/* The translation unit that the programs share: the header is in each. */
#include <sbus.h>

#include "actions.h"

char *numbered(struct actor *actor, long number, size_t size) {
    for (size_t i = 0; i < size && i <= SBUS_PACKET_BYTES; i++)
        actor->payload[i] = (char)(unsigned char)(i < 4 ? (size_t)number >> 8 * i : i);
    return actor->payload;
}

void say(const struct sbus *bus, int status) {
    int error = errno;
    if (status < 0)
        printf("error\t%d\t%s\n", error, sbus_error(bus));
    else
        puts("ok");
}

void show_bytes(struct sbus_bytes bytes) {
    /* Not by printf(3), which takes 10 seconds for 40 MB under a sanitizer. */
    static const char digits[] = "0123456789abcdef";
    char text[4096];
    size_t used = 0;
    putchar('\t');
    for (size_t i = 0; i < bytes.size; i++) {
        const unsigned char byte = (unsigned char)bytes.data[i];
        text[used++] = digits[byte >> 4];
        text[used++] = digits[byte & 15];
        if (used == sizeof text) {
            fwrite(text, 1, used, stdout);
            used = 0;
        }
    }
    fwrite(text, 1, used, stdout);
}

void show(const struct sbus_packet *packet) {
    static const char *const names[] = {"",        "message", "lost",    "replaced",  "receipt",    "refused", "reconnected",
                                        "batch", "control", "subscribe", "unsubscribe"};
    const struct sbus_sender *sender = &packet->sender;
    fputs(names[packet->kind], stdout);
    show_bytes(packet->key);
    show_bytes(packet->payload);
    printf("\t%lld\t%d\t%d", (long long)packet->count, packet->error, packet->has_payload);
    show_bytes(packet->token);
    show_bytes(packet->group);
    show_bytes(packet->recipients);
    if (sender->known) {
        printf("\t%llu\t%lld\t%lld", (unsigned long long)sender->id, (long long)sender->uid, (long long)sender->gid);
        printf("\t%lld", (long long)sender->pid);
        show_bytes(sender->cred);
        show_bytes(sender->origin);
    }
    putchar('\n');
}
