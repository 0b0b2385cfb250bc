/* broker PATH: run dbus-broker at a socket, with a policy that allows everything, until it is terminated.
 *
 * dbus-broker gets its sockets and its policy from a controller. The one it comes with, dbus-broker-launch, needs a running systemd; this one
 * does not, and does nothing else. Closes standard output when it is ready; dbus-broker is its only child. */
#include "bus.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#define CONTROLLER_FD 3
/* Of the policy: verdict and priority of connecting; then of owning names, of sending, and of receiving. */
#define RULES "bta(btbs)a(btssssuutt)a(btssssuutt)"
#define POLICY "(a(u(" RULES "))a(buu(" RULES "))a(ss)bs)"
#define ANY_USER UINT32_MAX
#define PRIORITY UINT64_C(1)

static int listen_at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        die("the path of the socket is too long: %s", path);
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 4096) < 0)
        die("listen at %s", path);
    return fd;
}

static pid_t start_broker(int controller) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child > 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    /* Not our standard output: its end is how we say that we are ready. */
    if (dup2(controller, CONTROLLER_FD) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        die("dup2");
    /* The quotas of the only user: as dbus-broker-launch sets them on a session bus, with enough bytes for any load. */
    execlp("dbus-broker", "dbus-broker", "--controller", "3", "--machine-id", "00000000000000000000000000000001", "--max-bytes",
           "1000000000000", "--max-fds", "6400", "--max-matches", "50000", "--max-objects", "1000000", NULL);
    die("cannot run dbus-broker");
}

static void check(int result, const char *what) {
    errno = result < 0 ? -result : 0;
    if (result < 0)
        die("%s", what);
}

static void add_listener(sd_bus *bus, int listener) {
    sd_bus_message *call = NULL;
    sd_bus_error error = SD_BUS_ERROR_NULL;
    const uint64_t any_fds = UINT64_MAX;
    check(sd_bus_message_new_method_call(bus, &call, NULL, "/org/bus1/DBus/Broker", "org.bus1.DBus.Broker", "AddListener"), "a call");
    check(sd_bus_message_append(call, "oh", "/org/bus1/DBus/Listener/0", listener), "the socket");
    check(sd_bus_message_append(call, "v", POLICY,
                                1, ANY_USER, true, PRIORITY, 1, true, PRIORITY, true, "",
                                1, true, PRIORITY, "", "", "", "", 0, 0, UINT64_C(0), any_fds,
                                1, true, PRIORITY, "", "", "", "", 0, 0, UINT64_C(0), any_fds,
                                0, 0, false, "session"),
          "the policy");
    int result = sd_bus_call(bus, call, 0, &error, NULL);
    if (result < 0) {
        errno = 0;
        die("dbus-broker takes no socket: %s", error.message ? error.message : strerror(-result));
    }
    sd_bus_message_unref(call);
}

static volatile pid_t broker;

static void end(int signal_number) {
    kill(broker, signal_number);
}

int main(int argc, char **argv) {
    int pair[2], status;
    sd_bus *bus;
    if (argc != 2)
        die("usage: broker PATH");
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        die("socketpair");
    broker = start_broker(pair[1]);
    signal(SIGTERM, end); /* it is waited for, so that its CPU is known to be the bench's own */
    close(pair[1]);
    check(sd_bus_new(&bus), "a connection to dbus-broker");
    check(sd_bus_set_fd(bus, pair[0], pair[0]), "a connection to dbus-broker");
    check(sd_bus_start(bus), "a connection to dbus-broker");
    add_listener(bus, listen_at(argv[1]));
    fclose(stdout);
    while (waitpid(broker, &status, 0) < 0 && errno == EINTR)
        ;
    return 0;
}
