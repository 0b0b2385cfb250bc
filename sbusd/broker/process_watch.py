"""Watched processes: a subscription to a private key that names a pid ends with that process. Spec: sbus-protocol(7) §4; pidfd_open(2).

The kernel can give the pid of an ended process to another one, and a child process can still hold the socket. So the bus keeps a pidfd of
each process that a subscription names, and is notified when the process ends.

One epoll holds all pidfds, so the switch watches one descriptor. A connection needs one pidfd, because only the pid of its peer matches.
"""

from __future__ import annotations

import os
import select
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sbus.protocol.errors import ErrorCode
from sbus.protocol.printable import printable
from sbusd.broker import log_messages
from sbusd.broker.client_log import ClientLog
from sbusd.broker.log import BusLog
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.refusals import Refusals
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.peer import pidfd_of

_EVENTS_AT_ONCE = 64
"""Maximum number of ended processes that one turn handles."""


@dataclass(slots=True)
class _Process:
    """The process of one connection: its socket, its pidfd, and the stored patterns that name its pid."""

    connection: int
    fd: int
    pidfd: int
    patterns: Counter[bytes] = field(default_factory=Counter)


class ProcessWatch:
    """The watched processes of one bus. *ended* is called with the connection and one of its patterns. Call :meth:`close` at the end."""

    def __init__(self, ended: Callable[[int, bytes], None]) -> None:
        self._ended = ended
        self._epoll = select.epoll()
        self.by_connection: dict[int, _Process] = {}
        self._by_pidfd: dict[int, _Process] = {}

    def __len__(self) -> int:
        """Return the number of watched processes."""
        return len(self.by_connection)

    def fileno(self) -> int:
        """Return the descriptor that is readable when :meth:`drain` has work."""
        return self._epoll.fileno()

    def watches(self, connection: int) -> bool:
        """Return whether the process of *connection* is watched, so that one more pattern needs no descriptor."""
        return connection in self.by_connection

    def bind(self, connection: int, fd: int, pattern: bytes) -> bool:
        """Bind one more stored instance of *pattern* to the process that connected the socket *fd*, which remains the caller's.

        Return False, and bind nothing, if the kernel does not supply pidfds of peers.

        Raises:
            ProcessLookupError: the process has ended.
            OSError: no descriptor or memory is left.
        """
        process = self.by_connection.get(connection)
        if process is None:
            pidfd = pidfd_of(fd)
            if pidfd is None:
                return False
            process = self._watch(_Process(connection, fd, pidfd))
        if _is_readable(process.pidfd):
            if not process.patterns:
                self.forget(connection)
            raise ProcessLookupError
        process.patterns[pattern] += 1
        return True

    def release(self, connection: int, pattern: bytes) -> bool:
        """Release one instance of *pattern*. Return whether it was the last of the connection, so that its pidfd is closed."""
        process = self.by_connection.get(connection)
        if process is None or pattern not in process.patterns:
            return False
        process.patterns[pattern] -= 1
        if not process.patterns[pattern]:
            del process.patterns[pattern]
        return not process.patterns and self.forget(connection)

    def forget(self, connection: int) -> bool:
        """Stop watching the process of a connection, and return whether it was watched."""
        process = self.by_connection.pop(connection, None)
        if process is None:
            return False
        del self._by_pidfd[process.pidfd]
        # Closing the only descriptor of the open file removes it from the epoll.
        os.close(process.pidfd)
        return True

    def drain(self) -> None:
        """Report the processes that have ended, each once."""
        for pidfd, _ in self._epoll.poll(0, _EVENTS_AT_ONCE):
            process = self._by_pidfd[pidfd]
            self._epoll.unregister(pidfd)
            # A process closes its sockets before its end is reported. If no other process holds this one, the rest of its packets is read.
            if not is_hung_up(process.fd):
                self._ended(process.connection, next(iter(process.patterns)))

    def close(self) -> None:
        """Close all descriptors."""
        for connection in list(self.by_connection):
            self.forget(connection)
        self._epoll.close()

    def _watch(self, process: _Process) -> _Process:
        """Watch *process* and return it. Raises OSError, and closes the pidfd, if that fails."""
        try:
            self._epoll.register(process.pidfd, select.EPOLLIN)
        except OSError:
            os.close(process.pidfd)
            raise
        self.by_connection[process.connection] = self._by_pidfd[process.pidfd] = process
        return process


class ProcessBindings:
    """The subscriptions of one bus that are bound to processes, with their charges and errors. Call :meth:`close` at the end."""

    def __init__(self, roster: Roster, quotas: UserQuotas, refusals: Refusals, log: ClientLog, journal: BusLog) -> None:
        self.watch = ProcessWatch(self.process_ended)
        self._roster = roster
        self._quotas = quotas
        self._refusals = refusals
        self._log = log
        self._journal = journal
        self._is_unsupported = False

    def bind(self, client: Client, pattern: bytes) -> bool:
        """Bind a pattern to the client's process and return True, or refuse the pattern and return False."""
        is_new = not self.watch.watches(client.connection)
        refusal = self._quotas.charge_descriptor(client.connection) if is_new else None
        if refusal is not None:
            self._refusals.refuse_for_quota(client, refusal, b"SUB " + pattern)
            return False
        try:
            if self.watch.bind(client.connection, client.fd, pattern):
                return True
        except OSError as error:
            if is_new:
                self._quotas.release_descriptor(client.connection)
            self._refuse(client, pattern, error)
            return False
        self._quotas.release_descriptor(client.connection)
        if not self._is_unsupported:
            self._is_unsupported = True
            self._journal.record(log_messages.PROCESSES_UNWATCHED)
        return True

    def release(self, client: Client, pattern: bytes) -> None:
        """Release one instance of a pattern, bound or not."""
        if self.watch.release(client.connection, pattern):
            self._quotas.release_descriptor(client.connection)

    def process_ended(self, connection: int, pattern: bytes) -> None:
        """Disconnect a client whose subscription *pattern* names an ended process, although another process holds the socket."""
        client = self._roster[connection]
        self._log.record(log_messages.PROCESS_ENDED, client, key=pattern)
        reason = f"process {client.credentials.pid} has ended, so the subscription {printable(pattern)} has ended"
        self._refusals.refuse(client, ErrorCode.EACCES, reason, b"SUB " + pattern)

    def close(self) -> None:
        """Close all descriptors."""
        self.watch.close()

    def _refuse(self, client: Client, pattern: bytes, error: OSError) -> None:
        """Send a client the reason why its process cannot be watched."""
        if not isinstance(error, ProcessLookupError):
            reason = f"the bus cannot watch process {client.credentials.pid}: {os.strerror(error.errno or 0)}"
            self._refusals.refuse(client, ErrorCode.EMFILE, reason, b"SUB " + pattern)
        elif not is_hung_up(client.fd):
            # If no process holds the socket, an error has no recipient, and the rest of its packets is read.
            self.process_ended(client.connection, pattern)


def is_hung_up(fd: int) -> bool:
    """Return whether no process holds the other end of the socket *fd*."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def _is_readable(fd: int) -> bool:
    """Return whether *fd* is readable now."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
