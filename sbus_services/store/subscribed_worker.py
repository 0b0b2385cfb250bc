"""One plain client that works on jobs by ``queue/<queue>/``, and what it says of a job. Spec: sbus-store(8), "SUBSCRIBED WORKERS"."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from sbus.errors import PayloadTooLarge, RemoteRefusal
from sbus.protocol.credentials import Peer
from sbus.protocol.direct_messages import direct_packet
from sbus.protocol.errors import ProtocolError
from sbus.protocol.framed_data import MAX_DELAY_SECONDS, MIN_LEASE_SECONDS
from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.printable import printable
from sbus_services.store.bus_connections import ServingBus, passed_on
from sbus_services.store.calls.job_calls import MAX_REASON_BYTES, JobCalls
from sbus_services.store.calls.read_calls import MAX_WAIT_SECONDS
from sbus_services.store.calls.responses import CallError
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, LeasedJob, Worker
from sbus_services.store.workers import Holder

SETTLEMENT_HEAD = b"store/job/"
"""The prefix of the keys of these messages."""

COUNTERS = {"ack": "acked", "retry": "retried", "fail": "failed", "extend": "extended"}
"""The verbs, and their counters."""

_FORM = "store/job/<queue>/<lease>/<verb>"
_MAX_LEASE_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Settlement:
    """What happens to the job of a lease. ``after_ms`` is the time of a retry or an extension; None: that of the queue."""

    queue: str
    lease: int
    verb: str
    after_ms: int | None = None
    reason: str = ""

    @property
    def counter(self) -> str:
        """The counter of the verb."""
        return COUNTERS[self.verb]

    @property
    def is_end(self) -> bool:
        """Whether it ends the lease."""
        return self.verb != "extend"

    def perform(self, engine: Engine, worker: Worker) -> Sequence[bool]:
        """Perform it, and return whether *worker* had the lease. Raises StoreError."""
        leases = [self.lease]
        if self.verb == "ack":
            return engine.ack(self.queue, leases, worker)
        if self.verb == "retry":
            return engine.retry(self.queue, leases, worker, self.after_ms)
        if self.verb == "fail":
            return engine.fail(self.queue, leases, worker, self.reason)
        return engine.extend(self.queue, leases, worker, self.after_ms)


class SettlementError(CallError):
    """A message of a worker that is not understood; *queue* is the queue that it names, or empty."""

    def __init__(self, queue: str, words: str) -> None:
        super().__init__("EINVAL", words)
        self.queue = queue


def parse_settlement(key: bytes, payload: bytes) -> Settlement:
    """Return what the message with *key* and *payload* says. White space around the payload is ignored. Raises SettlementError."""
    parts = key.removeprefix(SETTLEMENT_HEAD).decode("utf-8", "replace").split("/")
    if len(parts) != 3:
        raise SettlementError(parts[0], f"invalid key {printable(key, 128)}: must be {_FORM}")
    queue, digits, verb = parts
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_LEASE_DIGITS):
        raise SettlementError(queue, f"invalid lease {printable(digits, 32)!r}: must be the number in the key of the job")
    if verb not in COUNTERS:
        raise SettlementError(queue, f"unknown verb {printable(verb, 32)!r}; valid are: {', '.join(COUNTERS)}")
    text = payload.strip()
    if verb == "fail":
        return Settlement(queue, int(digits), verb, reason=text[:MAX_REASON_BYTES].decode("utf-8", "replace"))
    if verb == "ack" or not text:
        return Settlement(queue, int(digits), verb)
    return Settlement(queue, int(digits), verb, _milliseconds(queue, verb, text))


def _milliseconds(queue: str, verb: str, text: bytes) -> int:
    """Return the seconds in *text* as milliseconds. Raises SettlementError."""
    low = MIN_LEASE_SECONDS if verb == "extend" else 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not low <= seconds <= MAX_DELAY_SECONDS:
        valid = f"must be empty or a number of seconds from {low:g} to {MAX_DELAY_SECONDS:g}"
        raise SettlementError(queue, f"invalid payload of {verb}: {printable(text, 32)!r}: {valid}")
    return round(seconds * 1000)


KEY_HEAD = b"queue/"
"""The prefix of the keys of jobs for subscribed workers: ``queue/<queue>/<lease>/<key>``."""

LEASES_SECONDS = 1.0
"""Interval of trying again while the user has the maximum number of jobs."""

UNDELIVERABLE = "its key or payload is too long for a subscribed worker"
"""The reason of a try that fails because the job does not fit into a packet."""


class UnsubscribedError(Exception):
    """A job had no recipient: the worker has unsubscribed or disconnected, and perhaps the event of that was lost."""


class SubscribedWorker:
    """A worker of one queue. It gets jobs on *bus* while it is subscribed, and has at most as many as the queue allows."""

    def __init__(self, context: StoreContext, jobs: JobCalls, bus: ServingBus, peer: Peer, queue: str) -> None:
        self._context = context
        self._jobs = jobs
        self._bus = bus
        self._free = asyncio.Event()
        self._deliveries: set[asyncio.Future[None]] = set()
        self.peer = peer
        self.queue = queue
        self.leases: set[int] = set()
        """The leases of its jobs. Those that the store does not know to be over, for it ends them itself."""
        self.task: asyncio.Task[None] | None = None
        """Gives it jobs; None if it is not subscribed."""

    @property
    def worker(self) -> Worker:
        """The worker as the engine knows it."""
        return Worker(self.peer.connection, self.peer.uid)

    def release(self, leases: Sequence[int]) -> None:
        """Note that *leases* are over."""
        self.leases.difference_update(leases)
        self._free.set()

    async def run(self) -> None:
        """Give it jobs until cancelled. Raises UnsubscribedError, CallError, EngineError, SbusError, OSError."""
        context, name = self._context, self.queue
        context.routes.queue(name)
        holder = await context.workers.admit(self.peer.connection)
        self.leases |= await context.operations.run(self.peer.uid, lambda engine: engine.leases_of(name, self.worker))
        with context.waiting.held(self.peer.uid):
            while True:
                await self._work(holder)

    async def _work(self, holder: Holder) -> None:
        """Wait until it may have a job, and deliver the next ones, if there are some in time."""
        settings = self._context.routes.queue(self.queue)
        room = settings.jobs_per_subscriber - len(self.leases)
        if not settings.jobs_per_subscriber:
            raise CallError("EACCES", f"queue {self.queue!r} has no subscribed workers: its jobs_per_subscriber is 0; use store/take")
        # Before each job: a rule that changes has an effect on those that are subscribed, too.
        await self._jobs.check_worker(self.peer, settings)
        if room <= 0:
            self._free.clear()
            await self._free.wait()
            return
        try:
            jobs = await self._jobs.taken(self.queue, self.peer.uid, holder, most=room, lease_ms=None, wait=MAX_WAIT_SECONDS)
        except EngineError as error:
            if error.code != "EDQUOT":
                raise
            await asyncio.sleep(LEASES_SECONDS)
            return
        self.leases.update(job.lease for job in jobs)
        for position, job in enumerate(jobs):
            # A delivery is finished even if the worker unsubscribes meanwhile: only then it is known whether it has got the job.
            delivery = asyncio.ensure_future(self._deliver(job))
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._delivered)
            try:
                await asyncio.shield(delivery)
            except BaseException:
                self._give_back(jobs[position + 1 :])
                raise

    def _delivered(self, delivery: asyncio.Future[None]) -> None:
        """Forget a delivery. The worker's task gets its error, if there still is one."""
        self._deliveries.discard(delivery)
        if not delivery.cancelled():
            delivery.exception()

    async def _deliver(self, job: LeasedJob) -> None:
        """Send a job. Without a recipient it is ready again. Raises UnsubscribedError, CallError, SbusError, OSError."""
        packet = self._packet(job)
        if not packet:
            self._fail(job, UNDELIVERABLE)
            return
        try:
            recipients = await self._bus.send_counted(packet)
        except RemoteRefusal as refusal:
            self._fail(job, f"the bus refused it: {refusal.said}")
            raise CallError("EACCES", f"the bus does not let the store send jobs to subscribers: {refusal.said}") from None
        if recipients:
            self._context.counts["jobs_delivered"] += 1
        else:
            self._give_back([job])
            raise UnsubscribedError

    def _packet(self, job: LeasedJob) -> bytes:
        """Return the packet with a job; empty if it would be too long."""
        stored = job.stored
        key = b"%b%b/%d/%b" % (KEY_HEAD, self.queue.encode(), job.lease, stored.key)
        packet = passed_on(stored.sender, key, stored.payload) if len(key) <= MAX_KEY_BYTES else b""
        try:
            return packet and direct_packet(self.peer.connection, packet)
        except (PayloadTooLarge, ProtocolError):
            return b""

    def _give_back(self, jobs: Sequence[LeasedJob]) -> None:
        """Make jobs ready again that it has not got."""
        if jobs:
            self._context.give_back(self.queue, self.worker, jobs)
            self._context.on_settled(self.peer.connection, [job.lease for job in jobs])

    def _fail(self, job: LeasedJob, reason: str) -> None:
        """End a try: the job is tried again after the backoff of the queue, perhaps by a worker that uses ``store/take``."""
        context = self._context
        context.counts["jobs_undeliverable"] += 1
        self.release([job.lease])
        context.operations.submit_now(
            lambda engine: engine.retry(self.queue, [job.lease], self.worker, None, reason), lambda _: context.schedule_sweep(0)
        )
