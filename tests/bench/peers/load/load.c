/* load PROTOCOL pump|trip|churn -s ADDRESS [OPTION VALUE]... Results are one JSON object on standard output, in nanoseconds. */
#include "modes.h"

#include "bus.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const struct protocol *const protocols[] = {
    &sbus_protocol, &sbus_batch_protocol, &sbus_link_protocol, &dbus_protocol, &redis_protocol, &nats_protocol, &mqtt_protocol,
};

static const struct protocol *protocol_named(const char *name) {
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        if (strcmp(protocols[i]->name, name) == 0)
            return protocols[i];
    errno = 0;
    die("no such protocol: \"%s\"", name);
}

static uint32_t number(int option, uint32_t least, uint32_t most) {
    char *end;
    unsigned long value = strtoul(optarg, &end, 10);
    errno = 0;
    if (*end || end == optarg || value < least || value > most)
        die("-%c takes a number from %u to %u, not \"%s\"", option, least, most, optarg);
    return (uint32_t)value;
}

static struct options parse(int argc, char **argv) {
    struct options options = {.payload = 64, .receivers = 1, .window = 128, .group = 1, .warm_up_ms = 50, .run_ms = 400, .trips = 2000};
    int option;
    while ((option = getopt(argc, argv, "s:d:c:p:b:r:W:g:u:m:n:")) != -1) {
        switch (option) {
        case 's': options.address = optarg; break;
        case 'd': options.drain = optarg; break;
        case 'c': options.settled = optarg; break;
        case 'p': options.daemon_pid = (int)number(option, 1, 1 << 30); break;
        case 'b': options.payload = number(option, 8, PAYLOAD_MAX); break;
        case 'r': options.receivers = number(option, 1, 1000); break;
        case 'W': options.window = number(option, 2, 1 << 20); break;
        case 'g': options.group = number(option, 1, GROUP_MAX); break;
        case 'u': options.warm_up_ms = number(option, 0, 60000); break;
        case 'm': options.run_ms = number(option, 1, 60000); break;
        case 'n': options.trips = number(option, 100, 10000000); break;
        default: exit(1);
        }
    }
    errno = 0;
    if (!options.address || optind != argc || options.window < 2 * options.group)
        die("usage: load PROTOCOL pump|trip|churn -s ADDRESS [-d RECEIVERS-ADDRESS] [-c COMMAND] [-p PID] [-b BYTES] [-r RECEIVERS] [-W WINDOW] "
            "[-g GROUP] [-u WARM-UP-MS] [-m RUN-MS] [-n TRIPS]; a window holds two groups at least");
    return options;
}

void settle(const struct options *options) {
    errno = 0;
    if (options->settled && system(options->settled) != 0)
        die("failed: %s", options->settled);
}

int main(int argc, char **argv) {
    errno = 0;
    if (argc < 3)
        die("usage: load PROTOCOL pump|trip|churn -s ADDRESS [OPTION VALUE]...");
    const char *mode = argv[2];
    struct options options = parse(argc - 2, argv + 2);
    options.protocol = protocol_named(argv[1]);
    if (!options.drain)
        options.drain = options.address;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    deadline(60, mode);
    if (strcmp(mode, "pump") == 0)
        pump(&options);
    else if (strcmp(mode, "trip") == 0)
        trip(&options);
    else if (strcmp(mode, "churn") == 0)
        churn(&options);
    else
        die("no such mode: \"%s\" (pump, trip or churn)", mode);
    return 0;
}
