"""What a subscribed worker says of a job: a message ``store/job/<queue>/<lease>/<verb>``. Spec: sbus-store(8), "SUBSCRIBED WORKERS"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sbusd.protocol.framed_data import MAX_DELAY_SECONDS, MIN_LEASE_SECONDS
from sbusd.protocol.printable import printable
from sbusd.store.calls.call_errors import CallError
from sbusd.store.calls.job_calls import MAX_REASON_BYTES
from sbusd.store.engine.engine import Engine
from sbusd.store.engine.messages import Worker

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
