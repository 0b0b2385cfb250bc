/*
 * A kernel like Linux 6.12, for LD_PRELOAD: it cannot refuse descriptors, because it does not know SO_PASSRIGHTS, and it does not report the
 * control group of a process, because it does not know PIDFD_GET_INFO.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define PIDFD_GET_INFO 0xC040FF0Bul

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
	static int (*real)(int, int, int, const void *, socklen_t);
	if (!real)
		real = dlsym(RTLD_NEXT, "setsockopt");
	if (level == SOL_SOCKET && option == SO_PASSRIGHTS) {
		errno = ENOPROTOOPT;
		return -1;
	}
	return real(fd, level, option, value, length);
}

int getsockopt(int fd, int level, int option, void *value, socklen_t *length)
{
	static int (*real)(int, int, int, void *, socklen_t *);
	if (!real)
		real = dlsym(RTLD_NEXT, "getsockopt");
	if (level == SOL_SOCKET && option == SO_PASSRIGHTS) {
		errno = ENOPROTOOPT;
		return -1;
	}
	return real(fd, level, option, value, length);
}

int ioctl(int fd, unsigned long request, ...)
{
	static int (*real)(int, unsigned long, ...);
	va_list arguments;
	void *value;

	va_start(arguments, request);
	value = va_arg(arguments, void *);
	va_end(arguments);
	if (!real)
		real = dlsym(RTLD_NEXT, "ioctl");
	if (request == PIDFD_GET_INFO) {
		errno = ENOTTY;
		return -1;
	}
	return real(fd, request, value);
}
