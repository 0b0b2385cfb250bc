/* A client in C, with the header sbus.h(3): subscribes to a pattern and prints each message.
 *
 *     cc -Iclients/c -o client examples/client.c && ./client chat/
 */
#include <sbus.h>

int main(int argc, char **argv) {
    struct sbus bus;
    struct sbus_packet packet;

    if (sbus_connect(&bus, NULL, SBUS_RECONNECT) < 0 || sbus_subscribe(&bus, argc > 1 ? argv[1] : "chat/") < 0) {
        fprintf(stderr, "client: %s\n", sbus_error(&bus));
        return 1;
    }
    while (sbus_next(&bus, &packet, -1) > 0) {
        if (packet.kind == SBUS_MESSAGE)
            printf("%.*s\t%.*s\n", (int)packet.key.size, packet.key.data, (int)packet.payload.size, packet.payload.data);
        else if (packet.kind == SBUS_RECONNECTED)
            printf("connected again; messages may be missing\n");
        else /* such as an error, or !/bus/lost */
            printf("from the bus: %.*s\t%.*s\n", (int)packet.key.size, packet.key.data, (int)packet.payload.size, packet.payload.data);
        fflush(stdout);
    }
    fprintf(stderr, "client: %s\n", sbus_error(&bus));
    sbus_close(&bus);
    return 1;
}
