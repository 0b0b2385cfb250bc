"""JetStream by nats-py: streams in files, a pull consumer for workers, and a stream with one message of each subject for last values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import nats
import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType, StreamConfig

from tests.bench.store.clients.contract import JOBS, LOG, STATE, TIMER_SECONDS

WORKERS = "workers"

PAGE = 500


class JetStream:
    """See ``contract.Client``."""

    async def connect(self, address: str) -> None:
        """Connect."""
        self._server: Any = await nats.connect(f"nats://127.0.0.1:{address}", allow_reconnect=False, error_cb=_ignored)
        self._stream: Any = self._server.jetstream(timeout=60, publish_async_max_pending=100_000)
        self._jobs: Any = None

    async def prepare(self) -> None:
        """Create the streams and the consumer of the workers."""
        for stream, retention, by_subject in (
            (LOG, RetentionPolicy.LIMITS, -1),
            (JOBS, RetentionPolicy.WORK_QUEUE, -1),
            (STATE, RetentionPolicy.LIMITS, 1),
        ):
            settings = StreamConfig(
                name=stream, subjects=[f"{stream}.>"], retention=retention, max_msgs_per_subject=by_subject, storage=StorageType.FILE
            )
            await self._stream.add_stream(settings)
        consumer = ConsumerConfig(
            durable_name=WORKERS, ack_policy=AckPolicy.EXPLICIT, ack_wait=TIMER_SECONDS, max_ack_pending=10_000, filter_subject=f"{JOBS}.>"
        )
        await self._stream.add_consumer(JOBS, consumer)

    async def close(self) -> None:
        """Close the connection."""
        await self._server.close()

    async def put(self, payload: bytes) -> None:
        """Publish one, and wait for its acknowledgement."""
        await self._stream.publish(f"{LOG}.a", payload)

    async def put_many(self, payloads: Sequence[bytes], stream: str) -> None:
        """Publish many, and then wait for all acknowledgements."""
        await asyncio.gather(*[await self._stream.publish_async(f"{stream}.a", payload) for payload in payloads])

    async def set_value(self, payload: bytes) -> None:
        """Publish it: the stream keeps the last message of the subject."""
        await self._stream.publish(f"{STATE}.a", payload)

    async def late_value(self) -> bytes:
        """Subscribe from the last message on."""
        values = await self._stream.subscribe(f"{STATE}.a", stream=STATE, ordered_consumer=True, deliver_policy=DeliverPolicy.LAST)
        payload: bytes = (await values.next_msg(timeout=60)).data
        return payload

    async def finish_jobs(self, count: int) -> int:
        """Fetch and acknowledge; the last acknowledgement is waited for."""
        jobs = await self._worker()
        found = await jobs.fetch(count, timeout=60)
        for each in found[:-1]:
            await each.ack()
        await found[-1].ack_sync(timeout=60)
        return len(found)

    async def take_job(self) -> bytes:
        """Fetch one; the server waits with the client."""
        jobs = await self._worker()
        while True:
            try:
                (found,) = await jobs.fetch(1, timeout=30)
            except (nats.errors.TimeoutError, TimeoutError):
                continue
            payload: bytes = found.data
            return payload

    async def stored(self) -> list[bytes]:
        """Read the stream to its end."""
        count = (await self._stream.stream_info(LOG)).state.messages
        reader = await self._stream.pull_subscribe(
            "", stream=LOG, config=ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
        )
        payloads: list[bytes] = []
        while len(payloads) < count:
            payloads += [each.data for each in await reader.fetch(min(PAGE, count - len(payloads)), timeout=60)]
        return payloads

    async def _worker(self) -> Any:
        """Return the subscription of this worker."""
        if self._jobs is None:
            self._jobs = await self._stream.pull_subscribe_bind(WORKERS, stream=JOBS)
        return self._jobs


async def _ignored(_error: Exception) -> None:
    """Do not log what a killed server causes: the bench counts it."""
