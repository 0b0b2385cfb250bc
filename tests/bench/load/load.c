/* The load generator: load MODE -s PATH [OPTION VALUE]... Results are one JSON object on standard output, in nanoseconds. */
#include "bus.h"
#include "modes.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static uint32_t number(int option, const char *text) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || end == text || value > 1000000000) {
        errno = 0;
        die("-%c takes a number of at most 1,000,000,000, not \"%s\"", option, text);
    }
    return (uint32_t)value;
}

static struct options parse(int argc, char **argv) {
    struct options options = {
        .seconds = 60, .messages = 100000, .warm_up = 1000, .payload = 64, .receivers = 1,
        .window = 128, .keys = 1, .together = 1, .connections = 1, .patterns = 1,
    };
    int option;
    while ((option = getopt(argc, argv, "s:p:t:n:w:b:r:W:k:g:L:B:c:P:u:")) != -1) {
        switch (option) {
        case 's': options.path = optarg; break;
        case 'p': options.relay_pid = (int)number(option, optarg); break;
        case 't': options.seconds = number(option, optarg); break;
        case 'n': options.messages = number(option, optarg); break;
        case 'w': options.warm_up = number(option, optarg); break;
        case 'b': options.payload = number(option, optarg); break;
        case 'r': options.receivers = number(option, optarg); break;
        case 'W': options.window = number(option, optarg); break;
        case 'k': options.keys = number(option, optarg); break;
        case 'g': options.together = number(option, optarg); break;
        case 'L': options.blocks = number(option, optarg); break;
        case 'B': options.batches = number(option, optarg); break;
        case 'c': options.connections = number(option, optarg); break;
        case 'P': options.patterns = number(option, optarg); break;
        case 'u': options.uid = number(option, optarg); break;
        default: exit(1);
        }
    }
    errno = 0;
    if (!options.path || optind != argc || !options.messages || !options.receivers || options.window < 2 || !options.together)
        die("usage: load pump|trip|churn|hold|burst -s PATH [-p PID] [-t SECONDS] [-n MESSAGES] [-w WARM-UP] [-b BYTES] [-r RECEIVERS] [-W WINDOW] "
            "[-k KEYS] [-g MESSAGES TOGETHER] [-B 0|1] [-c CONNECTIONS] [-P PATTERNS] [-u UID]");
    return options;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    struct options options = parse(argc - 1, argv + 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    deadline(options.seconds, mode);
    if (strcmp(mode, "pump") == 0)
        pump(&options);
    else if (strcmp(mode, "trip") == 0)
        trip(&options);
    else if (strcmp(mode, "churn") == 0)
        churn(&options);
    else if (strcmp(mode, "hold") == 0)
        hold(&options);
    else if (strcmp(mode, "burst") == 0)
        burst(&options);
    else
        die("no such mode: \"%s\" (pump, trip, churn, hold or burst)", mode);
    return 0;
}
