/* What the load generator and the floor relay share: how to reach a bus, how to wait for it, and how to give up. */
#ifndef BENCH_BUS_H
#define BENCH_BUS_H

#include <stddef.h>
#include <stdint.h>

/* The largest packet that the bench itself ever sends or expects. */
#define BENCH_PACKET_BYTES 65536

/* How far apart the packets of a batch are received: not a power of two, or all of them would fight for the same few places in the cache. */
#define BENCH_SLOT_BYTES (BENCH_PACKET_BYTES + 192)

/* Say why on standard error, in one line, and exit with status 1; errno's words are added when it is not 0. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Exit with status 1 and a line that names *what* if the process still runs after *seconds*. */
void deadline(unsigned seconds, const char *what);

/* Nanoseconds of CLOCK_MONOTONIC, which is the same clock in every process. */
int64_t now_ns(void);

/* Nanoseconds of CPU, user and system, that all threads of process *pid* have used; 0 if *pid* is 0. */
int64_t cpu_ns(int pid);

/* Connect a blocking SEQPACKET socket to the bus at *path*. */
int bus_connect(const char *path);

/* Send one packet whole. */
void bus_send(int fd, const void *packet, size_t length);

/* Add a pattern. */
void bus_subscribe(int fd, const char *pattern);

/* The head of a batch, and the overhead of each packet in it. */
#define BATCH_HEAD "CMSG !/batch"
#define BATCH_HEAD_BYTES sizeof BATCH_HEAD
#define BATCH_LENGTH_BYTES sizeof(uint32_t)

/* Tell the bus a wish that it does not answer. */
void bus_tell(int fd, const char *wish);

/* Wait until the bus has handled all that *fd* sent; any other packet that comes first is an error: nothing may be left over. */
void bus_barrier(int fd);

/* Fail with the words of a packet that is not the message that was expected. */
_Noreturn void bus_unexpected(const char *packet, size_t length);

/* Raise the soft limit of open files so that *descriptors* more fit. */
void allow_descriptors(unsigned descriptors);

#endif
