/* A directory service that does not answer while the file $SLOW_DIRECTORY exists: the functions of libc that may ask one. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <grp.h>
#include <netdb.h>
#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for_answer(void)
{
    const char *file = getenv("SLOW_DIRECTORY");
    while (file && access(file, F_OK) == 0)
        usleep(10000);
}

#define SLOW(type, name, parameters, arguments)                        \
    type name parameters                                               \
    {                                                                  \
        static type(*real) parameters;                                 \
        wait_for_answer();                                             \
        if (!real)                                                     \
            real = (type(*) parameters)dlsym(RTLD_NEXT, #name);        \
        return real arguments;                                         \
    }

SLOW(int, getpwnam_r, (const char *name, struct passwd *entry, char *room, size_t size, struct passwd **found), (name, entry, room, size, found))
SLOW(int, getpwuid_r, (uid_t uid, struct passwd *entry, char *room, size_t size, struct passwd **found), (uid, entry, room, size, found))
SLOW(int, getgrnam_r, (const char *name, struct group *entry, char *room, size_t size, struct group **found), (name, entry, room, size, found))
SLOW(int, getgrgid_r, (gid_t gid, struct group *entry, char *room, size_t size, struct group **found), (gid, entry, room, size, found))
SLOW(int, getgrouplist, (const char *user, gid_t group, gid_t *groups, int *count), (user, group, groups, count))
SLOW(int, getaddrinfo, (const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found), (node, service, hints, found))
