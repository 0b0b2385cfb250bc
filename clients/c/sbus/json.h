/* A reader of JSON in memory, as strict as RFC 8259. No I/O. Envelopes of calls are JSON: sbus-rpc(7). */
#ifndef SBUS_JSON_H
#define SBUS_JSON_H

#include "packet.h"

#define SBUS_JSON_DEPTH_ 32 /* of values that are skipped: envelopes need one level */

/* The rest of a text. Strings are decoded in its place, so it changes. */
struct sbus_json_ {
    char *next, *end;
};

/* Return whether *bytes* are UTF-8 without surrogates and overlong forms. */
static inline bool sbus_is_utf8_(struct sbus_bytes bytes) {
    size_t i = 0;
    while (i < bytes.size) {
        unsigned char first = (unsigned char)bytes.data[i++];
        unsigned more = first < 0x80 ? 0 : first < 0xc2 ? 4 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : first < 0xf5 ? 3 : 4;
        unsigned long value = more == 1 ? first & 0x1fu : more == 2 ? first & 0x0fu : first & 0x07u;
        unsigned k;
        if (more > 3 || bytes.size - i < more)
            return false;
        for (k = 0; k < more; k++) {
            unsigned char next = (unsigned char)bytes.data[i++];
            if ((next & 0xc0) != 0x80)
                return false;
            value = value << 6 | (next & 0x3fu);
        }
        if ((more == 2 && (value < 0x800 || (value >= 0xd800 && value < 0xe000))) || (more == 3 && (value < 0x10000 || value > 0x10ffff)))
            return false;
    }
    return true;
}

static inline void sbus_json_blank_(struct sbus_json_ *json) {
    while (json->next < json->end && (*json->next == ' ' || *json->next == '\t' || *json->next == '\n' || *json->next == '\r'))
        json->next++;
}

/* Skip blanks and *mark*; return whether it was there. */
static inline bool sbus_json_mark_(struct sbus_json_ *json, char mark) {
    sbus_json_blank_(json);
    if (json->next == json->end || *json->next != mark)
        return false;
    json->next++;
    return true;
}

/* Read four hexadecimal digits. */
static inline bool sbus_json_unit_(struct sbus_json_ *json, unsigned long *unit) {
    int i;
    *unit = 0;
    if (json->end - json->next < 4)
        return false;
    for (i = 0; i < 4; i++) {
        char c = *json->next++;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return false;
        *unit = *unit << 4 | (unsigned long)digit;
    }
    return true;
}

/* Read what follows a backslash and write it at *to* in UTF-8, which is never longer. A surrogate without its pair is an error. */
static inline char *sbus_json_escape_(struct sbus_json_ *json, char *to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    unsigned long code, low;
    const char *found;
    char name;
    if (json->next == json->end)
        return NULL;
    name = *json->next++;
    if (name != 'u') {
        found = name ? strchr(names, name) : NULL;
        if (!found)
            return NULL;
        *to = values[found - names];
        return to + 1;
    }
    if (!sbus_json_unit_(json, &code) || (code >= 0xdc00 && code < 0xe000))
        return NULL;
    if (code >= 0xd800 && code < 0xdc00) {
        if (json->end - json->next < 6 || json->next[0] != '\\' || json->next[1] != 'u')
            return NULL;
        json->next += 2;
        if (!sbus_json_unit_(json, &low) || low < 0xdc00 || low >= 0xe000)
            return NULL;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    if (code >= 0x10000) {
        *to++ = (char)(unsigned char)(0xf0 | code >> 18);
        *to++ = (char)(unsigned char)(0x80 | (code >> 12 & 0x3f));
    } else if (code >= 0x800)
        *to++ = (char)(unsigned char)(0xe0 | code >> 12);
    if (code >= 0x800)
        *to++ = (char)(unsigned char)(0x80 | (code >> 6 & 0x3f));
    else
        *to++ = (char)(unsigned char)(0xc0 | code >> 6);
    *to++ = (char)(unsigned char)(0x80 | (code & 0x3f));
    return to;
}

/* Read a string, and decode it in its place. */
static inline bool sbus_json_string_(struct sbus_json_ *json, struct sbus_bytes *text) {
    char *start, *to;
    if (!sbus_json_mark_(json, '"'))
        return false;
    start = to = json->next;
    while (json->next < json->end && *json->next != '"') {
        char c = *json->next++;
        if ((unsigned char)c < 0x20)
            return false;
        if (c != '\\')
            *to++ = c;
        else if (!(to = sbus_json_escape_(json, to)))
            return false;
    }
    if (json->next == json->end)
        return false;
    json->next++;
    *text = sbus_bytes_(start, (size_t)(to - start));
    return true;
}

/* Skip a number, and put it into *number* if it is an integer from 0 to 2^64-1 without a sign, a point or an exponent. */
static inline bool sbus_json_number_(struct sbus_json_ *json, bool *is_integer, uint64_t *number) {
    char *start, *digits;
    *number = 0;
    *is_integer = false;
    sbus_json_blank_(json);
    start = json->next;
    if (json->next < json->end && *json->next == '-')
        json->next++;
    digits = json->next;
    while (json->next < json->end && *json->next >= '0' && *json->next <= '9')
        json->next++;
    if (json->next == digits || (*digits == '0' && json->next - digits > 1))
        return false;
    *is_integer = sbus_number_(sbus_bytes_(start, (size_t)(json->next - start)), 20, number);
    if (json->next < json->end && *json->next == '.') {
        *is_integer = false;
        digits = ++json->next;
        while (json->next < json->end && *json->next >= '0' && *json->next <= '9')
            json->next++;
        if (json->next == digits)
            return false;
    }
    if (json->next < json->end && (*json->next == 'e' || *json->next == 'E')) {
        *is_integer = false;
        json->next++;
        if (json->next < json->end && (*json->next == '+' || *json->next == '-'))
            json->next++;
        digits = json->next;
        while (json->next < json->end && *json->next >= '0' && *json->next <= '9')
            json->next++;
        if (json->next == digits)
            return false;
    }
    return true;
}

/* Skip any value; *depth* levels of lists and objects in it are allowed. */
static inline bool sbus_json_skip_(struct sbus_json_ *json, int depth) {
    static const char *const words[] = {"true", "false", "null"};
    struct sbus_bytes text, rest;
    bool is_integer;
    uint64_t number;
    size_t i;
    char mark, close;
    sbus_json_blank_(json);
    if (json->next == json->end)
        return false;
    mark = *json->next;
    if (mark == '"')
        return sbus_json_string_(json, &text);
    if (mark != '{' && mark != '[') {
        rest = sbus_bytes_(json->next, (size_t)(json->end - json->next));
        for (i = 0; i < sizeof words / sizeof *words; i++)
            if (sbus_starts(rest, words[i])) {
                json->next += strlen(words[i]);
                return true;
            }
        return sbus_json_number_(json, &is_integer, &number);
    }
    if (depth == 0)
        return false;
    json->next++;
    close = mark == '{' ? '}' : ']';
    if (sbus_json_mark_(json, close))
        return true;
    do {
        if (mark == '{' && (!sbus_json_string_(json, &text) || !sbus_json_mark_(json, ':')))
            return false;
        if (!sbus_json_skip_(json, depth - 1))
            return false;
    } while (sbus_json_mark_(json, ','));
    return sbus_json_mark_(json, close);
}

#endif
