/* Burst: one publisher, at full speed and without a window, as another user if that is asked for. */
#include "bus.h"
#include "message.h"
#include "modes.h"

#include <stdio.h>
#include <unistd.h>

void burst(const struct options *options) {
    static struct message message;
    if (options->uid && setresuid(options->uid, options->uid, options->uid))
        die("setresuid to %u", options->uid);
    message_init(&message, options->payload, options->keys);
    int source = bus_connect(options->path);
    bus_barrier(source);
    int64_t start = now_ns();
    for (uint32_t i = 0; i < options->messages; i++) {
        message_number(&message, i);
        bus_send(source, message.packet, message.length);
    }
    /* What is answered behind them says that the bus has routed them all. */
    bus_barrier(source);
    printf("{\"published\": %u, \"wall_ns\": %lld}\n", options->messages, (long long)(now_ns() - start));
}
