"""Plain clients as workers: those that subscribe to ``queue/<queue>/``, and their answers to jobs.

Presence shows the store who subscribes. A worker gets each job in a direct message, and ends it by a message to ``store/job/``. Spec:
sbus-store(8), "SUBSCRIBED WORKERS". Attacks of other users that the store prevents:

1. *Take jobs.* A subscriber gets jobs if the caller of ``store/take`` would get them. A direct message has one recipient.
2. *End the jobs of others.* A lease belongs to a connection, which the bus names.
3. *Take all of it.* Workers by subscription and by call wait in one line, in which users take turns; limits are those of calls.
4. *Use up the store.* Only what concerns a lease of the sender costs an operation on the file; each user has few that wait.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence

from sbus.errors import ProtocolError, SbusError
from sbus.items import Change, Gap, Message, PresenceEvent, Reconnected, presence_item
from sbus.protocol import controls
from sbus.protocol.credentials import Peer, make_peer
from sbus.protocol.direct_messages import direct_packet
from sbus.protocol.keys import EVENT_HEAD, bytes_of
from sbus.protocol.packets import publish_packet
from sbus.protocol.printable import printable
from sbus_services.store.bus_connections import ServingBus
from sbus_services.store.calls.job_calls import STALE, JobCalls
from sbus_services.store.calls.responses import CallError, code_and_words
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError
from sbus_services.store.operation_queue import QueuedOperation
from sbus_services.store.subscribed_worker import (
    KEY_HEAD,
    SETTLEMENT_HEAD,
    Settlement,
    SettlementError,
    SubscribedWorker,
    UnsubscribedError,
    parse_settlement,
)


class SubscribedWorkers:
    """The workers of all queues. *report* gets lines for the log."""

    def __init__(self, context: StoreContext, jobs: JobCalls, report: Callable[[str], None]) -> None:
        self._context = context
        self._jobs = jobs
        self._report = report
        self._by_connection: dict[int, dict[str, SubscribedWorker]] = {}
        self._bus: ServingBus | None = None
        context.on_settled, context.on_worker_gone = self._settled, self._gone

    def __len__(self) -> int:
        """Return the number of subscriptions of workers."""
        return sum(each.task is not None for workers in self._by_connection.values() for each in workers.values())

    async def run(self, bus: ServingBus, control: ServingBus) -> None:
        """Serve workers by *bus* until the connection ends, with *control* for questions to the bus. Raises SbusError, OSError."""
        self._bus = bus
        patterns = [EVENT_HEAD + word + b"/*/" + KEY_HEAD for word in (b"subscribe", b"unsubscribe")]
        try:
            async with bus.subscribe(*patterns, SETTLEMENT_HEAD) as items:
                await self._find_all(control)
                while True:
                    item = await items.receive()
                    if isinstance(item, Gap | Reconnected):
                        self._context.counts["worker_messages_lost"] += 1
                        self._report("messages of subscribed workers were lost: jobs that they concern are tried again after their leases")
                        await self._find_all(control)
                    elif isinstance(item, Message) and item.key_bytes.startswith(SETTLEMENT_HEAD):
                        self._settle(item)
                    elif isinstance(item, Message):
                        self._on_event(item)
        finally:
            self._bus = None
            workers, self._by_connection = self._by_connection, {}
            tasks = [each.task for queues in workers.values() for each in queues.values() if each.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Subscriptions

    async def _find_all(self, control: ServingBus) -> None:
        """Begin the workers that are subscribed already. Raises SbusError, OSError."""
        after = b""
        try:
            while True:
                page = json.loads(await control.control(controls.SUBSCRIPTIONS, after or None))
                for each in page["subscriptions"]:
                    encoded = each.get("pattern_base64")
                    pattern = base64.b64decode(encoded) if encoded else each["pattern"].encode()
                    if "group" not in each:
                        self._begin(make_peer(int(each["id"]), each["cred"].encode()), pattern)
                if not page["next"]:
                    return
                after = str(page["next"]).encode()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._report(f"the bus sent an invalid list of subscriptions: {error}")

    def _on_event(self, message: Message) -> None:
        """Begin or end a worker."""
        try:
            event = presence_item(message)
        except ProtocolError as error:
            self._report(str(error))
            return
        if not isinstance(event, PresenceEvent) or event.pattern is None:
            return
        pattern = bytes_of(event.pattern)
        if event.change is Change.SUBSCRIBE:
            self._begin(event.peer, pattern)
        elif (worker := self._worker(event.peer.connection, _queue_of(pattern))) is not None:
            self._leave(worker)

    def _begin(self, peer: Peer, pattern: bytes) -> None:
        """Begin a worker, if *pattern* makes its subscriber one."""
        queue = _queue_of(pattern)
        if not queue or self._bus is None:
            return
        workers = self._by_connection.setdefault(peer.connection, {})
        if queue not in workers:
            workers[queue] = SubscribedWorker(self._context, self._jobs, self._bus, peer, queue)
        worker = workers[queue]
        if worker.task is None:
            worker.task = asyncio.ensure_future(self._run(worker))

    async def _run(self, worker: SubscribedWorker) -> None:
        """Give a worker jobs."""
        try:
            await worker.run()
        except UnsubscribedError:
            worker.task = None
            self._remove_idle(worker)
        except (EngineError, CallError) as error:
            worker.task = None
            self._remove_idle(worker)
            self._context.counts["workers_refused"] += 1
            self._send_error(worker.peer, worker.queue, error)
            self._report(f"a subscriber gets no jobs: user {worker.peer.uid}: {code_and_words(error)[1]}")
        except (SbusError, OSError):
            pass  # the connection has ended, which its other users report

    def _leave(self, worker: SubscribedWorker) -> None:
        """Give a worker no further jobs. It can still end those that it has."""
        if worker.task is not None:
            worker.task.cancel()
            worker.task = None
        self._remove_idle(worker)

    def _remove_idle(self, worker: SubscribedWorker) -> None:
        """Forget a worker that is not subscribed and has no jobs."""
        connection = worker.peer.connection
        if worker.task is None and not worker.leases and self._worker(connection, worker.queue) is worker:
            del self._by_connection[connection][worker.queue]
            if not self._by_connection[connection]:
                del self._by_connection[connection]

    def _gone(self, connection: int) -> None:
        """Forget the workers of a connection that has ended."""
        for worker in self._by_connection.pop(connection, {}).values():
            if worker.task is not None:
                worker.task.cancel()

    def _worker(self, connection: int, queue: str) -> SubscribedWorker | None:
        """Return a worker, or None."""
        return self._by_connection.get(connection, {}).get(queue)

    # Jobs

    def _settled(self, connection: int, leases: Sequence[int]) -> None:
        """Note that *leases* of *connection* are over, by a call or after their time."""
        for worker in list(self._by_connection.get(connection, {}).values()):
            worker.release(leases)
            self._remove_idle(worker)

    def _settle(self, message: Message) -> None:
        """Perform what a worker says of its job."""
        sender = message.sender
        if sender is None:
            return
        try:
            settlement = parse_settlement(message.key_bytes, message.payload)
        except SettlementError as error:
            self._context.counts["malformed"] += 1
            self._send_error(sender, error.queue, error)
            return
        worker = self._worker(sender.connection, settlement.queue)
        if worker is None or settlement.lease not in worker.leases:
            self._context.counts["stale"] += 1
            self._send_error(sender, settlement.queue, CallError("ESTALE", f"lease {settlement.lease}: {STALE}"))
            return
        try:
            self._submit(worker, settlement)
        except CallError as error:
            self._send_error(sender, settlement.queue, error)

    def _submit(self, worker: SubscribedWorker, settlement: Settlement) -> None:
        """Submit what ends or extends a lease. Raises CallError."""
        context, lease = self._context, settlement.lease

        def done(performed: QueuedOperation[Engine]) -> None:
            if performed.error is not None:
                worker.leases.add(lease)
                self._send_error(worker.peer, worker.queue, performed.error)
                return
            self._jobs.count(settlement.counter, worker.queue, performed.result)
            if not all(performed.result):
                self._send_error(worker.peer, worker.queue, CallError("ESTALE", f"lease {lease}: {STALE}"))
            self._remove_idle(worker)

        context.operations.submit(worker.peer.uid, lambda engine: settlement.perform(engine, worker.worker), done)
        if settlement.is_end:
            # Now and not after the commit: so the next job is taken in the same transaction.
            worker.release([lease])

    def _send_error(self, peer: Peer, queue: str, error: object) -> None:
        """Send an error to a worker, under a key that no job has."""
        if self._bus is None or not queue:
            return
        code, words = code_and_words(error)
        packet = publish_packet(b"%b%b/0/error" % (KEY_HEAD, queue.encode()), f"{code} {printable(words, 512)}".encode())
        if not self._bus.send(direct_packet(peer.connection, packet)):
            self._context.counts["worker_errors_unsent"] += 1


def _queue_of(pattern: bytes) -> str:
    """Return the queue whose worker a subscriber to *pattern* is, or no words: a wildcard makes no worker, for that may only watch."""
    name, slash, rest = pattern.removeprefix(KEY_HEAD).partition(b"/")
    if not pattern.startswith(KEY_HEAD) or not slash or rest or b"*" in name:
        return ""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return ""
