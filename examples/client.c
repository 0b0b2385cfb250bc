/* A client without a library: subscribes to a pattern and prints each message.
 *
 *     cc -o client examples/client.c && ./client chat/
 *
 * A packet is "MSG", a space, the key, a NUL byte and the payload. Packets of the bus itself begin with "CMSG" or "ERR".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int main(int argc, char **argv) {
    static char packet[409600]; /* the longest packet */
    struct sockaddr_un bus = {.sun_family = AF_UNIX};
    const char *path = getenv("SBUS_ADDRESS");
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ssize_t size;

    snprintf(bus.sun_path, sizeof bus.sun_path, "%s", path && *path ? path : "/run/sbus.socket");
    if (fd < 0 || connect(fd, (struct sockaddr *)&bus, sizeof bus) < 0) {
        perror(bus.sun_path);
        return 1;
    }
    size = snprintf(packet, sizeof packet, "SUB %s", argc > 1 ? argv[1] : "chat/");
    if (send(fd, packet, size, 0) != size)
        perror("send");
    while ((size = recv(fd, packet, sizeof packet, 0)) > 0) {
        char *end = memchr(packet, 0, size);
        if (strncmp(packet, "MSG ", 4) == 0 && end)
            printf("%s\t%.*s\n", packet + 4, (int)(packet + size - end - 1), end + 1);
        else
            printf("from the bus: %.*s\n", (int)size, packet); /* such as an error, or CMSG !/bus/lost */
        fflush(stdout);
    }
    return size < 0;
}
