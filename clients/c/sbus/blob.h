/* Blobs: large messages in sealed memory files, by sbus-blob(8). See sbus.h(3). */
#ifndef SBUS_BLOB_H
#define SBUS_BLOB_H

#include "blob_socket.h"
#include "envelope.h"
#include "memory_file.h"

#define SBUS_BLOB_EXPIRE_MS_ 30000

/* A blob, mapped. *data* never changes, and is valid until sbus_blob_release(). */
struct sbus_blob {
    struct sbus_bytes data;
    char type[SBUS_BLOB_TYPE_BYTES]; /* media type */
    int64_t uid, gid, pid;           /* of the owner, as the kernel knows it; -1: not known */
};

/* For how long, how often and for whom a blob is there. Zeros are the defaults. */
struct sbus_blob_terms {
    const char *type;      /* media type; NULL: application/octet-stream */
    const char *recipient; /* "uid:NUMBER", "gid:NUMBER" or "conn:NUMBER"; NULL: all users that have the ticket */
    int expire_ms;         /* at most 600000; 0: 30000 */
    unsigned uses;         /* at most 1000000; 0: no limit */
    bool keep;             /* whether it remains after this connection */
};

/* Get the blob with *ticket*, and map it, for at most *timeout_ms* milliseconds, -1: without a limit.
 *
 * Returns 0: release it with sbus_blob_release(). Or -1 with errno ENOENT if it has ended, EACCES if it is for another user, EINVAL for an
 * invalid ticket, EAGAIN, ENOTCONN without the service, ETIMEDOUT, EPROTO if the response is not a blob that never changes, or as of
 * mmap(2). */
static inline int sbus_blob_get(struct sbus *bus, const char *ticket, int timeout_ms, struct sbus_blob *blob) {
    char request[96], text[SBUS_BLOB_PACKET_BYTES_], checked[SBUS_TICKET_BYTES];
    struct sbus_blob_reply_ reply;
    const char *why = NULL, *mapped = "";
    int fd, status, error;
    memset(blob, 0, sizeof *blob);
    if (!sbus_copy_ticket_(checked, sbus_bytes_(ticket, strlen(ticket))))
        return sbus_fail_(bus, EINVAL, "not a ticket of a blob: 26 characters a to z and 2 to 7");
    snprintf(request, sizeof request, "{\"request\":\"get\",\"ticket\":\"%s\"}", checked);
    status = sbus_blob_exchange_(bus, request, -1, timeout_ms, text, &reply, &fd);
    if (status == 0) {
        if (fd < 0)
            why = "the response has no descriptor: this process may have too many, or a security policy denies it";
        else if (!reply.has_size || !reply.type.size || !sbus_copy_text_(blob->type, sizeof blob->type, reply.type))
            why = "the response has no size or no type";
        else
            why = sbus_why_unsealed_(fd, reply.size);
        if (why)
            status = sbus_fail_(bus, EPROTO, "sbus-blob: not a blob: %s", why);
        else if (reply.size > SIZE_MAX || (reply.size && !(mapped = sbus_map_(fd, (size_t)reply.size)))) {
            error = reply.size > SIZE_MAX ? ENOMEM : errno;
            status = sbus_fail_(bus, error, "cannot map the blob: %s", strerror(error));
        }
    }
    error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    if (status < 0)
        return -1;
    blob->data = sbus_bytes_(mapped, (size_t)reply.size);
    blob->uid = reply.uid;
    blob->gid = reply.gid;
    blob->pid = reply.pid;
    return 0;
}

/* Unmap a blob. Harmless for one of zeros, and for one that sbus_blob_get() has not got. */
static inline void sbus_blob_release(struct sbus_blob *blob) {
    if (blob->data.size)
        munmap((void *)(uintptr_t)blob->data.data, blob->data.size);
    memset(blob, 0, sizeof *blob);
}

/* Give the sealed memory file *fd* to sbus-blob, and put its ticket into *ticket*. *terms* NULL: the defaults. The caller closes *fd*.
 *
 * Returns 0, or -1 with errno EINVAL if *fd* is not one, or a term is invalid, EDQUOT if a quota is used up, and as for sbus_blob_get(). */
static inline int sbus_blob_put_fd(struct sbus *bus, int fd, const struct sbus_blob_terms *terms, int timeout_ms,
                                   char ticket[SBUS_TICKET_BYTES]) {
    static const struct sbus_blob_terms defaults = {NULL, NULL, 0, 0, false};
    char request[SBUS_BLOB_PACKET_BYTES_], text[SBUS_BLOB_PACKET_BYTES_], type[2 * SBUS_BLOB_TYPE_BYTES], recipient[64], uses[16] = "null";
    struct sbus_blob_reply_ reply;
    struct stat status;
    const char *why;
    int received, expire;
    const struct sbus_blob_terms *used = terms ? terms : &defaults;
    struct sbus_bytes type_bytes = sbus_bytes_(used->type ? used->type : "application/octet-stream", 0);
    struct sbus_bytes to = sbus_bytes_(used->recipient ? used->recipient : "anyone", 0);
    type_bytes.size = strlen(type_bytes.data);
    to.size = strlen(to.data);
    if (type_bytes.size >= SBUS_BLOB_TYPE_BYTES || to.size >= sizeof recipient / 2 || used->expire_ms < 0)
        return sbus_fail_(bus, EINVAL, "a term of the blob is invalid: its type, its recipient or its time to expire");
    why = sbus_why_unsealed_(fd, fstat(fd, &status) == 0 && status.st_size >= 0 ? (uint64_t)status.st_size : UINT64_MAX);
    if (why)
        return sbus_fail_(bus, EINVAL, "the descriptor cannot be a blob: %s", why);
    *sbus_write_text_(type, type_bytes) = 0;
    *sbus_write_text_(recipient, to) = 0;
    expire = used->expire_ms ? used->expire_ms : SBUS_BLOB_EXPIRE_MS_;
    if (used->uses)
        snprintf(uses, sizeof uses, "%u", used->uses);
    snprintf(request, sizeof request,
             "{\"request\":\"put\",\"size\":%llu,\"type\":\"%s\",\"for\":\"%s\",\"expire\":%d.%03d,\"uses\":%s,\"keep\":%s}",
             (unsigned long long)status.st_size, type, recipient, expire / 1000, expire % 1000, uses, used->keep ? "true" : "false");
    if (sbus_blob_exchange_(bus, request, fd, timeout_ms, text, &reply, &received) < 0) {
        int error = errno;
        if (received >= 0)
            close(received);
        errno = error;
        return -1;
    }
    if (received >= 0)
        close(received);
    return sbus_copy_ticket_(ticket, reply.ticket) ? 0 : sbus_blob_lost_(bus, EPROTO, "its response has no ticket");
}

/* Give *size* bytes of *data* to sbus-blob in a new memory file, and put its ticket into *ticket*.
 *
 * Returns as sbus_blob_put_fd(), or -1 with errno EFAULT if *data* are fewer bytes, or as of memfd_create(2) or write(2). */
static inline int sbus_blob_put(struct sbus *bus, const void *data, size_t size, const struct sbus_blob_terms *terms, int timeout_ms,
                                char ticket[SBUS_TICKET_BYTES]) {
    int status, error, fd = sbus_seal_(data, size);
    if (fd < 0)
        return sbus_fail_(bus, errno, "cannot make a memory file for the blob: %s", strerror(errno));
    status = sbus_blob_put_fd(bus, fd, terms, timeout_ms, ticket);
    error = errno;
    close(fd);
    errno = error;
    return status;
}

/* End the blob with *ticket*, which must be one of this user. Users that have it already keep it. Returns as sbus_blob_get(). */
static inline int sbus_blob_drop(struct sbus *bus, const char *ticket, int timeout_ms) {
    char request[96], text[SBUS_BLOB_PACKET_BYTES_], checked[SBUS_TICKET_BYTES];
    struct sbus_blob_reply_ reply;
    int fd, status, error;
    if (!sbus_copy_ticket_(checked, sbus_bytes_(ticket, strlen(ticket))))
        return sbus_fail_(bus, EINVAL, "not a ticket of a blob: 26 characters a to z and 2 to 7");
    snprintf(request, sizeof request, "{\"request\":\"drop\",\"ticket\":\"%s\"}", checked);
    status = sbus_blob_exchange_(bus, request, -1, timeout_ms, text, &reply, &fd);
    error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return status;
}

#endif
