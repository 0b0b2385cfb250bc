/* Round trip: one thread sends on one connection and sleeps on another until the daemon has brought the message. */
#include "modes.h"

#include "bus.h"
#include "times.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void take_message(void *context, const char *payload, size_t length) {
    uint64_t number, *due = context;
    (void)length;
    memcpy(&number, payload, sizeof number);
    errno = 0;
    if (number != *due)
        die("message %lu was due and %lu came", (unsigned long)*due, (unsigned long)number);
    ++*due;
}

void trip(const struct options *options) {
    static char payload[PAYLOAD_MAX];
    const struct protocol *protocol = options->protocol;
    uint32_t warm_up = options->trips / 10;
    int64_t *times = calloc(options->trips, sizeof *times);
    struct wire *drain = wire_open(protocol, options->drain, options->payload);
    struct wire *source = wire_open(protocol, options->address, options->payload);
    if (!times)
        die("no memory");
    protocol->subscribe(drain);
    settle(options);
    if (protocol->be_publisher)
        protocol->be_publisher(source);
    for (uint64_t sent = 0, due = 0; sent < warm_up + options->trips; sent++) {
        memcpy(payload, &sent, sizeof sent);
        int64_t start = now_ns();
        protocol->put(source, payload);
        protocol->flush(source);
        while (due <= sent)
            protocol->receive(drain, 0, take_message, &due);
        if (sent >= warm_up)
            times[sent - warm_up] = now_ns() - start;
    }
    print_percentiles(times, options->trips);
    free(times);
}
