/* Churn: clients connect, say what the protocol wants first, subscribe, wait until that is in force, and close, one after the other. */
#include "modes.h"

#include "bus.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void live(const struct options *options) {
    struct wire *wire = wire_open(options->protocol, options->address, options->payload);
    options->protocol->subscribe(wire);
    close(wire->fd);
    free(wire->rest);
    free(wire);
}

void churn(const struct options *options) {
    for (uint32_t i = 0; i < options->trips / 10; i++)
        live(options);
    int64_t wall = now_ns(), cpu = cpu_ns(options->daemon_pid);
    for (uint32_t i = 0; i < options->trips; i++)
        live(options);
    cpu = cpu_ns(options->daemon_pid) - cpu;
    wall = now_ns() - wall;
    printf("{\"clients\": %u, \"wall_ns\": %ld, \"relay_cpu_ns\": %ld}\n", options->trips, (long)wall, (long)cpu);
}
