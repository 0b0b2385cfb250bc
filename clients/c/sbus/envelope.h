/* Envelopes of requests and responses. No I/O. Spec: sbus-rpc(7) section 2. */
#ifndef SBUS_ENVELOPE_H
#define SBUS_ENVELOPE_H

#include "json.h"
#include "trace_context.h"

#include <stdio.h>
#include <stdlib.h>

/* An envelope, whose texts point into the packet that it was read from. Members that only hosts use are checked and not kept. */
struct sbus_envelope_ {
    uint64_t exp, now, cancel, seq, more, win;
    struct sbus_bytes uid, cmd, ret, err, dat, ctx;
};

/* Return whether *text* is of visible ASCII and spaces. */
static inline bool sbus_is_plain_(struct sbus_bytes text) {
    size_t i;
    for (i = 0; i < text.size; i++)
        if (text.data[i] < ' ' || text.data[i] > '~')
            return false;
    return true;
}

/* Decode base64 with its padding, in its place. */
static inline bool sbus_decode_base64_(struct sbus_bytes *text) {
    char *to = (char *)(uintptr_t)text->data;
    size_t i, padding = 0;
    unsigned long group = 0;
    if (text->size % 4)
        return false;
    while (padding < 2 && padding < text->size && text->data[text->size - 1 - padding] == '=')
        padding++;
    for (i = 0; i < text->size; i++) {
        char c = text->data[i];
        int value = c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= '0' && c <= '9' ? c - '0' + 52 : -1;
        value = c == '+' ? 62 : c == '/' ? 63 : i >= text->size - padding ? 0 : value;
        if (value < 0)
            return false;
        group = group << 6 | (unsigned long)value;
        if (i % 4 == 3) {
            *to++ = (char)(unsigned char)(group >> 16 & 0xff);
            *to++ = (char)(unsigned char)(group >> 8 & 0xff);
            *to++ = (char)(unsigned char)(group & 0xff);
            group = 0;
        }
    }
    text->size = text->size / 4 * 3 - padding;
    return true;
}

/* Read the list of hosts, dst. */
static inline bool sbus_envelope_hosts_(struct sbus_json_ *json) {
    uint64_t number;
    bool is_integer;
    int count = 0;
    if (!sbus_json_mark_(json, '['))
        return false;
    if (sbus_json_mark_(json, ']'))
        return true;
    do {
        if (++count > 256 || !sbus_json_number_(json, &is_integer, &number) || !is_integer || number > 0xffffffff)
            return false;
    } while (sbus_json_mark_(json, ','));
    return sbus_json_mark_(json, ']');
}

/* Read the trace context. A value that is not one is ignored, whatever its type. */
static inline bool sbus_envelope_context_(struct sbus_json_ *json, struct sbus_bytes *context) {
    struct sbus_bytes text;
    sbus_json_blank_(json);
    if (json->next == json->end || *json->next != '"')
        return sbus_json_skip_(json, SBUS_JSON_DEPTH_);
    if (!sbus_json_string_(json, &text))
        return false;
    if (sbus_is_context_(text))
        *context = text;
    return true;
}

/* Read the value of the member *name*; others than those of an envelope are skipped. */
static inline bool sbus_envelope_member_(struct sbus_json_ *json, struct sbus_bytes name, struct sbus_envelope_ *envelope,
                                         bool *has_version) {
    struct sbus_bytes shm;
    uint64_t ignored;
    const struct {
        const char *name;
        struct sbus_bytes *value;
        size_t most;
    } texts[] = {{"uid", &envelope->uid, 128},  {"cmd", &envelope->cmd, 256}, {"ret", &envelope->ret, 4096},
                 {"err", &envelope->err, 4096}, {"shm", &shm, 256},           {"dat", &envelope->dat, SBUS_PACKET_BYTES}};
    const struct {
        const char *name;
        uint64_t *value, least, most;
    } numbers[] = {{"exp", &envelope->exp, 0, 31536000},
                   {"now", &envelope->now, 0, (uint64_t)1 << 53},
                   {"try", &ignored, 0, 1000},
                   {"src", &ignored, 0, 0xffffffff},
                   {"ver", &ignored, 1, 1},
                   {"cancel", &envelope->cancel, 0, 1},
                   {"seq", &envelope->seq, 0, (uint64_t)1 << 53},
                   {"more", &envelope->more, 0, 1},
                   {"win", &envelope->win, 0, (uint64_t)1 << 53}};
    bool is_integer;
    size_t i;
    for (i = 0; i < sizeof texts / sizeof *texts; i++)
        if (sbus_equal(name, texts[i].name))
            return sbus_json_string_(json, texts[i].value) && texts[i].value->size <= texts[i].most;
    for (i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sbus_equal(name, numbers[i].name)) {
            *has_version = *has_version || sbus_equal(name, "ver");
            return sbus_json_number_(json, &is_integer, numbers[i].value) && is_integer && *numbers[i].value >= numbers[i].least &&
                   *numbers[i].value <= numbers[i].most;
        }
    if (sbus_equal(name, "ctx"))
        return sbus_envelope_context_(json, &envelope->ctx);
    return sbus_equal(name, "dst") ? sbus_envelope_hosts_(json) : sbus_json_skip_(json, SBUS_JSON_DEPTH_);
}

/* Return an envelope whose members have their defaults. */
static inline struct sbus_envelope_ sbus_empty_envelope_(void) {
    struct sbus_envelope_ envelope;
    memset(&envelope, 0, sizeof envelope);
    envelope.uid = envelope.cmd = envelope.ret = envelope.err = envelope.dat = envelope.ctx = sbus_bytes_("", 0);
    return envelope;
}

/* Read the envelope in *payload*, which changes. Returns whether it is valid; uid and ret have to be of ASCII. */
static inline bool sbus_envelope_parse_(struct sbus_bytes payload, struct sbus_envelope_ *envelope) {
    struct sbus_json_ json;
    struct sbus_bytes name;
    bool has_version = false;
    *envelope = sbus_empty_envelope_();
    json.next = (char *)(uintptr_t)payload.data;
    json.end = json.next + payload.size;
    if (!sbus_is_utf8_(payload) || !sbus_json_mark_(&json, '{'))
        return false;
    do {
        if (!sbus_json_string_(&json, &name) || !sbus_json_mark_(&json, ':'))
            return false;
        if (!sbus_envelope_member_(&json, name, envelope, &has_version))
            return false;
    } while (sbus_json_mark_(&json, ','));
    if (!sbus_json_mark_(&json, '}'))
        return false;
    sbus_json_blank_(&json);
    if (json.next != json.end || !has_version || envelope->uid.size == 0 || envelope->cmd.size == 0)
        return false;
    if (!sbus_is_plain_(envelope->uid) || !sbus_is_plain_(envelope->ret))
        return false;
    return envelope->dat.size == 0 || sbus_decode_base64_(&envelope->dat);
}

/* Write *text* as it is in a JSON string: '"' and '\' escaped, and '?' for control characters, and for all but ASCII if it is not UTF-8.
 * *to* needs room for twice the size. */
static inline char *sbus_write_text_(char *to, struct sbus_bytes text) {
    bool is_utf8 = sbus_is_utf8_(text);
    size_t i;
    for (i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c == '"' || c == '\\')
            *to++ = '\\';
        *to++ = c < 0x20 || c == 0x7f || (c >= 0x80 && !is_utf8) ? '?' : (char)c;
    }
    return to;
}

static inline char *sbus_write_base64_(char *to, struct sbus_bytes data) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t i;
    for (i = 0; i < data.size; i += 3) {
        size_t left = data.size - i;
        unsigned long group = (unsigned long)(unsigned char)data.data[i] << 16;
        group |= left > 1 ? (unsigned long)(unsigned char)data.data[i + 1] << 8 : 0;
        group |= left > 2 ? (unsigned long)(unsigned char)data.data[i + 2] : 0;
        *to++ = digits[group >> 18 & 63];
        *to++ = digits[group >> 12 & 63];
        *to++ = left > 1 ? digits[group >> 6 & 63] : '=';
        *to++ = left > 2 ? digits[group & 63] : '=';
    }
    return to;
}

/* Write the members that are omitted if they have their default. */
static inline char *sbus_write_options_(char *to, const struct sbus_envelope_ *envelope) {
    if (envelope->cancel)
        to += sprintf(to, ",\"cancel\":%llu", (unsigned long long)envelope->cancel);
    if (envelope->seq)
        to += sprintf(to, ",\"seq\":%llu", (unsigned long long)envelope->seq);
    if (envelope->more)
        to += sprintf(to, ",\"more\":%llu", (unsigned long long)envelope->more);
    if (envelope->win)
        to += sprintf(to, ",\"win\":%llu", (unsigned long long)envelope->win);
    if (!envelope->ctx.size)
        return to;
    to += sprintf(to, ",\"ctx\":\"");
    to = sbus_write_text_(to, envelope->ctx);
    *to++ = '"';
    return to;
}

/* Return the JSON of *envelope* in memory to free(3), and its size; NULL with errno EMSGSIZE if it cannot fit into a packet,
 * EINVAL if it has a size of data without data, or ENOMEM. */
static inline char *sbus_envelope_write_(const struct sbus_envelope_ *envelope, size_t *size) {
    size_t texts = envelope->uid.size + envelope->cmd.size + envelope->ret.size + envelope->err.size + envelope->ctx.size;
    char *json, *to;
    if (envelope->dat.size && !envelope->dat.data) {
        errno = EINVAL;
        return NULL;
    }
    if (envelope->dat.size > SBUS_PACKET_BYTES / 4 * 3) {
        errno = EMSGSIZE;
        return NULL;
    }
    json = to = (char *)malloc(400 + 2 * texts + envelope->dat.size / 3 * 4 + 4);
    if (!json)
        return NULL;
    to += sprintf(to, "{\"ver\":1,\"exp\":%llu,", (unsigned long long)envelope->exp);
    to += sprintf(to, "\"now\":%llu,\"uid\":\"", (unsigned long long)envelope->now);
    to = sbus_write_text_(to, envelope->uid);
    to += sprintf(to, "\",\"cmd\":\"");
    to = sbus_write_text_(to, envelope->cmd);
    to += sprintf(to, "\",\"ret\":\"");
    to = sbus_write_text_(to, envelope->ret);
    to += sprintf(to, "\",\"err\":\"");
    to = sbus_write_text_(to, envelope->err);
    to += sprintf(to, "\",\"dat\":\"");
    to = sbus_write_base64_(to, envelope->dat);
    *to++ = '"';
    to = sbus_write_options_(to, envelope);
    *to++ = '}';
    *size = (size_t)(to - json);
    return json;
}

#endif
