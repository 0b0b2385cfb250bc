#include "bus.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <signal.h>

static char deadline_words[160];

_Noreturn void die(const char *format, ...) {
    int error = errno;
    char words[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    if (error)
        fprintf(stderr, "bench: %s: %s\n", words, strerror(error));
    else
        fprintf(stderr, "bench: %s\n", words);
    _exit(1);
}

static void too_late(int signal_number) {
    (void)signal_number;
    /* Only what is allowed in a signal handler: the words were made beforehand. */
    ssize_t ignored = write(STDERR_FILENO, deadline_words, strlen(deadline_words));
    (void)ignored;
    _exit(1);
}

void deadline(unsigned seconds, const char *what) {
    snprintf(deadline_words, sizeof deadline_words, "bench: %s did not end within %u s: something was lost or stands still\n", what, seconds);
    signal(SIGALRM, too_late);
    alarm(seconds);
}

static int64_t clock_ns(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) < 0)
        die("clock_gettime");
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t now_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

int64_t cpu_ns(int pid) {
    clockid_t clock;
    if (pid == 0)
        return 0;
    int error = clock_getcpuclockid(pid, &clock);
    if (error) {
        errno = error;
        die("no CPU clock of process %d", pid);
    }
    return clock_ns(clock);
}

int bus_connect(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        die("the path of the socket is too long: %s", path);
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect to %s", path);
    return fd;
}

void bus_send(int fd, const void *packet, size_t length) {
    ssize_t sent;
    while ((sent = send(fd, packet, length, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    if (sent != (ssize_t)length)
        die("send to the bus");
}

void bus_subscribe(int fd, const char *pattern) {
    char packet[512];
    int length = snprintf(packet, sizeof packet, "SUB %s", pattern);
    if (length >= (int)sizeof packet)
        die("the pattern is too long");
    bus_send(fd, packet, (size_t)length);
}

void bus_tell(int fd, const char *wish) {
    char packet[64];
    int length = snprintf(packet, sizeof packet, "CMSG %s", wish);
    if (length >= (int)sizeof packet)
        die("the wish is too long");
    bus_send(fd, packet, (size_t)length);
}

void bus_barrier(int fd) {
    static const char ping[] = "CMSG !/bus/ping\0bench";
    char answer[512];
    errno = 0;
    bus_send(fd, ping, sizeof ping - 1);
    ssize_t length = recv(fd, answer, sizeof answer, 0);
    if (length < 0)
        die("recv from the bus");
    if (length != sizeof ping - 1 || memcmp(answer, ping, sizeof ping - 1) != 0)
        bus_unexpected(answer, (size_t)length);
}

_Noreturn void bus_unexpected(const char *packet, size_t length) {
    char words[120];
    size_t shown = length < sizeof words - 1 ? length : sizeof words - 1;
    for (size_t i = 0; i < shown; i++)
        words[i] = packet[i] >= ' ' && packet[i] <= '~' ? packet[i] : '.';
    words[shown] = 0;
    errno = 0;
    die("a packet that should not have come, of %zu bytes: %s", length, length ? words : "the end of the connection");
}

void allow_descriptors(unsigned descriptors) {
    struct rlimit limit;
    rlim_t wanted = (rlim_t)descriptors + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        die("getrlimit");
    if (limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        die("%u connections need a higher limit of open files (ulimit -Hn)", descriptors);
}
