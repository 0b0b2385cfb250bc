/* Lists of the connections that would get a message: responses to !/bus/members. No I/O. Spec: sbus-protocol(7) section 6. */
#ifndef SBUS_MEMBERS_H
#define SBUS_MEMBERS_H

#include "json.h"

/* A page of a list. */
struct sbus_page_ {
    uint64_t next;  /* where the next page begins, 0 if there is none */
    uint64_t first; /* the first connection */
    int64_t uid;    /* its user, -1 if unknown */
    size_t count;   /* connections in the page */
};

/* Return the user in credentials, such as 1001 of "!/cred/1000/1001/4711"; -1 if they have none. */
static inline int64_t sbus_user_of_(struct sbus_bytes cred) {
    size_t end = cred.size, place;
    int64_t uid = 0;
    while (end && cred.data[end - 1] != '/')
        end--;
    end = end ? end - 1 : 0; /* the slash behind the user */
    place = end;
    while (place && cred.data[place - 1] >= '0' && cred.data[place - 1] <= '9')
        place--;
    if (!place || cred.data[place - 1] != '/' || place == end || end - place > 10)
        return -1;
    for (; place < end; place++)
        uid = uid * 10 + (cred.data[place] - '0');
    return uid;
}

/* Read one member, {"id":...,"cred":...}, behind its '{'. */
static inline bool sbus_read_member_(struct sbus_json_ *json, uint64_t *id, int64_t *uid) {
    struct sbus_bytes name, cred;
    bool is_integer;
    *uid = -1;
    do {
        if (!sbus_json_string_(json, &name) || !sbus_json_mark_(json, ':'))
            return false;
        if (sbus_equal(name, "cred")) {
            if (!sbus_json_string_(json, &cred))
                return false;
            *uid = sbus_user_of_(cred);
        } else if (!sbus_equal(name, "id")) {
            if (!sbus_json_skip_(json, SBUS_JSON_DEPTH_))
                return false;
        } else if (!sbus_json_number_(json, &is_integer, id) || !is_integer)
            return false;
    } while (sbus_json_mark_(json, ','));
    return sbus_json_mark_(json, '}');
}

/* Read the page {"next":...,"members":[{"id":...},...]} in *text*, which changes, and put the first *most* numbers into *ids*. Returns
 * whether it is one. */
static inline bool sbus_read_members_(struct sbus_bytes text, struct sbus_page_ *page, uint64_t *ids, size_t most) {
    struct sbus_json_ json, object;
    struct sbus_bytes name;
    bool is_integer;
    uint64_t id = 0;
    int64_t uid;
    memset(page, 0, sizeof *page);
    page->uid = -1;
    json.next = (char *)(uintptr_t)text.data;
    json.end = json.next + text.size;
    if (!sbus_json_mark_(&json, '{'))
        return false;
    do {
        if (!sbus_json_string_(&json, &name) || !sbus_json_mark_(&json, ':'))
            return false;
        object = json;
        if (sbus_equal(name, "next") && (!sbus_json_number_(&object, &is_integer, &page->next) || !is_integer))
            page->next = 0;
        if (!sbus_equal(name, "members")) {
            if (!sbus_json_skip_(&json, SBUS_JSON_DEPTH_))
                return false;
            continue;
        }
        if (!sbus_json_mark_(&json, '['))
            return false;
        if (sbus_json_mark_(&json, ']'))
            continue;
        do {
            if (!sbus_json_mark_(&json, '{') || !sbus_read_member_(&json, &id, &uid))
                return false;
            if (page->count == 0) {
                page->first = id;
                page->uid = uid;
            }
            if (page->count < most)
                ids[page->count] = id;
            page->count++;
        } while (sbus_json_mark_(&json, ','));
        if (!sbus_json_mark_(&json, ']'))
            return false;
    } while (sbus_json_mark_(&json, ','));
    return sbus_json_mark_(&json, '}');
}

#endif
