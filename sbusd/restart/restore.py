"""The restore of a bus from the state of the previous process: connections with their subscriptions and pending packets.

Credentials are read again from the kernel and checked against the current configuration. Nothing is sent to any client before the restored
state is written again (:attr:`Restoration.then`): until then a process that is killed has changed nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from sbus.protocol import controls
from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode
from sbus.protocol.memberships import split_stored, subscription_words
from sbus.protocol.packets import control_packet
from sbus.protocol.printable import printable
from sbusd.broker import durable_state, log_messages
from sbusd.broker.broker import Broker
from sbusd.broker.connection_times import boot_time_of
from sbusd.broker.process_watch import is_hung_up
from sbusd.broker.roster import Client
from sbusd.dataplane.peer import credentials_of
from sbusd.dataplane.socket_closer import hang_up
from sbusd.dataplane.switch_state import Queue
from sbusd.state.records import ConnectionState, State

LOST_UNKNOWN = control_packet(controls.LOST, b"0")
"""The loss notice for a client restored after a crash. The number of lost packets is unknown, and may be 0."""


@dataclass(slots=True)
class Restoration:
    """The result. Call everything in ``then``, in order, after the restored state is written again."""

    restored: int = 0
    gone: int = 0
    """Connections in the state that no longer exist, and existing ones that are not in the state; the latter were closed."""
    then: list[Callable[[], None]] = field(default_factory=list)


def restore(broker: Broker, state: State, fds: Iterable[int], progress: Callable[[], None] = lambda: None) -> Restoration:
    """Restore the connections of *state* whose sockets are among *fds* into a bus without connections. Owns *fds*.

    All connections are adopted first, so that the units of their processes are read in an order that is fair to all users.

    *progress* is called for each connection.
    """
    outcome = Restoration()
    adopted: list[tuple[ConnectionState, Client]] = []
    by_inode = {os.fstat(fd).st_ino: fd for fd in fds}
    durable_state.restore_totals(broker.quotas, state.bus.totals)
    for connection in state.connections.values():
        progress()
        fd = by_inode.pop(connection.inode, None)
        if fd is not None and not state.bus.is_orderly and _is_stream(fd):
            # The process before may have read or written a part of a frame. No one knows where the next frame begins.
            hang_up(fd)
            fd = None
        client = None if fd is None else _adopt(broker, connection, fd)
        if client is None:
            outcome.gone += 1
            durable_state.count_gone(broker.quotas, connection)
            outcome.then.append(partial(_report_end, broker, connection, state.queues.get(connection.number, Queue())))
        else:
            adopted.append((connection, client))
    for connection, client in adopted:
        progress()
        _restore_connection(broker, connection, client, outcome)
    outcome.restored = len(adopted)
    for fd in by_inode.values():
        # A connection that has ended stays in the store until the next rewrite; it is not lost.
        outcome.gone += not is_hung_up(fd)
        hang_up(fd)
    durable_state.restore_users(broker.quotas, state.accounts, state.bus.forgotten_early)
    broker.switch.restore_all(state.packets, state.queues, state.bus.tally, state.bus.next_connection)
    broker.counts.update(state.bus.counts)
    broker.journal.restore(state.bus.records)
    if state.bus.started is not None:
        broker.control_messages.started = min(broker.control_messages.started, state.bus.started)
    if state.bus.is_orderly and state.bus.counted_since is not None:
        broker.control_messages.counted_since = state.bus.counted_since
    if not state.bus.is_orderly:
        outcome.then += [partial(_send_loss_notice, broker, client.connection) for client in broker.roster]
    return outcome


def _is_stream(fd: int) -> bool:
    """Return whether a socket is of type SOCK_STREAM."""
    with socket.socket(fileno=os.dup(fd)) as connection:
        return connection.type is socket.SOCK_STREAM


def _adopt(broker: Broker, state: ConnectionState, fd: int) -> Client | None:
    """Take over one connection, and return its client; None if that is not possible, and then the connection is closed."""
    try:
        credentials = credentials_of(fd)
        broker.switch.adopt(fd, state.number)
    except (OSError, ValueError) as error:
        broker.journal.record(log_messages.CREDENTIALS_UNKNOWN, connection=state.number, reason=str(error))
        hang_up(fd)
        return None
    client = broker.roster.add(state.number, credentials, boot_time_of(state.since), fd, state.inode)
    durable_state.readmit(broker.quotas, state.number, credentials, state.holding)
    broker.fast_path.locate(client)
    return client


def _restore_connection(broker: Broker, state: ConnectionState, client: Client, outcome: Restoration) -> None:
    """Restore the settings and subscriptions of one connection, as the current rules allow."""
    broker.await_unit(client)
    broker.fast_path.apply_rights(client)
    broker.switch.restore(state.number, state.settings, state.progress)
    client.name = state.name
    if not broker.ownership.admits(client.credentials.uid):
        words = f"user {client.credentials.uid} is no longer admitted to this bus"
        outcome.then.append(partial(broker.refusals.disconnect, client, ErrorCode.EACCES, words))
        return
    _restore_subscriptions(broker, client, state, outcome)
    if state.tap is not None:
        _restore_tap(broker, client, state.tap, outcome)


def _restore_subscriptions(broker: Broker, client: Client, state: ConnectionState, outcome: Restoration) -> None:
    """Restore the subscriptions of a client that the current rules allow."""
    revoked, rule = 0, ""
    for pattern, count in state.patterns.items():
        verdict = broker.access.subscription(split_stored(pattern)[0], client.credentials, client.connection)
        if verdict.is_allowed:
            _restore_pattern(broker, client, pattern, count, outcome)
            continue
        revoked += count
        rule = rule or (verdict.rule.name if verdict.rule else "the protocol")
        words = f"{subscription_words(pattern)} has ended: {verdict.reason}"
        outcome.then.append(partial(broker.presence.not_restored, client, pattern))
        outcome.then.append(partial(broker.refusals.refuse, client, ErrorCode.EPERM, words, b"SUB " + pattern))
    if revoked:
        who = client.credentials
        record = partial(broker.journal.record, log_messages.SUBSCRIPTIONS_REVOKED, uid=who.uid, pid=who.pid, connection=client.connection)
        outcome.then.append(partial(record, count=revoked, rule=rule))


def _restore_tap(broker: Broker, client: Client, pattern: bytes, outcome: Restoration) -> None:
    """Restore the tap of a client, if it still has the right."""
    if broker.taps.may_tap(client):
        broker.quotas.force_subscription(client.connection, pattern, 1)
        client.tap = pattern
        broker.switch.set_tap(client.connection, pattern)
        return
    words = "the right to tap this bus was revoked"
    outcome.then.append(partial(broker.refusals.refuse, client, ErrorCode.EPERM, words, b"CMSG " + controls.TAP_ON))


def _restore_pattern(broker: Broker, client: Client, pattern: bytes, count: int, outcome: Restoration) -> None:
    """Restore *count* instances of a pattern."""
    number = client.connection
    try:
        if broker.access.names_process(split_stored(pattern)[0]):
            _bind(broker, client, pattern, count)
    except ProcessLookupError:
        # A socket that no process holds needs no error, and its last packets are still read.
        if not is_hung_up(client.fd):
            outcome.then.append(partial(broker.bindings.process_ended, number, pattern))
        return
    except OSError as error:
        words = f"the subscription {printable(pattern)} has ended: the bus cannot watch the process: {error.strerror}"
        outcome.then.append(partial(broker.presence.not_restored, client, pattern))
        outcome.then.append(partial(broker.refusals.refuse, client, ErrorCode.EMFILE, words, b"SUB " + pattern))
        return
    broker.quotas.force_subscription(number, pattern, count)
    for _ in range(count):
        broker.switch.subscribe(number, pattern)
    client.subscriptions += count
    broker.presence.resume(number, pattern, count)


def _bind(broker: Broker, client: Client, pattern: bytes, count: int) -> None:
    """Bind instances of a pattern to the process of the client. Raises OSError if it has ended or cannot be watched."""
    number = client.connection
    was_held = broker.bindings.watch.watches(number)
    for _ in range(count):
        if not broker.bindings.watch.bind(number, client.fd, pattern):
            return
    if not was_held:
        broker.quotas.force_descriptor(number)


def _report_end(broker: Broker, state: ConnectionState, queue: Queue) -> None:
    """Publish the end of a connection that was not restored, so that no client waits for it. *queue* was pending for it."""
    if state.who is not None:
        pid, uid, gid = state.who
        broker.presence.disconnected(
            Client(state.number, Credentials(pid, uid, gid), boot_time_of(state.since)), len(queue.waiting) + len(queue.notes)
        )


def _send_loss_notice(broker: Broker, connection: int) -> None:
    """Notify a client that an unknown number of its packets may be lost."""
    if connection in broker.roster:
        broker.switch.send(connection, LOST_UNKNOWN)
