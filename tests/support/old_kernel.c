/*
 * A kernel that cannot refuse descriptors, as Linux before 6.16, for LD_PRELOAD: it does not know SO_PASSRIGHTS.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

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
