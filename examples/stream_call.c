/* A call in C whose response has parts: prints the numbers that stream_service.c or a Python service "count" sends.
 *
 *     cc -Iclients/c -o stream_call examples/stream_call.c && ./stream_call 1000
 *
 * If TRACEPARENT is set, it is the trace context of the call.
 */
#include <sbus.h>

int main(int argc, char **argv) {
    const char *count = argc > 1 ? argv[1] : "10";
    struct sbus bus;
    struct sbus_reply part;
    int status;

    if (sbus_connect(&bus, NULL, 0) < 0 || sbus_stream_start(&bus, "count", count, strlen(count), getenv("TRACEPARENT"), 16, 10000) < 0) {
        fprintf(stderr, "stream_call: %s\n", sbus_error(&bus));
        return 1;
    }
    while ((status = sbus_stream_next(&bus, 10000, &part)) > 0)
        printf("%.*s\n", (int)part.data.size, part.data.data);
    if (status < 0)
        fprintf(stderr, "stream_call: %s\n", sbus_error(&bus));
    sbus_call_cancel(&bus); /* unless it has ended */
    sbus_close(&bus);
    return status < 0;
}
