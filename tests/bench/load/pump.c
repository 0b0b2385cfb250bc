/* Throughput: a publisher process, a receiver process, and between them a window that no more messages may be in. */
#include "bus.h"
#include "message.h"
#include "modes.h"
#include "window.h"

#include <endian.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BATCH 64
#define EVENTS 64

struct receiver {
    int fd;
    uint32_t received;
};

static struct window *window;

static char outgoing[BENCH_PACKET_BYTES];
static size_t outgoing_bytes;

/* Send what has been collected: one message alone, or several as a batch. */
static void flush_messages(int fd, uint32_t count) {
    size_t alone = count == 1 ? BATCH_HEAD_BYTES + BATCH_LENGTH_BYTES : 0;
    if (count)
        bus_send(fd, outgoing + alone, outgoing_bytes - alone);
    outgoing_bytes = BATCH_HEAD_BYTES;
}

static void collect(const struct message *message) {
    uint32_t length = htole32((uint32_t)message->length);
    if (outgoing_bytes + BATCH_LENGTH_BYTES + message->length > sizeof outgoing)
        die("too many messages for one batch");
    memcpy(outgoing + outgoing_bytes, &length, BATCH_LENGTH_BYTES);
    memcpy(outgoing + outgoing_bytes + BATCH_LENGTH_BYTES, message->packet, message->length);
    outgoing_bytes += BATCH_LENGTH_BYTES + message->length;
}

/* Publish in batches: what is collected goes out before the publisher waits for anything. */
static void publish_together(int fd, const struct options *options, struct message *message) {
    uint32_t all = options->warm_up + options->messages, collected = 0;
    memcpy(outgoing, BATCH_HEAD, BATCH_HEAD_BYTES);
    outgoing_bytes = BATCH_HEAD_BYTES;
    for (uint32_t sent = 0; sent < all; sent++) {
        bool is_full = sent - atomic_load_explicit(&window->received, memory_order_relaxed) >= options->window;
        if (collected == options->together || is_full || sent == options->warm_up) {
            flush_messages(fd, collected);
            collected = 0;
        }
        if (sent == options->warm_up) {
            window_wait(window, sent);
            window->start_cpu_ns = cpu_ns(options->relay_pid);
            window->start_ns = now_ns();
        }
        if (is_full)
            window_wait(window, sent - options->window / 2);
        message_number(message, sent);
        collect(message);
        collected++;
    }
    flush_messages(fd, collected);
}

static void publish(int fd, const struct options *options, struct message *message) {
    uint32_t all = options->warm_up + options->messages;
    for (uint32_t sent = 0; sent < all; sent++) {
        if (sent == options->warm_up) {
            window_wait(window, sent);
            window->start_cpu_ns = cpu_ns(options->relay_pid);
            window->start_ns = now_ns();
        }
        if (sent - atomic_load_explicit(&window->received, memory_order_relaxed) >= options->window)
            window_wait(window, sent - options->window / 2);
        message_number(message, sent);
        bus_send(fd, message->packet, message->length);
    }
}

static char buffers[BATCH][BENCH_SLOT_BYTES];
static struct iovec pieces[BATCH];
static struct mmsghdr headers[BATCH];

static void prepare_batch(void) {
    for (int i = 0; i < BATCH; i++) {
        pieces[i] = (struct iovec){.iov_base = buffers[i], .iov_len = BENCH_PACKET_BYTES};
        headers[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    }
}

static void take_apart(struct receiver *receiver, const struct message *like, const char *batch, size_t length) {
    for (size_t place = BATCH_HEAD_BYTES; place < length;) {
        uint32_t inner;
        memcpy(&inner, batch + place, BATCH_LENGTH_BYTES);
        place += BATCH_LENGTH_BYTES;
        inner = le32toh(inner);
        if (inner > length - place)
            bus_unexpected(batch, length);
        message_check(like, batch + place, inner, receiver->received++);
        place += inner;
    }
}

static void receive_batch(struct receiver *receiver, const struct message *like) {
    int count = recvmmsg(receiver->fd, headers, BATCH, MSG_DONTWAIT, NULL);
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (count < 0)
        die("recv from the bus");
    for (int i = 0; i < count; i++) {
        if (headers[i].msg_len > BATCH_HEAD_BYTES && memcmp(buffers[i], BATCH_HEAD, BATCH_HEAD_BYTES) == 0)
            take_apart(receiver, like, buffers[i], headers[i].msg_len);
        else
            message_check(like, buffers[i], headers[i].msg_len, receiver->received++);
    }
}

/* One process is all receivers, and waits in the same way for one and for many: what a relay pays to wake a receiver depends on how that
 * waits. Never for one socket alone: with the window full, what is still to be read may be at another. */
static void receive_all(struct receiver *receivers, uint32_t count, const struct message *like, uint32_t all) {
    struct epoll_event events[EVENTS];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (uint32_t i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, receivers[i].fd, &event) < 0)
            die("epoll_ctl");
    }
    for (uint32_t slowest = 0; slowest < all; window_report(window, slowest)) {
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++)
            receive_batch(&receivers[events[i].data.u32], like);
        slowest = all;
        for (uint32_t i = 0; i < count; i++)
            if (receivers[i].received < slowest)
                slowest = receivers[i].received;
    }
    close(epoll);
}

static void print_result(const struct options *options) {
    int64_t cpu = cpu_ns(options->relay_pid) - window->start_cpu_ns, wall = now_ns() - window->start_ns;
    uint64_t deliveries = (uint64_t)options->messages * options->receivers;
    printf("{\"deliveries\": %lu, \"wall_ns\": %ld, \"relay_cpu_ns\": %ld}\n", (unsigned long)deliveries, (long)wall, (long)cpu);
}

static pid_t start_publisher(int fd, const struct options *options, struct message *message) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        deadline(options->seconds, "the publisher");
        if (options->together > 1)
            publish_together(fd, options, message);
        else
            publish(fd, options, message);
        _exit(0);
    }
    return child;
}

void pump(const struct options *options) {
    static struct message message;
    struct receiver *receivers = calloc(options->receivers, sizeof *receivers);
    uint32_t all = options->warm_up + options->messages;
    if (!receivers)
        die("no memory");
    window = window_new();
    message_init(&message, options->payload, options->keys);
    prepare_batch();
    for (uint32_t i = 0; i < options->receivers; i++) {
        receivers[i].fd = bus_connect(options->path);
        bus_subscribe(receivers[i].fd, MESSAGE_PATTERN);
        if (options->batches)
            bus_tell(receivers[i].fd, "batch/on");
        if (options->blocks)
            bus_tell(receivers[i].fd, "blocking/hard/block");
        bus_barrier(receivers[i].fd);
    }
    int source = bus_connect(options->path), status;
    bus_barrier(source);
    pid_t publisher = start_publisher(source, options, &message);
    receive_all(receivers, options->receivers, &message, all);
    print_result(options);
    if (waitpid(publisher, &status, 0) != publisher || status != 0)
        die("the publisher failed");
    bus_barrier(source); /* nor may anything have been said to the publisher */
    for (uint32_t i = 0; i < options->receivers; i++)
        bus_barrier(receivers[i].fd);
}
