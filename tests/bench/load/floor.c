/* The floor: what the kernel asks of any single-threaded relay with these system calls, and nothing else.
 *
 * One epoll, the credentials of each peer, one recvmmsg of at most 64 packets from a readable connection, one sendmmsg for each
 * recipient. A client that has sent any SUB receives every packet that begins with "MSG ". No routing, no queues, no accounting,
 * no bounds: a recipient whose socket is full stops the floor until it reads. It must never be used as anything but a measure. */
#include "bus.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BATCH 64
#define EVENTS 64
#define MAX_RECIPIENTS 1024
/* The daemon sets the same on every connection. */
#define SEND_BUFFER_BYTES 212992

static char (*buffers)[BENCH_SLOT_BYTES];
static struct iovec pieces[BATCH];
static struct mmsghdr headers[BATCH];
static int recipients[MAX_RECIPIENTS];
static unsigned recipient_count;

static int listen_at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        die("the path of the socket is too long: %s", path);
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 4096) < 0)
        die("listen at %s", path);
    return fd;
}

static void watch(int epoll, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll_ctl");
}

static void admit(int epoll, int listener) {
    int bytes = SEND_BUFFER_BYTES;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) < 0)
        die("accept");
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        die("SO_PEERCRED");
    watch(epoll, fd);
}

static void forget(int fd) {
    for (unsigned i = 0; i < recipient_count; i++)
        if (recipients[i] == fd)
            recipients[i--] = recipients[--recipient_count];
    close(fd);
}

/* Hand the packets [from, until) of the batch to every recipient. */
static void relay(unsigned from, unsigned until) {
    for (unsigned i = 0; i < recipient_count && from < until; i++) {
        unsigned sent = from;
        while (sent < until) {
            int taken = sendmmsg(recipients[i], headers + sent, until - sent, MSG_NOSIGNAL);
            if (taken < 0 && errno == EPIPE)
                break; /* it has gone; its own end of file follows */
            if (taken < 0 && errno != EINTR)
                die("sendmmsg");
            sent += taken > 0 ? (unsigned)taken : 0;
        }
    }
}

/* Handle a SUB or a ping; the rest of the protocol is not the floor's. */
static void control(int fd, const char *packet, size_t length) {
    if (length >= 4 && memcmp(packet, "SUB ", 4) == 0) {
        if (recipient_count == MAX_RECIPIENTS)
            die("more than %d recipients", MAX_RECIPIENTS);
        recipients[recipient_count++] = fd;
    } else if (length >= 5 && memcmp(packet, "CMSG ", 5) == 0) {
        bus_send(fd, packet, length);
    } else {
        bus_unexpected(packet, length);
    }
}

/* Behind its last packet a peer that has closed gives an end of file for each place of the batch, so one place is enough then. */
static void serve(int fd, uint32_t ready) {
    int count = recvmmsg(fd, headers, ready & EPOLLHUP ? 1 : BATCH, MSG_DONTWAIT, NULL);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count <= 0 || headers[0].msg_len == 0) {
        forget(fd);
        return;
    }
    unsigned from = 0, i = 0;
    for (; i < (unsigned)count && headers[i].msg_len > 0; i++) {
        pieces[i].iov_len = headers[i].msg_len;
        if (memcmp(buffers[i], "MSG ", 4) == 0)
            continue;
        relay(from, i);
        control(fd, buffers[i], headers[i].msg_len);
        from = i + 1;
    }
    relay(from, i);
    while (i-- > 0)
        pieces[i].iov_len = BENCH_PACKET_BYTES;
}

int main(int argc, char **argv) {
    if (argc != 2)
        die("usage: floor PATH");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Lazily committed, as the daemon's: only the pages that packets touch are ever there. */
    buffers = malloc(BATCH * sizeof *buffers);
    if (!buffers)
        die("malloc");
    for (int i = 0; i < BATCH; i++) {
        pieces[i] = (struct iovec){.iov_base = buffers[i], .iov_len = BENCH_PACKET_BYTES};
        headers[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    }
    int listener = listen_at(argv[1]), epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        die("epoll_create1");
    watch(epoll, listener);
    fclose(stdout); /* ready, said as the daemon says it */
    for (;;) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == listener)
                admit(epoll, listener);
            else
                serve(events[i].data.fd, events[i].events);
        }
    }
}
