/* What sbus-blob responds, and messages that refer to blobs: JSON. No I/O. Spec: sbus-blob(8). */
#ifndef SBUS_BLOB_REPLY_H
#define SBUS_BLOB_REPLY_H

#include "json.h"

#define SBUS_TICKET_BYTES 27 /* of a ticket, with its NUL */
#define SBUS_BLOB_TYPE_BYTES 128
#define SBUS_BLOB_HOST_BYTES 256
#define SBUS_BLOB_PACKET_BYTES_ 4096 /* the longest request, and response to one that the header sends */

/* A message that refers to a blob. Its sender chooses all of it. */
struct sbus_blob_reference {
    char ticket[SBUS_TICKET_BYTES];
    char type[SBUS_BLOB_TYPE_BYTES];
    char host[SBUS_BLOB_HOST_BYTES]; /* that has the blob */
    uint64_t size;
};

/* The members of a response, in the text that they were read from. */
struct sbus_blob_reply_ {
    struct sbus_bytes ticket, type, error, reason;
    uint64_t size;
    bool has_size;
    int64_t uid, gid, pid; /* -1: not in it */
};

/* Copy *text* and a NUL to *to*; return whether it fits and has no NUL. */
static inline bool sbus_copy_text_(char *to, size_t room, struct sbus_bytes text) {
    if (text.size >= room || (text.size && memchr(text.data, 0, text.size)))
        return false;
    if (text.size)
        memcpy(to, text.data, text.size);
    to[text.size] = 0;
    return true;
}

/* Copy a ticket; return whether *text* is one. */
static inline bool sbus_copy_ticket_(char *to, struct sbus_bytes text) {
    size_t i;
    for (i = 0; i < text.size; i++)
        if (!((text.data[i] >= 'a' && text.data[i] <= 'z') || (text.data[i] >= '2' && text.data[i] <= '7')))
            return false;
    return text.size == SBUS_TICKET_BYTES - 1 && sbus_copy_text_(to, SBUS_TICKET_BYTES, text);
}

/* Begin to read the object in *text*. */
static inline bool sbus_json_object_(struct sbus_json_ *json, struct sbus_bytes text) {
    json->next = (char *)(uintptr_t)text.data;
    json->end = json->next + text.size;
    return sbus_json_mark_(json, '{');
}

/* Read the name of the next member of an object. */
static inline bool sbus_json_name_(struct sbus_json_ *json, struct sbus_bytes *name) {
    return sbus_json_string_(json, name) && sbus_json_mark_(json, ':');
}

/* Read the value of a member as a string into *text* if it is one, else skip it. */
static inline bool sbus_json_text_(struct sbus_json_ *json, struct sbus_bytes *text) {
    sbus_json_blank_(json);
    return json->next < json->end && *json->next == '"' ? sbus_json_string_(json, text) : sbus_json_skip_(json, SBUS_JSON_DEPTH_);
}

/* Read the value of a member as an integer into *number* if it is one, else skip it. */
static inline bool sbus_json_whole_(struct sbus_json_ *json, bool *is_integer, uint64_t *number) {
    struct sbus_json_ value = *json;
    if (!sbus_json_number_(&value, is_integer, number))
        *is_integer = false;
    return sbus_json_skip_(json, SBUS_JSON_DEPTH_);
}

/* Read the owner of a blob, {"uid":...,"gid":...,"pid":...}. */
static inline bool sbus_blob_owner_(struct sbus_json_ *json, struct sbus_blob_reply_ *reply) {
    struct sbus_bytes name;
    bool is_integer;
    uint64_t number;
    if (!sbus_json_mark_(json, '{'))
        return sbus_json_skip_(json, SBUS_JSON_DEPTH_);
    if (sbus_json_mark_(json, '}'))
        return true;
    do {
        if (!sbus_json_name_(json, &name) || !sbus_json_whole_(json, &is_integer, &number))
            return false;
        if (!is_integer || number > INT64_MAX)
            continue;
        if (sbus_equal(name, "uid"))
            reply->uid = (int64_t)number;
        else if (sbus_equal(name, "gid"))
            reply->gid = (int64_t)number;
        else if (sbus_equal(name, "pid"))
            reply->pid = (int64_t)number;
    } while (sbus_json_mark_(json, ','));
    return sbus_json_mark_(json, '}');
}

/* Read the response in *text*, which changes. Returns whether it is one. */
static inline bool sbus_blob_read_(struct sbus_bytes text, struct sbus_blob_reply_ *reply) {
    struct sbus_json_ json;
    struct sbus_bytes name;
    bool is_read;
    memset(reply, 0, sizeof *reply);
    reply->uid = reply->gid = reply->pid = -1;
    if (!sbus_is_utf8_(text) || !sbus_json_object_(&json, text))
        return false;
    if (!sbus_json_mark_(&json, '}')) {
        do {
            if (!sbus_json_name_(&json, &name))
                return false;
            if (sbus_equal(name, "ticket"))
                is_read = sbus_json_text_(&json, &reply->ticket);
            else if (sbus_equal(name, "type"))
                is_read = sbus_json_text_(&json, &reply->type);
            else if (sbus_equal(name, "error"))
                is_read = sbus_json_text_(&json, &reply->error);
            else if (sbus_equal(name, "reason"))
                is_read = sbus_json_text_(&json, &reply->reason);
            else if (sbus_equal(name, "size"))
                is_read = sbus_json_whole_(&json, &reply->has_size, &reply->size);
            else if (sbus_equal(name, "from"))
                is_read = sbus_blob_owner_(&json, reply);
            else
                is_read = sbus_json_skip_(&json, SBUS_JSON_DEPTH_);
            if (!is_read)
                return false;
        } while (sbus_json_mark_(&json, ','));
        if (!sbus_json_mark_(&json, '}'))
            return false;
    }
    sbus_json_blank_(&json);
    return json.next == json.end;
}

/* Return whether the payload of a message refers to a blob; if so, *reference* says to which. The payload is not changed. */
static inline bool sbus_blob_refers(struct sbus_bytes payload, struct sbus_blob_reference *reference) {
    char text[SBUS_BLOB_PACKET_BYTES_];
    struct sbus_json_ json;
    struct sbus_bytes name, ticket = sbus_bytes_("", 0), type = ticket, host = ticket;
    bool is_version = false, has_size = false, is_read;
    uint64_t version = 0;
    if (payload.size == 0 || payload.size > sizeof text || payload.data[0] != '{' || !sbus_is_utf8_(payload))
        return false;
    memcpy(text, payload.data, payload.size);
    if (!sbus_json_object_(&json, sbus_bytes_(text, payload.size)))
        return false;
    do {
        if (!sbus_json_name_(&json, &name))
            return false;
        if (sbus_equal(name, "sbus-blob"))
            is_read = sbus_json_whole_(&json, &is_version, &version);
        else if (sbus_equal(name, "ticket"))
            is_read = sbus_json_text_(&json, &ticket);
        else if (sbus_equal(name, "type"))
            is_read = sbus_json_text_(&json, &type);
        else if (sbus_equal(name, "host"))
            is_read = sbus_json_text_(&json, &host);
        else if (sbus_equal(name, "size"))
            is_read = sbus_json_whole_(&json, &has_size, &reference->size);
        else
            is_read = sbus_json_skip_(&json, SBUS_JSON_DEPTH_);
        if (!is_read)
            return false;
    } while (sbus_json_mark_(&json, ','));
    if (!sbus_json_mark_(&json, '}'))
        return false;
    sbus_json_blank_(&json);
    return json.next == json.end && is_version && version == 1 && has_size && reference->size <= INT64_MAX &&
           sbus_copy_ticket_(reference->ticket, ticket) && sbus_copy_text_(reference->type, sizeof reference->type, type) &&
           sbus_copy_text_(reference->host, sizeof reference->host, host);
}

#endif
