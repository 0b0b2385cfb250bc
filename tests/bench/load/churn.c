/* Clients that come, ask who they are, subscribe, wait until that is in force, and go: what a short command does to a bus. */
#include "bus.h"
#include "modes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Ask under which name the bus knows the client. A relay that knows none gives the question back. */
static void ask_name(int fd) {
    static const char question[] = "CMSG !/cred/whoami";
    char answer[512];
    errno = 0;
    bus_send(fd, question, sizeof question - 1);
    ssize_t length = recv(fd, answer, sizeof answer, 0);
    if (length < 0)
        die("recv from the bus");
    if (length < (ssize_t)sizeof question - 1 || memcmp(answer, question, sizeof question - 1) != 0)
        bus_unexpected(answer, (size_t)length);
}

static void live(const struct options *options) {
    int fd = bus_connect(options->path);
    ask_name(fd);
    bus_subscribe(fd, "bench/churn");
    bus_barrier(fd);
    close(fd);
}

/* Wait until the bus has handled the ends of all clients before this one: it is served after them. */
static void settle(const struct options *options) {
    int fd = bus_connect(options->path);
    bus_barrier(fd);
    close(fd);
}

void churn(const struct options *options) {
    for (uint32_t i = 0; i < options->warm_up; i++)
        live(options);
    settle(options);
    int64_t wall = now_ns(), cpu = cpu_ns(options->relay_pid);
    for (uint32_t i = 0; i < options->messages; i++)
        live(options);
    settle(options);
    cpu = cpu_ns(options->relay_pid) - cpu;
    wall = now_ns() - wall;
    printf("{\"clients\": %u, \"wall_ns\": %ld, \"relay_cpu_ns\": %ld}\n", options->messages, (long)wall, (long)cpu);
}
