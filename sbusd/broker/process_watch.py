"""Processes that subscriptions are bound to: a secret key that names a pid is only as good as its process.

The kernel may give the number of a process that has ended to another, and a child may still hold the socket. So the bus holds
a descriptor of each process that a subscription names, and hears when it ends. Spec: sbus-protocol(7) §4; pidfd_open(2).

One epoll holds all of them, which is itself one descriptor for the switch to watch; one pidfd a connection suffices, for only the
pid of the peer itself can be named.
"""

from __future__ import annotations

import os
import select
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sbusd.dataplane.peer import pidfd_of

_AT_ONCE = 64
"""Ends that are told in one turn; the others are in the next."""


@dataclass(slots=True)
class _Lifeline:
    """One connection: its number, its socket, its process, and the stored patterns that name it."""

    connection: int
    fd: int
    pidfd: int
    patterns: Counter[bytes] = field(default_factory=Counter)


class Lifelines:
    """The processes of one bus. *ended* is told the connection and one of its patterns. Call :meth:`close` at the end."""

    def __init__(self, ended: Callable[[int, bytes], None]) -> None:
        self._ended = ended
        self._epoll = select.epoll()
        self.by_connection: dict[int, _Lifeline] = {}
        self._by_pidfd: dict[int, _Lifeline] = {}

    def __len__(self) -> int:
        """Return how many processes are held."""
        return len(self.by_connection)

    def fileno(self) -> int:
        """Return what is readable when :meth:`drain` has something to do."""
        return self._epoll.fileno()

    def holds(self, connection: int) -> bool:
        """Return whether the process of *connection* is held, so that one more pattern costs no descriptor."""
        return connection in self.by_connection

    def bind(self, connection: int, fd: int, pattern: bytes) -> bool:
        """Bind one more stored instance of *pattern* to the process that connected the socket *fd*, which stays the caller's.

        Returns False where the kernel has no descriptors of peers' processes, so that nothing is bound.

        Raises:
            ProcessLookupError: the process has ended.
            OSError: there is no descriptor or memory left.
        """
        line = self.by_connection.get(connection)
        if line is None:
            pidfd = pidfd_of(fd)
            if pidfd is None:
                return False
            line = self._hold(_Lifeline(connection, fd, pidfd))
        if _is_readable(line.pidfd):
            if not line.patterns:
                self.forget(connection)
            raise ProcessLookupError
        line.patterns[pattern] += 1
        return True

    def release(self, connection: int, pattern: bytes) -> bool:
        """Let go of one instance of *pattern*, and return whether that was the connection's last, so its descriptor is closed."""
        line = self.by_connection.get(connection)
        if line is None or pattern not in line.patterns:
            return False
        line.patterns[pattern] -= 1
        if not line.patterns[pattern]:
            del line.patterns[pattern]
        return not line.patterns and self.forget(connection)

    def forget(self, connection: int) -> bool:
        """Let go of all of a connection, and return whether there was anything."""
        line = self.by_connection.pop(connection, None)
        if line is None:
            return False
        del self._by_pidfd[line.pidfd]
        # Closing takes it out of the epoll: nobody else has this description.
        os.close(line.pidfd)
        return True

    def drain(self) -> None:
        """Tell of the processes that have ended, each once."""
        for pidfd, _ in self._epoll.poll(0, _AT_ONCE):
            line = self._by_pidfd[pidfd]
            self._epoll.unregister(pidfd)
            # A process closes its files before its end is told. If nobody else holds the socket, what was sent on it is still to be read.
            if not is_hung_up(line.fd):
                self._ended(line.connection, next(iter(line.patterns)))

    def close(self) -> None:
        """Let go of everything."""
        for connection in list(self.by_connection):
            self.forget(connection)
        self._epoll.close()

    def _hold(self, line: _Lifeline) -> _Lifeline:
        """Watch the process of *line*, which is returned. Raises OSError, and closes its descriptor, where that fails."""
        try:
            self._epoll.register(line.pidfd, select.EPOLLIN)
        except OSError:
            os.close(line.pidfd)
            raise
        self.by_connection[line.connection] = self._by_pidfd[line.pidfd] = line
        return line


def is_hung_up(fd: int) -> bool:
    """Return whether nobody holds the other end of the socket *fd* any more."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def _is_readable(fd: int) -> bool:
    """Return whether *fd* is readable now."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
