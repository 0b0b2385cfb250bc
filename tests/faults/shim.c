/*
 * Makes chosen system calls fail, for LD_PRELOAD; tests/faults/shim.py is its face in Python.
 *
 * It looks only while the switch is at work, between faults_watch(1) and faults_watch(0): so the Nth call is the switch's Nth,
 * however many the test itself makes. One thread, so no locks.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>

#define MAX_FAULTS 8

enum call { RECVMMSG, SENDMMSG, SEND, RECV, ACCEPT4, EPOLL_CTL, EPOLL_WAIT, SETSOCKOPT, OPEN, POLL, SHUTDOWN, EPOLL_CREATE1, MADVISE, CALLS };

struct fault {
	enum call call;
	int error;
	long first;     /* the number of the first call that fails, from 1 */
	long times;     /* how many fail */
	long done;      /* how many have */
};

static struct fault faults[MAX_FAULTS];
static int fault_count;
static long counts[CALLS];
static int is_watching;

int faults_calls(void) { return CALLS; }

void faults_watch(int on) { is_watching = on; }

long faults_count(int call) { return counts[call]; }

long faults_done(int fault) { return faults[fault].done; }

void faults_clear(void)
{
	fault_count = 0;
	for (int i = 0; i < CALLS; i++)
		counts[i] = 0;
}

int faults_add(int call, int error, long first, long times)
{
	if (fault_count == MAX_FAULTS || call < 0 || call >= CALLS)
		return -1;
	faults[fault_count] = (struct fault){call, error, first, times, 0};
	return fault_count++;
}

/* Count a call, and return the error that it must fail with, or 0. */
static int failure(enum call call)
{
	int error = 0;
	if (!is_watching)
		return 0;
	counts[call]++;
	for (int i = 0; i < fault_count; i++) {
		struct fault *fault = &faults[i];
		if (fault->call == call && counts[call] >= fault->first && counts[call] < fault->first + fault->times) {
			fault->done++;
			error = fault->error;
		}
	}
	return error;
}

#define REAL(name, ...) \
	static __typeof__(&name) real; \
	if (!real) \
		*(void **)&real = dlsym(RTLD_NEXT, #name); \
	return real(__VA_ARGS__)

#define FAIL(call) \
	do { \
		int error = failure(call); \
		if (error) { \
			errno = error; \
			return -1; \
		} \
	} while (0)

/* A peer that is gone stays gone: after these two errors the kernel, too, must say that the connection is over. */
#define FAIL_SOCKET(call, fd) \
	do { \
		int error = failure(call); \
		if (error == EPIPE || error == ECONNRESET) \
			end_connection(fd); \
		if (error) { \
			errno = error; \
			return -1; \
		} \
	} while (0)

static int end_connection(int fd) { REAL(shutdown, fd, SHUT_RDWR); }

int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout)
{
	FAIL_SOCKET(RECVMMSG, fd);
	REAL(recvmmsg, fd, messages, count, flags, timeout);
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	FAIL_SOCKET(SENDMMSG, fd);
	REAL(sendmmsg, fd, messages, count, flags);
}

ssize_t send(int fd, const void *data, size_t length, int flags)
{
	FAIL_SOCKET(SEND, fd);
	REAL(send, fd, data, length, flags);
}

ssize_t recv(int fd, void *data, size_t length, int flags)
{
	FAIL_SOCKET(RECV, fd);
	REAL(recv, fd, data, length, flags);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
	FAIL(ACCEPT4);
	REAL(accept4, fd, address, length, flags);
}

int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
	FAIL(EPOLL_CTL);
	REAL(epoll_ctl, epoll, operation, fd, event);
}

int epoll_wait(int epoll, struct epoll_event *events, int count, int timeout)
{
	FAIL(EPOLL_WAIT);
	REAL(epoll_wait, epoll, events, count, timeout);
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
	FAIL(SETSOCKOPT);
	REAL(setsockopt, fd, level, option, value, length);
}

int open(const char *path, int flags, ...)
{
	va_list arguments;
	va_start(arguments, flags);
	mode_t mode = va_arg(arguments, mode_t);
	va_end(arguments);
	FAIL(OPEN);
	REAL(open, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	va_list arguments;
	va_start(arguments, flags);
	mode_t mode = va_arg(arguments, mode_t);
	va_end(arguments);
	FAIL(OPEN);
	REAL(open64, path, flags, mode);
}

int poll(struct pollfd *descriptors, nfds_t count, int timeout)
{
	FAIL(POLL);
	REAL(poll, descriptors, count, timeout);
}

int shutdown(int fd, int how)
{
	FAIL(SHUTDOWN);
	REAL(shutdown, fd, how);
}

int epoll_create1(int flags)
{
	FAIL(EPOLL_CREATE1);
	REAL(epoll_create1, flags);
}

int madvise(void *address, size_t length, int advice)
{
	FAIL(MADVISE);
	REAL(madvise, address, length, advice);
}
