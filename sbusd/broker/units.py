"""The units of clients: where in the units of systemd the process of a connection is, read at its connect(2). Spec: sbusd.toml(5).

The kernel says which process has connected, by a pidfd, and which control group that is in. The paths of control groups that were read
are kept. The path of another one has to be read from /proc, which can take long. A thread reads it, and the bus goes on meanwhile.

The order in which requested paths are read is fair: the connections of one user wait for at most one of each other user. If neither a
rule nor a client needs the unit now, it is read only of connections that last, because to read one takes longer than to handle a short
connection: from time to time, all clients are looked at that were there the time before.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from threading import Thread

from sbus.protocol.credentials import Credentials
from sbus_programs.systemd.processes import Placement, placement_of
from sbusd.broker.cgroup_reader import ANSWER, ANSWER_BYTES, REQUEST, answer_requests, cgroup_of, new_timer, set_timer
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.contract import Switch
from sbusd.dataplane.peer import pidfd_of

MAX_IN_FLIGHT = 16
"""Maximum number of requests that the thread has at a time, each with one descriptor."""

WAIT_SECONDS = 1.0
"""For how long a connection is held until its unit is known, if a rule depends on it. Then its unit is unknown."""

DEFERRED_SECONDS = 0.05
"""Time between two looks at new connections whose unit is not needed now. It is read in the second look."""

CLOSE_SECONDS = 1.0
"""How long a bus that ends waits for the thread to end, which it does at once unless the kernel holds it up."""

LOOKED_AT = 256
"""Maximum number of connections that one call of the timer looks at."""

MAX_KNOWN = 64
"""Maximum number of control groups of one user whose paths are kept: a user cannot replace those of others by creating many."""

MAX_USERS = 1_024
"""Maximum number of users whose control groups are kept."""


@dataclass(frozen=True, slots=True)
class Report:
    """The methods that :class:`Units` calls about connections, never within :meth:`Units.find` or :meth:`Units.defer`."""

    found: Callable[[int, Placement | None], None]
    """The place of the process of a connection; None if it remains unknown."""
    late: Callable[[int], None]
    """A connection was held for :data:`WAIT_SECONDS`. ``found`` may still follow."""
    failed: Callable[[int], None]
    """The control group of a process could not be read, with the errno."""


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A connection whose path is to be read."""

    fd: int
    who: Credentials


class Units:
    """The units of the clients of one bus. *charged* returns the user whose turns and kept paths a uid uses.

    Its thread starts with :meth:`start_thread`, or when needed. Call :meth:`close` at the end.

    Raises:
        OSError: no descriptor or memory is left.
    """

    def __init__(
        self,
        switch: Switch,
        report: Report,
        roster: Roster,
        *,
        charged: Callable[[int], int] = int,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._switch = switch
        self._report = report
        self._roster = roster
        self._charged = charged
        self._wait_seconds = wait_seconds
        self.awaited: dict[int, _Awaited] = {}
        """The connections for which ``found`` will be called. Remove one that ends."""
        self._waiting: dict[int, deque[int]] = {}
        """Of these, those that the thread does not have yet, by charged user, in the order in which they are sent."""
        self._in_flight = 0
        self._known: dict[int, dict[int, Placement | None]] = {}
        """Places by charged user and the number of a control group."""
        self._socket: socket.socket | None = None
        self._timer = new_timer()
        self._armed_for = math.inf
        """The time for which the timer is set."""
        switch.watch(self._timer, self.expire)
        self._thread = Thread()
        self._deadlines: deque[tuple[float, int]] = deque()
        """Connections that are held until then, at most."""
        self.is_looking = False
        """Whether there will be a look at new clients. Otherwise :meth:`defer` has to be called for one whose unit is not needed now."""
        self._next_look = 0.0
        self._looked_at = 0
        """Clients up to this number were looked at."""
        self._due = 0
        """Those up to this number are due in the next look."""
        self._has_numbers = True

    def start_thread(self) -> None:
        """Start the thread before it is needed, if there is one left: the loop would wait for it to begin."""
        with contextlib.suppress(OSError, RuntimeError):
            self._reader()

    def defer(self) -> None:
        """Look at new clients later. ``found`` is called for each that awaits its unit by then."""
        self.is_looking = True
        self._next_look = time.monotonic() + DEFERRED_SECONDS
        self._arm()

    def find(self, connection: int, fd: int, who: Credentials) -> Placement | None:
        """Return the place of the process that connected the socket *fd*, or None if it is not known now.

        In the latter case the connection may be in :attr:`awaited`. *fd* must stay open while it is.
        """
        is_final, placement = self._look_up(fd, who.uid)
        if not is_final:
            self.awaited[connection] = _Awaited(fd, who)
            self._demand([connection], besides=connection)
            self._arm()
        return placement

    def wait(self, connection: int, end: float) -> None:
        """Wait until ``found`` was called for an urgent connection, at most until *end* of the monotonic clock: at the start of a bus."""
        while connection in self.awaited and self._socket is not None:
            left = end - time.monotonic()
            if left <= 0:
                return
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.poll(left * 1_000)
            self.drain()

    def drain(self) -> None:
        """Report what the thread has read."""
        for _ in range(MAX_IN_FLIGHT):
            try:
                answer = b"" if self._socket is None else self._socket.recv(ANSWER_BYTES)
            except BlockingIOError:
                break
            except OSError:
                answer = b""
            if not answer:
                self._give_up()
                return
            self._in_flight -= 1
            self._take(answer)
        self._settle(self._send())

    def expire(self) -> None:
        """Report the connections that were held for too long, and request what was deferred."""
        with contextlib.suppress(BlockingIOError):  # the timer was set again after epoll(7) had reported it
            os.read(self._timer, 8)
        self._armed_for = math.inf
        for connection in self._overdue():
            self._report.late(connection)
        if self.is_looking and time.monotonic() >= self._next_look:
            self._look()
        self._arm()

    def close(self) -> None:
        """End the thread, and close all descriptors: within about a second. The switch must be closed already, or must not turn again."""
        os.close(self._timer)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._thread.join(CLOSE_SECONDS)

    def _look_up(self, fd: int, uid: int) -> tuple[bool, Placement | None]:
        """Return whether the place of the process that connected *fd* need not be read, and the place; None: it cannot be known."""
        number = cgroup_of(fd) if self._has_numbers else 0
        if number < 0:
            return True, None
        self._has_numbers = number > 0
        known = self._known.get(self._charged(uid), {})
        return number in known, known.get(number)

    def _demand(self, connections: list[int], besides: int = 0) -> None:
        """Request the paths of *connections*, and report those that cannot be read, except *besides*."""
        end = time.monotonic() + self._wait_seconds
        for connection in connections:
            self._waiting.setdefault(self._charged(self.awaited[connection].who.uid), deque()).append(connection)
        self._settle(self._send(), besides)
        self._deadlines.extend((end, connection) for connection in connections if connection in self.awaited)

    def _overdue(self) -> list[int]:
        """Remove the first deadlines that have passed, or whose connections are not awaited any more, and return the awaited ones.

        There can be more of them. Then the timer calls again a millisecond later, because no message is routed meanwhile.
        """
        now = time.monotonic()
        found: list[int] = []
        for _ in range(LOOKED_AT):
            if (
                not self._deadlines
                or len(found) == MAX_IN_FLIGHT
                or (self._deadlines[0][0] > now and self._deadlines[0][1] in self.awaited)
            ):
                break
            _, connection = self._deadlines.popleft()
            if connection in self.awaited:
                found.append(connection)
        return found

    def _look(self) -> None:
        """Look up the next clients that are due, at most as many as the thread may have, and plan the next look."""
        clients = list(islice(self._roster.after(self._looked_at), LOOKED_AT))
        is_done = len(clients) < LOOKED_AT
        unread: list[int] = []
        lookups = 0
        for client in clients:
            if client.connection > self._due or lookups == MAX_IN_FLIGHT:
                is_done = client.connection > self._due
                break
            self._looked_at = client.connection
            if client.awaits_unit and client.connection not in self.awaited:
                lookups += 1
                if self._must_be_read(client):
                    unread.append(client.connection)
        self._demand(unread)
        self._plan(is_done=is_done)

    def _plan(self, *, is_done: bool) -> None:
        """Plan the next look: a millisecond later if not all clients that were due have been looked at."""
        if not is_done:
            self._next_look = 0.0
        elif self._roster.newest > self._due:
            self._looked_at, self._due = self._due, self._roster.newest
            self._next_look = time.monotonic() + DEFERRED_SECONDS
        else:
            self.is_looking = False

    def _must_be_read(self, client: Client) -> bool:
        """Return whether the path of a client is to be read: then it is awaited. Otherwise its place is reported."""
        is_final, placement = self._look_up(client.fd, client.credentials.uid)
        if is_final:
            self._report.found(client.connection, placement)
        else:
            self.awaited[client.connection] = _Awaited(client.fd, client.credentials)
        return not is_final

    def _arm(self) -> None:
        """Set the timer for the next deadline or look, unless it is set for that or an earlier time."""
        first = min(self._deadlines[0][0] if self._deadlines else math.inf, self._next_look if self.is_looking else math.inf)
        if first < self._armed_for:
            set_timer(self._timer, max(1e-3, first - time.monotonic()))
            self._armed_for = first

    def _give_up(self) -> None:
        """Report that no place is known: the kernel had no memory for an answer, so the thread has ended. Another one starts if needed."""
        if self._socket is not None:
            self._switch.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._in_flight = 0
        self._waiting.clear()
        self._deadlines.clear()
        self._settle(list(self.awaited))

    def _take(self, answer: bytes) -> None:
        """Report one answer, and keep its path."""
        connection, number, failure = ANSWER.unpack_from(answer)
        awaited = self.awaited.pop(connection, None)
        if awaited is None:
            return
        placement = None
        if failure:
            self._report.failed(failure)
        else:
            placement = placement_of(answer[ANSWER.size :].decode("utf-8", "backslashreplace"))
            if number:
                self._keep(self._charged(awaited.who.uid), number, placement)
        self._report.found(connection, placement)

    def _keep(self, user: int, number: int, placement: Placement | None) -> None:
        """Keep the place of a control group. The oldest ones are removed if there are too many."""
        known = self._known.pop(user, None) or {}
        if len(known) >= MAX_KNOWN:
            del known[next(iter(known))]
        known[number] = placement
        if len(self._known) >= MAX_USERS:
            del self._known[next(iter(self._known))]
        self._known[user] = known

    def _send(self) -> list[int]:
        """Give the thread what it may have, and return the connections whose processes cannot be read."""
        failed: list[int] = []
        while self._waiting and self._in_flight < MAX_IN_FLIGHT:
            user, connections = next(iter(self._waiting.items()))
            del self._waiting[user]
            connection = connections.popleft()
            if connections:
                # After those of the other users.
                self._waiting[user] = connections
            awaited = self.awaited.get(connection)
            if awaited is not None and not self._request(connection, awaited):
                failed.append(connection)
        return failed

    def _settle(self, failed: list[int], besides: int = 0) -> None:
        """Report that the places of *failed* connections remain unknown; not of *besides*, about which :meth:`find` was asked."""
        for connection in failed:
            if self.awaited.pop(connection, None) is not None and connection != besides:
                self._report.found(connection, None)

    def _request(self, connection: int, awaited: _Awaited) -> bool:
        """Give the thread one process, and return whether that was possible."""
        pidfd = None
        try:
            peer = self._reader()
            pidfd = pidfd_of(awaited.fd)
            if pidfd is None:
                return False
            peer.send(REQUEST.pack(connection, pidfd, awaited.who.pid))
        except ProcessLookupError:
            return False
        except (OSError, RuntimeError) as error:
            # No descriptor, memory or thread is left. The next connection tries again.
            if pidfd is not None:
                os.close(pidfd)
            self._report.failed(getattr(error, "errno", 0) or 0)
            return False
        self._in_flight += 1
        return True

    def _reader(self) -> socket.socket:
        """Return the socket of the thread, which this starts. Raises OSError or RuntimeError."""
        if self._socket is None:
            own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                own.setblocking(False)
                thread = Thread(target=answer_requests, args=(other.fileno(),), name="units", daemon=True)
                thread.start()
            except (OSError, RuntimeError):
                own.close()
                other.close()
                raise
            # The thread owns it.
            other.detach()
            self._socket, self._thread = own, thread
            self._switch.watch(own.fileno(), self.drain)
        return self._socket
