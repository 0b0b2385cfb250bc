/* A call that has not ended: its callees, and the responses that arrived before they were known. See callees.h and call.h. */
#ifndef SBUS_PENDING_CALL_H
#define SBUS_PENDING_CALL_H

#include "members.h"

#include <stdlib.h>

#define SBUS_MOST_MEMBERS_ 4096 /* of a command that are considered */
#define SBUS_MOST_LISTED_ 128   /* members of a page; the bus lists 100 */
#define SBUS_MOST_HELD_ 16      /* responses of one user that are kept while the callees are not known */
#define SBUS_MOST_LATE_ 1024    /* packets that are read after the timeout: what arrives without end does not prolong it */

/* A connection that has perhaps got the request. */
struct sbus_member_ {
    uint64_t id;
    bool is_service, is_gone;
};

/* A response that arrived before the callees were known. */
struct sbus_held_ {
    struct sbus_held_ *next;
    struct sbus_packet packet;
    char bytes[1]; /* as long as is needed: what the packet points to */
};

/* A call that has not ended. */
struct sbus_call_ {
    struct sbus_member_ *members;
    size_t count;
    struct sbus_held_ *held; /* in the order of their arrival */
    bool is_sent;            /* whether a service can have got the request */
    bool is_resolved;        /* whether the callees are known */
    int64_t deadline;        /* of the function that waits now; INT64_MAX: none */
    unsigned late;           /* packets that were read after it */
    bool is_listed;          /* whether a list has arrived since the last question */
    struct sbus_page_ page;  /* that list */
    uint64_t ids[SBUS_MOST_LISTED_];
    uint64_t window;         /* of a stream: parts that the program accepts ahead; 0: not a stream */
    uint64_t expected;       /* number of the next part */
    uint64_t granted;        /* number of the last part that the service may send */
    uint64_t callee;         /* the service whose part was the first, 0: none yet */
    bool is_start;           /* whether it starts a service: only triggers of root and of the own user count */
    bool has_ended;          /* whether the response that was read last was whole */
    char uid[33], ret[90], key[270];
};

/* Release the memory of *call*, which can be NULL. */
static inline void sbus_call_free_(struct sbus_call_ *call) {
    struct sbus_held_ *held;
    if (!call)
        return;
    while ((held = call->held) != NULL) {
        call->held = held->next;
        free(held);
    }
    free(call->members);
    free(call);
}

#endif
