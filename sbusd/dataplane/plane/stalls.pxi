"""How long the loop did not wait for events, and what it did meanwhile: for tests. Spec: sbusd(8), ``--stalls``.

A stall is the time from the return of one epoll_wait(2) to the next call. It excludes the time in which the thread was ready to run but
another thread, or another machine of the same host, had the processor: that is load, not work of the bus. What is left is time on the
processor, and time in which the thread was blocked, for example in close(2).

A thread that has slept meanwhile is charged all time except that in the run queue, because the kernel does not count sleep. A thread
that has not slept is charged its time on the processor: the difference is what a hypervisor took. Sources: the kernel's
Documentation/scheduler/sched-stats.rst, ``/proc/<pid>/schedstat``; getrusage(2), ``ru_nvcsw``; proc_stat(5), steal.
"""

from libc.stdlib cimport strtoll
from posix.time cimport timespec
from posix.unistd cimport pread

from sbusd.dataplane.libc cimport (
    CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID, O_CLOEXEC, O_RDONLY, RUSAGE_THREAD, clock_gettime, close, getrusage, open, rusage,
)

from sbusd.dataplane.contract import MODES
from sbus.protocol import controls

cdef enum:
    # The run queue is read after each step that took so long, in nanoseconds: reading it costs a microsecond.
    LONG_STEP = 100000
    LOOKS = 10
    HEAD_BYTES = 64             # of a control packet, enough for every known name

_FIXED = (
    "Python between turns", "messages", "interpreter lock", "accepting connections", "recording refusals", "recording losses",
    "ending blocks", "ending a connection", "erasing patterns", "releasing the receive buffer",
)  # fmt: skip

_KNOWN = frozenset(value for value in vars(controls).values() if isinstance(value, bytes)) | MODES.keys()


cdef int64_t nanoseconds(int clock) noexcept nogil:
    """Return the time of a clock in nanoseconds."""
    cdef timespec now
    clock_gettime(clock, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef long sleeps_until_now() noexcept nogil:
    """Return how often this thread has slept: each block is a voluntary switch to another thread."""
    cdef rusage used
    return used.ru_nvcsw if getrusage(RUSAGE_THREAD, &used) == 0 else -1


cdef Moment look(Stalls stalls) noexcept nogil:
    """Read all clocks at one moment; again if the thread was interrupted meanwhile."""
    cdef Moment moment
    cdef int i
    for i in range(LOOKS):
        moment.wall = nanoseconds(CLOCK_MONOTONIC)
        moment.cpu = nanoseconds(CLOCK_THREAD_CPUTIME_ID)
        moment.sleeps = sleeps_until_now()
        moment.queued = stalls.queued_until_now()
        if nanoseconds(CLOCK_MONOTONIC) - moment.wall < LONG_STEP:
            break
    return moment


cdef int64_t stalled(Moment* start, Moment* end) noexcept nogil:
    """Return for how many nanoseconds the thread worked or was blocked between two moments."""
    cdef int64_t ready = end.wall - start.wall - (end.queued - start.queued)
    if end.sleeps == start.sleeps:
        ready = min(ready, end.cpu - start.cpu)
    return max(<int64_t>0, ready)


cdef kind_of(bytes packet):
    """Return the kind of a control packet. Only known names are kinds: clients choose the others, and there is no limit."""
    head = packet[:HEAD_BYTES]
    if head.startswith(b"SUB "):
        return "SUB"
    if head.startswith(b"UNSUB "):
        return "UNSUB"
    if not head.startswith(b"CMSG "):
        return "malformed packet"
    name = head[5:].partition(b"\0")[0]
    return "CMSG " + name.decode() if name in _KNOWN else "CMSG of an unknown name"


cdef class Stalls:
    """The stalls of one loop; every method is called from the loop's thread."""

    def __cinit__(self):
        self.schedstat = -1

    def __init__(self):
        self.names = []
        self.numbers = {}
        for name in _FIXED:
            self.number_of(name)

    def __dealloc__(self):
        if self.schedstat >= 0:
            close(self.schedstat)

    cdef int number_of(self, name):
        """Return the number of a cause, a new one for a new name."""
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = len(self.names)
            self.names.append(name)
            self.spent.resize(len(self.names))
        return number

    cdef int64_t queued_until_now(self) noexcept nogil:
        """Return for how long this thread has been in the run queue; 0 if the kernel does not report it."""
        cdef char text[96]
        cdef char* end = NULL
        cdef ssize_t size
        if self.schedstat < 0:
            self.schedstat = open(b"/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)
            if self.schedstat < 0:
                return 0
        size = pread(self.schedstat, text, sizeof(text) - 1, 0)
        if size <= 0:
            return 0
        text[size] = 0
        strtoll(text, &end, 10)
        return strtoll(end, NULL, 10)

    cdef void begin_turn(self) noexcept nogil:
        """Begin a turn: epoll_wait(2) has returned."""
        self.is_awake = True
        self.turns += 1
        self.woken = look(self)
        self.step = self.woken

    cdef void end_step(self, int cause) noexcept nogil:
        """Charge the time since the last step to *cause*."""
        cdef int64_t now, taken
        cdef Moment end
        cdef Spent* spent = &self.spent[cause]
        if not self.is_awake:
            return
        now = nanoseconds(CLOCK_MONOTONIC)
        taken = now - self.step.wall
        if taken > LONG_STEP:
            end = look(self)
            taken = stalled(&self.step, &end)
            self.step = end
        else:
            self.step.wall = now
            self.step.cpu = nanoseconds(CLOCK_THREAD_CPUTIME_ID)
        spent.steps += 1
        spent.turn += taken
        spent.longest = max(spent.longest, taken)

    cdef void note_control(self, bytes packet):
        """Charge the time since the last step to the control packet *packet*."""
        self.end_step(self.number_of(kind_of(packet)))

    def wake(self):
        """Begin a turn."""
        self.begin_turn()

    def rest(self):
        """End a turn."""
        self.end_turn()

    def note(self, str name):
        """Charge the time since the last step to the cause *name*."""
        self.end_step(self.number_of(name))

    cdef void end_turn(self) noexcept nogil:
        """End a turn: epoll_wait(2) is about to be called. Time that was charged to no cause is time in Python."""
        cdef int64_t stall
        cdef Moment end
        cdef size_t i
        if not self.is_awake:
            return
        self.end_step(IN_PYTHON)
        self.is_awake = False
        end = self.step
        if end.wall - self.woken.wall > LONG_STEP:
            end = look(self)
        else:
            # A short turn cannot have been in the run queue for long.
            end.queued, end.sleeps = self.woken.queued, self.woken.sleeps
        stall = stalled(&self.woken, &end)
        if stall > self.stall:
            self.stall = stall
            self.wall = end.wall - self.woken.wall
            self.queued = end.queued - self.woken.queued
            self.cpu = end.cpu - self.woken.cpu
            self.has_slept = end.sleeps != self.woken.sleeps
            self.parts.resize(self.spent.size())
            for i in range(self.spent.size()):
                self.parts[i] = self.spent[i].turn
        for i in range(self.spent.size()):
            self.spent[i].worst_turn = max(self.spent[i].worst_turn, self.spent[i].turn)
            self.spent[i].turn = 0

    def report(self):
        """Return the longest stall and the time of each cause, as in sbusd(8); in microseconds."""
        parts = {self.names[i]: self.parts[i] // 1000 for i in range(self.parts.size()) if self.parts[i] >= 1000}
        ordered = dict(sorted(parts.items(), key=lambda part: -part[1]))
        longest = {
            "cause": next(iter(ordered), self.names[IN_PYTHON]), "stall_us": self.stall // 1000, "wall_us": self.wall // 1000,
            "cpu_us": self.cpu // 1000, "run_queue_us": self.queued // 1000, "has_slept": self.has_slept, "parts_us": ordered,
        }
        causes = {
            self.names[i]: {
                "steps": self.spent[i].steps, "longest_step_us": self.spent[i].longest // 1000,
                "longest_turn_us": self.spent[i].worst_turn // 1000,
            }
            for i in range(self.spent.size()) if self.spent[i].steps
        }
        return {"turns": self.turns, "sees_run_queue": self.schedstat >= 0, "longest": longest if self.turns else None, "causes": causes}
