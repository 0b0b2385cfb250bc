/* Round trip: one thread sends on one socket and sleeps in recv on another until the bus has brought the message. */
#include "bus.h"
#include "message.h"
#include "modes.h"
#include "times.h"

#include <stdlib.h>
#include <sys/socket.h>

static int64_t once(int source, int drain, struct message *message, uint32_t sequence) {
    static char packet[BENCH_PACKET_BYTES];
    message_number(message, sequence);
    int64_t start = now_ns();
    bus_send(source, message->packet, message->length);
    ssize_t length = recv(drain, packet, sizeof packet, 0);
    int64_t end = now_ns();
    if (length < 0)
        die("recv from the bus");
    message_check(message, packet, (size_t)length, sequence);
    return end - start;
}

void trip(const struct options *options) {
    static struct message message;
    int64_t *times = calloc(options->messages, sizeof *times);
    if (!times)
        die("no memory");
    message_init(&message, options->payload, options->keys);
    int source = bus_connect(options->path), drain = bus_connect(options->path);
    bus_subscribe(drain, MESSAGE_PATTERN);
    bus_barrier(drain);
    bus_barrier(source);
    for (uint32_t i = 0; i < options->warm_up; i++)
        once(source, drain, &message, i);
    for (uint32_t i = 0; i < options->messages; i++)
        times[i] = once(source, drain, &message, options->warm_up + i);
    bus_barrier(drain);
    print_percentiles(times, options->messages);
    free(times);
}
