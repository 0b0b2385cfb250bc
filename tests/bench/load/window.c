#include "window.h"

#include "bus.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct window *window_new(void) {
    struct window *window = mmap(NULL, sizeof *window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (window == MAP_FAILED)
        die("no memory");
    return window;
}

void window_wait(struct window *window, uint32_t wanted) {
    if (atomic_load(&window->received) >= wanted)
        return;
    /* Set before each sleep: the receiver may still clear the flag of an earlier wait. */
    while (atomic_store(&window->wake_at, wanted), atomic_load(&window->received) < wanted)
        syscall(SYS_futex, &window->wake_at, FUTEX_WAIT, wanted, NULL, NULL, 0);
    atomic_store(&window->wake_at, 0);
}

void window_report(struct window *window, uint32_t received) {
    atomic_store(&window->received, received);
    uint32_t wake_at = atomic_load(&window->wake_at);
    if (wake_at != 0 && received >= wake_at) {
        atomic_store(&window->wake_at, 0);
        syscall(SYS_futex, &window->wake_at, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}
