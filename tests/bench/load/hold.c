/* Weight: connections and patterns that no traffic of the bench ever matches. */
#include "bus.h"
#include "modes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* How many SUB go between barriers: few enough that refusals of all of them would still fit into the socket. */
#define STRIDE 100

static void hold_patterns(int fd, uint32_t first, uint32_t count) {
    char pattern[64];
    for (uint32_t i = 0; i < count; i++) {
        snprintf(pattern, sizeof pattern, "idle/%u/*/x", first + i);
        bus_subscribe(fd, pattern);
        if (i % STRIDE == STRIDE - 1)
            bus_barrier(fd);
    }
    bus_barrier(fd);
}

void hold(const struct options *options) {
    char byte;
    allow_descriptors(options->connections);
    for (uint32_t i = 0; i < options->connections; i++)
        hold_patterns(bus_connect(options->path), i * options->patterns, options->patterns);
    alarm(0); /* from here on it is held as long as the bench wants, and no longer than the bench lives */
    puts("ready");
    fclose(stdout);
    errno = 0;
    if (read(STDIN_FILENO, &byte, 1) != 0)
        die("standard input should have ended");
}
