/* The commands of actor.c for blobs. */
#include <sbus.h>

#include "actions.h"

/* Write "blob", its owner, type, size, the sum of its bytes, and whether it could be made writable. */
static void show_blob(const struct sbus *bus, int status, struct sbus_blob *blob) {
    unsigned long long sum = 0;
    int is_writable = 0;
    if (status < 0) {
        say(bus, status);
        return;
    }
    for (size_t i = 0; i < blob->data.size; i++)
        sum += (unsigned char)blob->data.data[i];
    if (blob->data.size)
        is_writable = mprotect((void *)(uintptr_t)blob->data.data, blob->data.size, PROT_READ | PROT_WRITE) == 0;
    printf("blob\t%lld\t%lld\t%lld\t%s", (long long)blob->uid, (long long)blob->gid, (long long)blob->pid, blob->type);
    printf("\t%zu\t%llu\t%d\n", blob->data.size, sum, is_writable);
    sbus_blob_release(blob);
    sbus_blob_release(blob); /* harmless */
}

static void get(struct actor *actor, const char *ticket, int timeout_ms) {
    struct sbus_blob blob;
    int status = sbus_blob_get(&actor->bus, ticket, timeout_ms, &blob);
    show_blob(&actor->bus, status, &blob);
}

/* Read packets until one is a message, and get the blob to which it refers. */
static void get_next(struct actor *actor) {
    struct sbus *bus = &actor->bus;
    struct sbus_packet packet;
    struct sbus_blob_reference reference;
    int status;
    while ((status = sbus_next(bus, &packet, 30000)) > 0 && packet.kind != SBUS_MESSAGE)
        continue;
    if (status <= 0)
        puts("nothing");
    else if (!sbus_blob_refers(packet.payload, &reference))
        show(&packet);
    else {
        printf("%s\t%s\t%llu\t", reference.host, reference.type, (unsigned long long)reference.size);
        get(actor, reference.ticket, 30000);
    }
}

static void say_ticket(const struct sbus *bus, int status, const char *ticket) {
    if (status < 0)
        say(bus, status);
    else
        printf("ticket\t%s\n", ticket);
}

/* Put or publish a blob of *size* bytes, of which each has its place modulo 251 as value. *words*: "TYPE RECIPIENT EXPIRE_MS USES KEEP". */
static void put(struct actor *actor, const char *key, size_t size, const char *words) {
    struct sbus_blob_terms terms;
    char type[256], recipient[128], ticket[SBUS_TICKET_BYTES];
    int keep = 0, status;
    char *data = (char *)malloc(size + 1);
    memset(&terms, 0, sizeof terms);
    if (sscanf(words, "%255s %127s %d %u %d", type, recipient, &terms.expire_ms, &terms.uses, &keep) > 0) {
        terms.type = type;
        terms.recipient = recipient;
        terms.keep = keep != 0;
    }
    for (size_t i = 0; data && i < size; i++)
        data[i] = (char)(unsigned char)(i % 251);
    status = *key ? sbus_blob_publish(&actor->bus, key, data, size, *words ? &terms : NULL, 30000, ticket)
                  : sbus_blob_put(&actor->bus, data, size, *words ? &terms : NULL, 30000, ticket);
    say_ticket(&actor->bus, status, ticket);
    free(data);
}

/* Put the open file *path* as it is. */
static void put_file(struct actor *actor, const char *path) {
    char ticket[SBUS_TICKET_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    say_ticket(&actor->bus, sbus_blob_put_fd(&actor->bus, fd, NULL, 30000, ticket), ticket);
    if (fd >= 0)
        close(fd);
}

bool act_on_blob(struct actor *actor, const char *verb, const char *first, const char *second, const char *third) {
    if (!strcmp(verb, "blob-get"))
        get(actor, first, *second ? atoi(second) : 30000);
    else if (!strcmp(verb, "blob-next"))
        get_next(actor);
    else if (!strcmp(verb, "blob-put"))
        put(actor, "", (size_t)atol(first), second);
    else if (!strcmp(verb, "blob-publish"))
        put(actor, first, (size_t)atol(second), third);
    else if (!strcmp(verb, "blob-put-file"))
        put_file(actor, first);
    else if (!strcmp(verb, "blob-drop"))
        say(&actor->bus, sbus_blob_drop(&actor->bus, first, 30000));
    else
        return false;
    return true;
}
