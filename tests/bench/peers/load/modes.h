/* The three things that the load does to a daemon, and the options that they share. */
#ifndef PEERS_MODES_H
#define PEERS_MODES_H

#include <stddef.h>
#include <stdint.h>

#include "wire.h"

struct options {
    const struct protocol *protocol;
    const char *address; /* a path, or a port of 127.0.0.1 */
    const char *drain;   /* that of the receivers, if it is another */
    const char *settled; /* a command that ends when a subscription is in force everywhere; NULL: none is needed */
    int daemon_pid;      /* whose CPU is measured; 0: none */
    size_t payload;      /* bytes, from 8 */
    uint32_t receivers;  /* pump */
    uint32_t window;     /* pump: most messages between the publisher and the slowest recipient */
    uint32_t group;      /* pump: messages that leave together, 1 to GROUP_MAX */
    uint32_t warm_up_ms; /* pump */
    uint32_t run_ms;     /* pump: for how long is published, behind the warm-up */
    uint32_t trips;      /* trip, churn: how many, of clients too, are measured; a tenth more goes before them */
};

/* Run the command of *options*, if there is one, after the receivers have subscribed. */
void settle(const struct options *options);

/* Publish as fast as the window allows, for a time, from one process to *receivers* connections of another; print rate, CPU and losses. */
void pump(const struct options *options);

/* Send a message and wait for it on a second connection of the same thread, again and again; print percentiles. */
void trip(const struct options *options);

/* Connect, subscribe and close, again and again; print rate and CPU. */
void churn(const struct options *options);

#endif
