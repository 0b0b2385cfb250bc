/* A window that no more messages may be in, kept in memory that a publisher and a receiver process share, never over the bus.
 *
 * It is what makes relays comparable that queue and relays that block, and what lets the bench insist that nothing is lost. The receiver
 * says how far the slowest recipient is; a publisher that has filled the window sleeps until half of it is free, so that the two do not
 * wake each other for every packet. */
#ifndef BENCH_WINDOW_H
#define BENCH_WINDOW_H

#include <stdatomic.h>
#include <stdint.h>

struct window {
    _Atomic uint32_t received; /* what the slowest recipient has */
    _Atomic uint32_t wake_at;  /* the publisher sleeps until received reaches this; 0: it does not sleep */
    _Atomic uint32_t sent;     /* by the publisher, as it last said, for a receiver that has to give something up */
    _Atomic uint32_t is_done;  /* the publisher sends no more; sent is all of it */
    int64_t start_ns, start_cpu_ns;
    uint32_t warm_up;          /* messages before start_ns, where time and not a count ends the warm-up */
};

/* Make one that a child process shares. */
struct window *window_new(void);

/* Publisher: sleep until the slowest recipient has *wanted* messages. */
void window_wait(struct window *window, uint32_t wanted);

/* Receiver: say how far the slowest recipient is. */
void window_report(struct window *window, uint32_t received);

#endif
