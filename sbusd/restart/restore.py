"""A bus goes on where another was: connections, with their subscriptions and what waits, are brought back.

Who a client is, the kernel is asked again, and what it may have, the rules that hold now. Nothing is said to anybody before what was
brought back is written down anew (:attr:`Restoration.then`): a process that is killed meanwhile has changed nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from sbusd.broker import log_messages, usage_state
from sbusd.broker.durable_state import Parts
from sbusd.broker.process_watch import is_hung_up
from sbusd.broker.roster import Client
from sbusd.dataplane.closer import hang_up
from sbusd.dataplane.connection_state import Queue
from sbusd.dataplane.contract import HardMode, Order, SoftMode
from sbusd.dataplane.peer import credentials_of
from sbusd.protocol import controls
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.errors import ErrorCode
from sbusd.protocol.packets import control_packet
from sbusd.protocol.printable import printable
from sbusd.state.records import ConnectionState, State

LOST_UNKNOWN = control_packet(controls.LOST, b"0")
"""What a client is told that comes back after a kill: nobody knows how many packets were lost, if any."""


@dataclass(slots=True)
class Restoration:
    """What came of it. Call everything in ``then``, in order, once the state is written down anew."""

    restored: int = 0
    gone: int = 0
    """Connections of the state that are not there any more, and those there that are not in the state; the latter were closed."""
    then: list[Callable[[], None]] = field(default_factory=list)


def restore(parts: Parts, state: State, fds: Iterable[int], progress: Callable[[], None] = lambda: None) -> Restoration:
    """Bring back the connections of *state* whose sockets are among *fds*, which are taken over, into a bus that has none yet.

    *progress* is called for each.
    """
    outcome = Restoration()
    by_inode = {os.fstat(fd).st_ino: fd for fd in fds}
    for connection in state.connections.values():
        progress()
        fd = by_inode.pop(connection.inode, None)
        if fd is None or not _readmit(parts, connection, fd, outcome):
            outcome.gone += 1
            outcome.then.append(partial(_tell_end, parts, connection, state.queues.get(connection.number, Queue())))
        else:
            outcome.restored += 1
    for fd in by_inode.values():
        # One that has ended lies there until the lot is rewritten: that is no loss.
        outcome.gone += not is_hung_up(fd)
        hang_up(fd)
    usage_state.restore_users(parts.quotas, state.accounts, state.bus.forgotten_early)
    parts.switch.restore_all(state.packets, state.queues, state.bus.tally, state.bus.next_connection)
    parts.counts.update(state.bus.counts)
    parts.journal.restore(state.bus.records)
    if state.bus.started is not None:
        parts.control_messages.started = min(parts.control_messages.started, state.bus.started)
    if not state.bus.is_orderly:
        outcome.then += [partial(_tell_loss, parts, client.connection) for client in parts.roster]
    return outcome


def _readmit(parts: Parts, state: ConnectionState, fd: int, outcome: Restoration) -> bool:
    """Bring back one connection, and return whether that was possible; if not, it is closed."""
    try:
        credentials = credentials_of(fd)
        parts.switch.adopt(fd, state.number)
    except (OSError, ValueError) as error:
        parts.journal.record(log_messages.CREDENTIALS_UNKNOWN, connection=state.number, reason=str(error))
        hang_up(fd)
        return False
    client = parts.roster.add(state.number, credentials, state.since, fd, state.inode)
    usage_state.readmit(parts.quotas, state.number, credentials, state.holding)
    parts.place(client)
    parts.switch.restore(state.number, state.settings, state.progress)
    client.soft = SoftMode(state.settings.soft).name.lower()
    client.hard = HardMode(state.settings.hard).name.lower()
    client.order = Order(state.settings.order).name.lower()
    client.wants_senders = state.settings.sender
    client.wants_batches = state.settings.batch
    if not parts.admits(credentials.uid):
        outcome.then.append(partial(parts.end, client, ErrorCode.EACCES, f"user {credentials.uid} is no longer admitted to this bus"))
        return True
    _resubscribe(parts, client, state, outcome)
    if state.tap is not None:
        _retap(parts, client, state.tap, outcome)
    return True


def _resubscribe(parts: Parts, client: Client, state: ConnectionState, outcome: Restoration) -> None:
    """Bring back a client's subscriptions, as far as the rules allow them now."""
    revoked, rule = 0, ""
    for pattern, count in state.patterns.items():
        verdict = parts.access.subscription(pattern, client.credentials, client.connection)
        if verdict.is_allowed:
            _hold(parts, client, pattern, count, outcome)
            continue
        revoked += count
        rule = rule or (verdict.rule.name if verdict.rule else "the protocol")
        words = f"the subscription {printable(pattern)} has ended: {verdict.reason}"
        outcome.then.append(partial(parts.presence.not_restored, client, pattern))
        outcome.then.append(partial(parts.refuse, client, ErrorCode.EPERM, words, b"SUB " + pattern))
    if revoked:
        who = client.credentials
        record = partial(parts.journal.record, log_messages.SUBSCRIPTIONS_REVOKED, uid=who.uid, pid=who.pid, connection=client.connection)
        outcome.then.append(partial(record, count=revoked, rule=rule))


def _retap(parts: Parts, client: Client, pattern: bytes, outcome: Restoration) -> None:
    """Bring back a client's tap, if it may have one now."""
    if parts.may_tap(client):
        parts.quotas.force_subscription(client.connection, pattern, 1)
        client.tap = pattern
        parts.switch.set_tap(client.connection, pattern)
        return
    words = "the right to tap this bus was revoked"
    outcome.then.append(partial(parts.refuse, client, ErrorCode.EPERM, words, b"CMSG " + controls.TAP_ON))


def _hold(parts: Parts, client: Client, pattern: bytes, count: int, outcome: Restoration) -> None:
    """Bring back *count* instances of a pattern."""
    number = client.connection
    try:
        if parts.access.names_process(pattern):
            _bind(parts, client, pattern, count)
    except ProcessLookupError:
        # Where nobody holds the socket any more, nobody is to be told, and what was sent on it is still read.
        if not is_hung_up(client.fd):
            outcome.then.append(partial(parts.process_ended, number, pattern))
        return
    except OSError as error:
        words = f"the subscription {printable(pattern)} has ended: the bus cannot watch the process: {error.strerror}"
        outcome.then.append(partial(parts.presence.not_restored, client, pattern))
        outcome.then.append(partial(parts.refuse, client, ErrorCode.EMFILE, words, b"SUB " + pattern))
        return
    parts.quotas.force_subscription(number, pattern, count)
    for _ in range(count):
        parts.switch.subscribe(number, pattern)
    client.subscriptions += count
    parts.presence.resume(number, pattern, count)


def _bind(parts: Parts, client: Client, pattern: bytes, count: int) -> None:
    """Bind instances of a pattern to the client's process. Raises OSError if it has ended, or cannot be watched."""
    number = client.connection
    was_held = parts.process_watch.watches(number)
    for _ in range(count):
        if not parts.process_watch.bind(number, client.fd, pattern):
            return
    if not was_held:
        parts.quotas.force_descriptor(number)


def _tell_end(parts: Parts, state: ConnectionState, queue: Queue) -> None:
    """Tell those who listen that a connection did not come back: whoever waits for it would wait for ever. *queue* waited for it."""
    if state.who is not None:
        pid, uid, gid = state.who
        parts.presence.disconnected(Client(state.number, Credentials(pid, uid, gid), state.since), len(queue.waiting) + len(queue.notes))


def _tell_loss(parts: Parts, connection: int) -> None:
    """Tell a client that an unknown number of packets for it may be lost."""
    if connection in parts.roster:
        parts.switch.send(connection, LOST_UNKNOWN)
