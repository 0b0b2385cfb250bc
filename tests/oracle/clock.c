/*
 * A monotonic clock that stands still until it is set, for LD_PRELOAD; tests/property/test_switch_in_time.py sets it.
 *
 * Source: ld.so(8), clock_gettime(2), recvmmsg(2).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <time.h>

static long long now_ns = -1;

void clock_set(long long ns)
{
	now_ns = ns;
}

int clock_gettime(clockid_t id, struct timespec *time)
{
	static __typeof__(&clock_gettime) real;
	if (now_ns >= 0 && (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE)) {
		time->tv_sec = now_ns / 1000000000;
		time->tv_nsec = now_ns % 1000000000;
		return 0;
	}
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	return real(id, time);
}

/* The kernel would measure the timeout with its own clock. On this one no time passes meanwhile. */
int recvmmsg(int fd, struct mmsghdr *packets, unsigned int count, int flags, struct timespec *timeout)
{
	static __typeof__(&recvmmsg) real;
	(void)timeout;
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "recvmmsg");
	return real(fd, packets, count, flags, NULL);
}
