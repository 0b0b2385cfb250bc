/* The five things the load generator can do to a bus, and the options that they share. */
#ifndef BENCH_MODES_H
#define BENCH_MODES_H

#include <stdint.h>

struct options {
    const char *path;     /* of the bus's socket */
    int relay_pid;        /* whose CPU is measured; 0: none */
    unsigned seconds;     /* after which the run is given up */
    uint32_t messages;    /* pump, trip: how many are measured; churn: how many clients */
    uint32_t warm_up;     /* pump, trip, churn: how many go before them */
    uint32_t payload;     /* pump, trip: bytes of payload, at least 8 */
    uint32_t receivers;   /* pump */
    uint32_t window;      /* pump: most messages between the publisher and the slowest recipient */
    uint32_t keys;        /* pump: how many different keys take turns */
    uint32_t together;    /* pump: messages that the publisher sends in one batch; 1: none, each goes alone */
    uint32_t blocks;      /* pump: 1: the receivers let the publisher wait for them */
    uint32_t batches;     /* pump: 1: the receivers want batches */
    uint32_t connections; /* hold */
    uint32_t patterns;    /* hold: on each connection */
    uint32_t uid;         /* burst: of the publisher; 0: who runs it */
};

/* Publish as fast as the window allows from one process to *receivers* sockets in another; print rate and CPU. */
void pump(const struct options *options);

/* Send a message and wait for it on a second socket of the same thread, again and again; print percentiles. */
void trip(const struct options *options);

/* Connect, ask `whoami`, subscribe, wait for a barrier and close, again and again; print rate and CPU. */
void churn(const struct options *options);

/* Open connections with patterns that no traffic matches, print "ready", and hold them until standard input ends. */
void hold(const struct options *options);

/* Publish at full speed, and print when the bus has routed everything. */
void burst(const struct options *options);

#endif
