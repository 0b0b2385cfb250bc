/* Messages that refer to blobs: how they are published. See sbus.h(3). */
#ifndef SBUS_BLOB_MESSAGE_H
#define SBUS_BLOB_MESSAGE_H

#include "blob.h"
#include "publish.h"

#include <sys/utsname.h>

/* Publish under *key* that the blob *ticket* of *size* bytes is there, which sbus_blob_put() has got with *terms*. */
static inline int sbus_blob_announce_(struct sbus *bus, const char *key, const char *ticket, size_t size,
                                      const struct sbus_blob_terms *terms) {
    char payload[1024], type[2 * SBUS_BLOB_TYPE_BYTES], host[2 * sizeof((struct utsname *)0)->nodename];
    const char *media = terms && terms->type ? terms->type : "application/octet-stream";
    int64_t until = terms && terms->expire_ms ? terms->expire_ms : SBUS_BLOB_EXPIRE_MS_;
    struct timespec now;
    struct utsname names;
    if (clock_gettime(CLOCK_REALTIME, &now) < 0 || uname(&names) < 0)
        return sbus_fail_(bus, errno, "not published: %s", strerror(errno));
    until += (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    *sbus_write_text_(type, sbus_bytes_(media, strlen(media))) = 0;
    *sbus_write_text_(host, sbus_bytes_(names.nodename, strlen(names.nodename))) = 0;
    snprintf(payload, sizeof payload,
             "{\"sbus-blob\":1,\"ticket\":\"%s\",\"size\":%llu,\"type\":\"%s\",\"host\":\"%s\",\"until\":%lld.%03d}", ticket,
             (unsigned long long)size, type, host, (long long)(until / 1000), (int)(until % 1000));
    return sbus_publish(bus, key, payload, strlen(payload));
}

/* Publish *size* bytes of *data*, however many, under *key*: in a blob, to which the message refers. *ticket* gets its ticket; it can be
 * NULL. If the message cannot be published, the blob is dropped.
 *
 * Returns 0, or -1 with errno as of sbus_blob_put() or sbus_publish(). */
static inline int sbus_blob_publish(struct sbus *bus, const char *key, const void *data, size_t size, const struct sbus_blob_terms *terms,
                                    int timeout_ms, char *ticket) {
    char own[SBUS_TICKET_BYTES], words[sizeof bus->text_];
    int error;
    if (sbus_blob_put(bus, data, size, terms, timeout_ms, own) < 0)
        return -1;
    if (sbus_blob_announce_(bus, key, own, size, terms) < 0) {
        error = errno;
        memcpy(words, bus->text_, sizeof words);
        sbus_blob_drop(bus, own, timeout_ms);
        memcpy(bus->text_, words, sizeof words);
        errno = error;
        return -1;
    }
    if (ticket)
        memcpy(ticket, own, sizeof own);
    return 0;
}

#endif
