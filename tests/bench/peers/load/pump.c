/* Throughput for a time, whatever the daemon's speed: a slow one is not measured longer, nor a fast one with fewer messages than it takes.
 *
 * What does not come is counted and not waited for: some of the daemons drop messages, and say nothing of it. */
#include "modes.h"

#include "bus.h"
#include "window.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define EVENTS 64
/* Nothing has come for so long: what is on its way is lost. */
#define SILENCE_MS 20000
/* How many messages pass between two looks at the clock. */
#define CLOCK_EVERY 32

struct receiver {
    struct wire *wire;
    uint32_t due;  /* the number of the message that comes next */
    uint64_t lost;
    uint64_t got;  /* behind the warm-up */
};

static struct window *window;

static void publish(struct wire *wire, const struct options *options) {
    static char payload[PAYLOAD_MAX];
    uint32_t sent = 0, grouped = 0;
    memset(payload, 'x', sizeof payload);
    int64_t end = now_ns() + (int64_t)options->warm_up_ms * 1000000;
    for (int is_warm = 0;;) {
        if (sent % CLOCK_EVERY == 0 && grouped == 0 && now_ns() >= end) {
            if (is_warm)
                break;
            is_warm = 1;
            atomic_store(&window->sent, sent);
            window_wait(window, sent);
            window->warm_up = sent;
            window->start_cpu_ns = cpu_ns(options->daemon_pid);
            window->start_ns = now_ns();
            end = window->start_ns + (int64_t)options->run_ms * 1000000;
        }
        if (grouped == 0 && sent + options->group - atomic_load_explicit(&window->received, memory_order_relaxed) > options->window) {
            atomic_store(&window->sent, sent);
            window_wait(window, sent - options->window / 2);
        }
        uint64_t number = sent++;
        memcpy(payload, &number, sizeof number);
        wire->protocol->put(wire, payload);
        if (++grouped == options->group) {
            wire->protocol->flush(wire);
            grouped = 0;
        }
    }
    atomic_store(&window->sent, sent);
    atomic_store(&window->is_done, 1);
}

static void take_message(void *context, const char *payload, size_t length) {
    struct receiver *receiver = context;
    uint64_t number;
    (void)length;
    memcpy(&number, payload, sizeof number);
    errno = 0;
    if (number < receiver->due)
        die("message %u was due and %lu came: doubled or out of order", receiver->due, (unsigned long)number);
    receiver->lost += number - receiver->due;
    receiver->due = (uint32_t)number + 1;
    receiver->got += window->start_ns && number >= window->warm_up;
}

static void give_up(struct receiver *receivers, uint32_t count, uint32_t sent) {
    for (uint32_t i = 0; i < count; i++) {
        receivers[i].lost += sent - receivers[i].due;
        receivers[i].due = sent;
    }
}

static uint32_t slowest_of(const struct receiver *receivers, uint32_t count) {
    uint32_t slowest = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++)
        if (receivers[i].due < slowest)
            slowest = receivers[i].due;
    return slowest;
}

/* One process is all receivers. Returns when the last message came. */
static int64_t receive_all(struct receiver *receivers, uint32_t count) {
    struct epoll_event events[EVENTS];
    int64_t last_ns = now_ns();
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (uint32_t i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, receivers[i].wire->fd, &event) < 0)
            die("epoll_ctl");
    }
    while (!atomic_load(&window->is_done) || slowest_of(receivers, count) < atomic_load(&window->sent)) {
        int ready = epoll_wait(epoll, events, EVENTS, SILENCE_MS);
        for (int i = 0; i < ready; i++) {
            struct receiver *receiver = &receivers[events[i].data.u32];
            receiver->wire->protocol->receive(receiver->wire, MSG_DONTWAIT, take_message, receiver);
        }
        if (ready > 0)
            last_ns = now_ns();
        else if (ready == 0)
            give_up(receivers, count, atomic_load(&window->sent));
        window_report(window, slowest_of(receivers, count));
    }
    close(epoll);
    return last_ns;
}

static pid_t start_publisher(struct wire *wire, const struct options *options) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        deadline(60, "the publisher");
        publish(wire, options);
        _exit(0);
    }
    return child;
}

void pump(const struct options *options) {
    const struct protocol *protocol = options->protocol;
    struct receiver *receivers = calloc(options->receivers, sizeof *receivers);
    int status;
    if (!receivers)
        die("no memory");
    window = window_new();
    for (uint32_t i = 0; i < options->receivers; i++) {
        receivers[i].wire = wire_open(protocol, options->drain, options->payload);
        protocol->subscribe(receivers[i].wire);
    }
    settle(options);
    struct wire *source = wire_open(protocol, options->address, options->payload);
    if (protocol->be_publisher)
        protocol->be_publisher(source);
    pid_t publisher = start_publisher(source, options);
    int64_t wall = receive_all(receivers, options->receivers) - window->start_ns;
    int64_t cpu = cpu_ns(options->daemon_pid) - window->start_cpu_ns;
    errno = 0;
    if (waitpid(publisher, &status, 0) != publisher || status != 0)
        die("the publisher failed");
    uint64_t got = 0, lost = 0;
    for (uint32_t i = 0; i < options->receivers; i++) {
        got += receivers[i].got;
        lost += receivers[i].lost;
    }
    printf("{\"deliveries\": %lu, \"lost\": %lu, \"wall_ns\": %ld, \"cpu_ns\": %ld}\n", (unsigned long)got, (unsigned long)lost, (long)wall,
           (long)cpu);
}
