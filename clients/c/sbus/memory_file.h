/* Sealed memory files: how they are made, checked and mapped. See memfd_create(2), and sbus-blob(8). */
#ifndef SBUS_MEMORY_FILE_H
#define SBUS_MEMORY_FILE_H

#include "packet.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The C library declares these functions and names only for programs that define _GNU_SOURCE. */
#ifdef __cplusplus
extern "C" {
#endif
extern int sbus_memfd_create_(const char *name, unsigned flags) __asm__("memfd_create");
extern int sbus_madvise_(void *address, size_t size, int advice) __asm__("madvise");
#ifdef __cplusplus
}
#endif
#define SBUS_MFD_FLAGS_ 3u /* MFD_CLOEXEC | MFD_ALLOW_SEALING */
#define SBUS_MFD_NOEXEC_SEAL_ 8u /* since Linux 6.3, which can require it: vm.memfd_noexec */
#define SBUS_ADD_SEALS_ 1033
#define SBUS_GET_SEALS_ 1034
#define SBUS_SEALS_ 15 /* F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE */
#define SBUS_COLLAPSE_ 25 /* MADV_COLLAPSE, since Linux 6.1 */
#define SBUS_HUGE_PAGE_ ((size_t)1 << 21)

static inline size_t sbus_page_size_(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Map the first *size* bytes of *fd*, at least one, at an address at which huge pages are possible. Returns NULL with errno. */
static inline const char *sbus_map_(int fd, size_t size) {
    char *room, *start;
    size_t before, used, page = sbus_page_size_();
    if (size > SIZE_MAX / 2) {
        errno = ENOMEM;
        return NULL;
    }
    if (size < SBUS_HUGE_PAGE_) {
        room = (char *)mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        return room == MAP_FAILED ? NULL : room;
    }
    /* More room than is needed; the file is put into its middle. */
    room = (char *)mmap(NULL, size + SBUS_HUGE_PAGE_, PROT_NONE, MAP_PRIVATE, fd, 0);
    if (room == MAP_FAILED)
        return NULL;
    before = (SBUS_HUGE_PAGE_ - (size_t)((uintptr_t)room % SBUS_HUGE_PAGE_)) % SBUS_HUGE_PAGE_;
    start = room + before;
    if (mmap(start, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int error = errno;
        munmap(room, size + SBUS_HUGE_PAGE_);
        errno = error;
        return NULL;
    }
    used = before + (size + page - 1) / page * page;
    if (before)
        munmap(room, before);
    if (used < size + SBUS_HUGE_PAGE_)
        munmap(room + used, size + SBUS_HUGE_PAGE_ - used);
    return start;
}

/* Return NULL if *fd* is a memory file of *size* bytes that never changes, else why it is not one.
 *
 * F_GET_SEALS comes first: it fails for everything but memory files, and unlike fstat(2) never waits for a foreign file system. */
static inline const char *sbus_why_unsealed_(int fd, uint64_t size) {
    struct stat status;
    struct statvfs system;
    int seals = fcntl(fd, SBUS_GET_SEALS_);
    if (seals < 0)
        return "it is not a memory file";
    if ((seals & SBUS_SEALS_) != SBUS_SEALS_)
        return "it is not sealed, so its owner could change it";
    /* A reader can find a page of hugetlbfs missing, and gets SIGBUS. */
    if (fstatvfs(fd, &system) < 0 || system.f_bsize != sbus_page_size_())
        return "it has huge pages of hugetlbfs";
    if (fstat(fd, &status) < 0 || status.st_size < 0 || (uint64_t)status.st_size != size)
        return "it has another size";
    return NULL;
}

/* Give the empty memory file *fd* of *size* bytes huge pages, as far as the kernel has them: writing costs half, and mapping a tenth. */
static inline void sbus_use_huge_pages_(int fd, size_t size) {
    size_t place, whole = size / SBUS_HUGE_PAGE_ * SBUS_HUGE_PAGE_;
    const char *mapped;
    for (place = 0; place < whole; place += SBUS_HUGE_PAGE_)
        if (pwrite(fd, "", 1, (off_t)place) < 1) /* the kernel collapses small pages, but not nothing */
            return;
    mapped = whole ? sbus_map_(fd, whole) : NULL;
    if (!mapped)
        return;
    sbus_madvise_((void *)(uintptr_t)mapped, whole, SBUS_COLLAPSE_);
    munmap((void *)(uintptr_t)mapped, whole);
}

/* Return a new sealed memory file with *size* bytes of *data*, or -1 with errno. */
static inline int sbus_seal_(const void *data, size_t size) {
    size_t place = 0;
    int error, fd;
    if (size > PTRDIFF_MAX || (size && !data)) {
        errno = EINVAL;
        return -1;
    }
    fd = sbus_memfd_create_("sbus-blob", SBUS_MFD_FLAGS_ | SBUS_MFD_NOEXEC_SEAL_);
    if (fd < 0 && errno == EINVAL)
        fd = sbus_memfd_create_("sbus-blob", SBUS_MFD_FLAGS_);
    if (fd < 0)
        return -1;
    /* The last byte first: a wrong size is found before memory is used for all of it. */
    if (ftruncate(fd, (off_t)size) == 0 &&
        (!size || pwrite(fd, (const void *)((uintptr_t)data + size - 1), 1, (off_t)(size - 1)) == 1)) {
        sbus_use_huge_pages_(fd, size);
        while (place < size) {
            ssize_t written = pwrite(fd, (const char *)data + place, size - place, (off_t)place);
            if (written <= 0 && errno != EINTR)
                break;
            place += written > 0 ? (size_t)written : 0;
        }
        if (place == size && fcntl(fd, SBUS_ADD_SEALS_, SBUS_SEALS_) == 0)
            return fd;
    }
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

#endif
