/* What a connection keeps for the next one: subscriptions, services and modes. See sbus.h(3). */
#ifndef SBUS_SUBSCRIPTION_H
#define SBUS_SUBSCRIPTION_H

#include "connection.h"

/* Return whether *saved* is a service. */
static inline bool sbus_is_service_(const struct sbus_saved_ *saved) {
    return strcmp(saved->verb, SBUS_SERVICE_) == 0 || strcmp(saved->verb, SBUS_SERVICE_ALL_) == 0;
}

/* Send a saved packet on a new connection. */
static inline int sbus_send_saved_(struct sbus *bus, const struct sbus_saved_ *saved) {
    if (strcmp(saved->verb, SBUS_JOIN_) == 0)
        return sbus_send_(bus, "CMSG ", "group/join", saved->text, saved->size);
    return strncmp(saved->text, "!/conn/", 7) == 0 ? 0 : sbus_send_(bus, saved->verb, saved->text, NULL, 0);
}

/* Send all saved packets on a new connection. Patterns under the address of the old connection are left out. Those of services follow
 * when the bus has responded with the new address. */
static inline int sbus_restore_(struct sbus *bus) {
    const struct sbus_saved_ *saved;
    bool is_service = false;
    for (saved = bus->saved_; saved; saved = saved->next)
        if (sbus_is_service_(saved))
            is_service = true;
        else if (sbus_send_saved_(bus, saved) < 0)
            return -1;
    return is_service ? sbus_send_(bus, "CMSG ", "!/conn/whoami", NULL, 0) : 0;
}

/* Store or remove both patterns of a service, whose key is *pattern*: at its own address first, then for all, or in the queue group of
 * services. *kind* is SBUS_SERVICE_ or SBUS_SERVICE_ALL_. */
static inline int sbus_subscribe_service_(struct sbus *bus, const char *kind, bool on, const char *pattern) {
    const char *verb = on ? "SUB " : "UNSUB ";
    char text[340];
    int size;
    snprintf(text, sizeof text, "!/conn/%llu/%.280s", (unsigned long long)bus->id_, pattern);
    if (sbus_send_(bus, verb, text, NULL, 0) < 0)
        return -1;
    if (strcmp(kind, SBUS_SERVICE_ALL_) == 0)
        return sbus_send_(bus, verb, pattern, NULL, 0);
    size = snprintf(text, sizeof text, "%s%c%.280s", SBUS_SERVICE_GROUP_, 0, pattern);
    return sbus_send_(bus, "CMSG ", on ? "group/join" : "group/leave", text, (size_t)size);
}

/* Learn the own address, from the response to !/conn/whoami; the first time, subscribe to the patterns of all services. */
static inline int sbus_learn_address_(struct sbus *bus, struct sbus_bytes address) {
    const struct sbus_saved_ *saved;
    uint64_t id;
    if (bus->id_ || !sbus_skip_(&address, "!/conn/") || !sbus_id_(&address, 20, &id) || !sbus_equal(address, "/"))
        return 0;
    bus->id_ = id;
    for (saved = bus->saved_; saved; saved = saved->next)
        if (sbus_is_service_(saved) && sbus_subscribe_service_(bus, saved->verb, true, saved->text) < 0)
            return -1;
    return 0;
}

/* Remember a packet for the next connection, behind all others. Returns its place, or NULL with errno ENOMEM. */
static inline struct sbus_saved_ *sbus_save_(struct sbus *bus, const char *verb, const char *text, size_t size) {
    struct sbus_saved_ **end = &bus->saved_, *saved = (struct sbus_saved_ *)malloc(sizeof *saved + size);
    if (!saved) {
        sbus_fail_(bus, ENOMEM, "no memory for a subscription");
        return NULL;
    }
    saved->next = NULL;
    saved->verb = verb;
    saved->size = size;
    memcpy(saved->text, text, size);
    saved->text[size] = 0;
    while (*end)
        end = &(*end)->next;
    return *end = saved;
}

/* Return whether a packet of *verb* with exactly *text* is saved. */
static inline bool sbus_is_saved_(const struct sbus *bus, const char *verb, const char *text) {
    const struct sbus_saved_ *saved;
    for (saved = bus->saved_; saved; saved = saved->next)
        if (strcmp(saved->verb, verb) == 0 && strcmp(saved->text, text) == 0)
            return true;
    return false;
}

/* Forget the first saved packet of *verb* whose text, with the NUL behind it, begins with the first *size* bytes of *text*. */
static inline bool sbus_forget_(struct sbus *bus, const char *verb, const char *text, size_t size) {
    struct sbus_saved_ **place, *saved;
    for (place = &bus->saved_; (saved = *place) != NULL; place = &saved->next)
        if (strcmp(saved->verb, verb) == 0 && size <= saved->size + 1 && memcmp(saved->text, text, size) == 0) {
            *place = saved->next;
            free(saved);
            return true;
        }
    return false;
}

/* Forget *saved*, which is the last one, or one before it. */
static inline void sbus_discard_saved_(struct sbus *bus, struct sbus_saved_ *saved) {
    struct sbus_saved_ **place = &bus->saved_;
    while (*place != saved)
        place = &(*place)->next;
    *place = saved->next;
    free(saved);
}

/* Subscribe to *pattern*. If the bus refuses it, sbus_next() returns SBUS_REFUSED later.
 *
 * Returns 0, or -1 with errno as for sbus_publish(), or ENOMEM: then the connection has no further subscription. */
static inline int sbus_subscribe(struct sbus *bus, const char *pattern) {
    struct sbus_saved_ *saved;
    if (sbus_flush(bus) < 0 || !(saved = sbus_save_(bus, "SUB ", pattern, strlen(pattern))))
        return -1;
    if (sbus_send_(bus, "SUB ", pattern, NULL, 0) == 0)
        return 0;
    sbus_discard_saved_(bus, saved);
    return -1;
}

/* Remove one subscription to *pattern*. Returns 0, or -1 with errno as for sbus_publish(). */
static inline int sbus_unsubscribe(struct sbus *bus, const char *pattern) {
    if (sbus_flush(bus) < 0 || sbus_send_(bus, "UNSUB ", pattern, NULL, 0) < 0)
        return -1;
    sbus_forget_(bus, "SUB ", pattern, strlen(pattern) + 1);
    return 0;
}

/* Send a control message; *payload* NULL: without NUL and payload. It is not sent again on a new connection.
 *
 * Returns 0, or -1 with errno as for sbus_publish(). */
static inline int sbus_control(struct sbus *bus, const char *name, const void *payload, size_t size) {
    return sbus_flush(bus) < 0 ? -1 : sbus_send_(bus, "CMSG ", name, payload, payload ? size : 0);
}

/* Put "<group> NUL <pattern>" into memory to free(3), with a NUL behind it, and its size into *size*; NULL with errno ENOMEM. */
static inline char *sbus_membership_(struct sbus *bus, const char *group, const char *pattern, size_t *size) {
    size_t group_size = strlen(group) + 1, pattern_size = strlen(pattern) + 1;
    char *made = (char *)malloc(group_size + pattern_size);
    if (!made) {
        sbus_fail_(bus, ENOMEM, "no memory for a subscription");
        return NULL;
    }
    memcpy(made, group, group_size);
    memcpy(made + group_size, pattern, pattern_size);
    *size = group_size + pattern_size - 1;
    return made;
}

/* Subscribe to *pattern* as a member of the queue group *group*: of all its members, one gets each message. Also after a reconnection. If
 * the bus refuses it, sbus_next() returns SBUS_REFUSED later.
 *
 * Returns 0, or -1 with errno as for sbus_subscribe(). */
static inline int sbus_join(struct sbus *bus, const char *group, const char *pattern) {
    struct sbus_saved_ *saved;
    size_t size;
    int status;
    char *text = sbus_membership_(bus, group, pattern, &size);
    if (!text)
        return -1;
    saved = sbus_save_(bus, SBUS_JOIN_, text, size);
    status = saved ? sbus_control(bus, "group/join", text, size) : -1;
    free(text);
    if (saved && status < 0)
        sbus_discard_saved_(bus, saved);
    return status;
}

/* Remove one subscription to *pattern* as a member of *group*. Returns 0, or -1 with errno as for sbus_subscribe(). */
static inline int sbus_leave(struct sbus *bus, const char *group, const char *pattern) {
    size_t size;
    int status;
    char *text = sbus_membership_(bus, group, pattern, &size);
    if (!text)
        return -1;
    status = sbus_control(bus, "group/leave", text, size);
    if (status == 0)
        sbus_forget_(bus, SBUS_JOIN_, text, size + 1);
    free(text);
    return status;
}

#define SBUS_ORDER_ "order/" /* with what every order of the queue begins */

/* Set a mode without a payload, such as "order/latest", also on later connections. Of one group, such as "order/", the last applies.
 *
 * Returns 0, or -1 with errno as for sbus_publish(), or ENOMEM. */
static inline int sbus_set(struct sbus *bus, const char *mode) {
    const char *slash = strrchr(mode, '/');
    if (!slash)
        return sbus_fail_(bus, EINVAL, "'%s' is not a mode: it has no '/'", mode);
    if (sbus_control(bus, mode, NULL, 0) < 0)
        return -1;
    sbus_forget_(bus, "CMSG ", mode, (size_t)(slash - mode) + 1);
    bus->has_turns_ = bus->has_turns_ && strncmp(mode, SBUS_ORDER_, sizeof SBUS_ORDER_ - 1) != 0;
    return sbus_save_(bus, "CMSG ", mode, strlen(mode)) ? 0 : -1;
}

#endif
