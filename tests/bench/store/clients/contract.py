"""What the bench does with each server: a Python client of its own implements it. A payload has its number in front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LOG = "log"
JOBS = "jobs"
STATE = "state"
"""The streams, and the first segments of their keys or subjects: messages in order, jobs of workers, and last values."""

TIMER_SECONDS = 3.0
"""The time after which a peer gives the job of a silent worker to another one. sbus-store does not wait for its lease, of 60 s."""


class Client(Protocol):
    """One connection."""

    async def connect(self, address: str) -> None:
        """Connect."""

    async def prepare(self) -> None:
        """Create the streams, once for each server."""

    async def close(self) -> None:
        """Close the connection."""

    async def put(self, payload: bytes) -> None:
        """Put a message into LOG, and return when it is on disk."""

    async def put_many(self, payloads: Sequence[bytes], stream: str) -> None:
        """Put *payloads* into *stream*, and return when all are on disk."""

    async def set_value(self, payload: bytes) -> None:
        """Store the last value of one key."""

    async def late_value(self) -> bytes:
        """Subscribe to this key, and return the first message, which is the last value. The subscription stays."""

    async def finish_jobs(self, count: int) -> int:
        """Take up to *count* jobs of those that are left, acknowledge them, and return their number."""

    async def take_job(self) -> bytes:
        """Take one job, waiting for it, and return its payload. It is not acknowledged."""

    async def stored(self) -> list[bytes]:
        """Return all payloads in LOG."""
