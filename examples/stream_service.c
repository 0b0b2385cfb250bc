/* A service in C that responds in parts: "count" returns the numbers below its argument. See sbus.h(3), Streams.
 *
 *     cc -Iclients/c -o stream_service examples/stream_service.c && ./stream_service
 *
 * It serves many callers at a time, each as fast as it reads, and stops when a caller cancels or disconnects.
 */
#include <sbus.h>

struct stream {
    struct stream *next;
    unsigned long number, end;
    struct sbus_request request;
};

/* Send as many parts as the caller accepts. Returns false at the end of the stream, also if the caller has gone. */
static bool advance(struct sbus *bus, struct stream *stream) {
    char text[30];
    for (; stream->number < stream->end; stream->number++) {
        int size = snprintf(text, sizeof text, "%lu", stream->number);
        if (sbus_respond_part(bus, &stream->request, text, (size_t)size) < 0)
            return errno == EAGAIN; /* until the caller has read some */
    }
    return sbus_respond_end(bus, &stream->request) < 0 && errno == EAGAIN;
}

int main(void) {
    struct sbus bus;
    struct sbus_packet packet;
    struct sbus_request request;
    struct stream *streams = NULL, *stream, **place;

    if (sbus_connect(&bus, NULL, SBUS_RECONNECT) < 0 || sbus_serve(&bus, "count") < 0) {
        fprintf(stderr, "stream_service: %s\n", sbus_error(&bus));
        return 1;
    }
    while (sbus_next(&bus, &packet, -1) > 0) {
        if (sbus_take_request(&bus, &packet, "count", &request) > 0) {
            char text[30];
            stream = (struct stream *)calloc(1, sizeof *stream);
            if (!stream) {
                sbus_respond_error(&bus, &request, "no memory");
                continue;
            }
            snprintf(text, sizeof text, "%.*s", request.data.size < 20 ? (int)request.data.size : 0, request.data.data);
            stream->end = strtoul(text, NULL, 10);
            stream->request = request; /* its data are valid only now */
            stream->next = streams;
            streams = stream;
        }
        for (place = &streams; (stream = *place) != NULL;) {
            if (advance(&bus, stream)) {
                place = &stream->next;
                continue;
            }
            *place = stream->next;
            free(stream);
        }
    }
    fprintf(stderr, "stream_service: %s\n", sbus_error(&bus));
    sbus_close(&bus);
    return 1;
}
