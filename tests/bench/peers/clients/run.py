"""``run CLIENT publish|receive|trip ADDRESS AMOUNT``: one program over one client library. What it measured is a JSON object a line.

A publisher publishes for AMOUNT seconds, says how many, and then says to its receiver that this was all, again and again until it is
killed. A receiver counts until the end message, or until it has been idle for a while. A trip makes AMOUNT round trips.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib import import_module

PAYLOAD_BYTES = 64
END = b"end"
"""What a publisher sends behind its last message. Its length tells it from all others."""
END_SECONDS = 0.05
"""Between two of them."""
SILENCE_SECONDS = 5.0
"""A receiver that has not even received the end says what has come until then."""


class Supply:
    """The messages of a publisher: for *seconds*, with a look at the clock for every 64."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sent = 0
        self._begin_ns = self._begin_cpu_ns = 0

    def __iter__(self) -> Iterator[bytes]:
        payload = b"x" * PAYLOAD_BYTES
        self._begin_ns, self._begin_cpu_ns = time.monotonic_ns(), time.process_time_ns()
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            for _ in range(64):
                yield payload
            self._sent += 64

    def groups(self) -> Iterator[list[bytes]]:
        """Yield the same messages, 64 at a time."""
        group: list[bytes] = []
        for payload in self:
            group.append(payload)
            if len(group) == 64:
                yield group
                group = []

    def finish(self) -> None:
        """Say how many they were, and what processor time this program had for them."""
        say({"sent": self._sent, "begin_ns": self._begin_ns, "cpu_ns": time.process_time_ns() - self._begin_cpu_ns})


class Tally:
    """What a receiver counts."""

    def __init__(self) -> None:
        self._received = 0
        self._seen = -1
        self._begin_cpu_ns = 0

    def ready(self) -> None:
        """Say that the subscription is in force. From now on the program ends by itself if nothing comes."""
        say({})
        self._begin_cpu_ns = time.process_time_ns()
        signal.signal(signal.SIGALRM, self._give_up)
        signal.setitimer(signal.ITIMER_REAL, SILENCE_SECONDS, SILENCE_SECONDS)

    def take(self, payload: bytes) -> None:
        """Count a message; the end ends the program."""
        if len(payload) == PAYLOAD_BYTES:
            self._received += 1
        else:
            self._finish(time.monotonic_ns())

    def _finish(self, end_ns: int) -> None:
        """Say what was counted, and end, whatever the library's threads and loops are doing."""
        say({"received": self._received, "end_ns": end_ns, "cpu_ns": time.process_time_ns() - self._begin_cpu_ns})
        os._exit(0)

    def _give_up(self, _number: int, _frame: object) -> None:
        """End, if nothing has come since the last look; the first waits for the publisher's program to begin."""
        if self._received and self._received == self._seen:
            self._finish(time.monotonic_ns() - round(SILENCE_SECONDS * 1e9))
        self._seen = self._received


class Trips:
    """The times of *count* round trips, behind a tenth of them that is not counted."""

    def __init__(self, count: int) -> None:
        self._skipped = count // 10
        self._times: list[int] = []
        self._left = count + self._skipped

    def __iter__(self) -> Iterator[bytes]:
        """Yield what to send; it must have come back when the next is asked for."""
        payload = b"x" * PAYLOAD_BYTES
        for _ in range(self._left):
            begin = time.perf_counter_ns()
            yield payload
            self._times.append(time.perf_counter_ns() - begin)

    def finish(self) -> None:
        """Say the percentiles."""
        times = sorted(self._times[self._skipped :])
        say({"p50_ns": times[len(times) // 2], "p99_ns": times[len(times) * 99 // 100]})


def say(words: dict[str, int]) -> None:
    """Print a line."""
    print(json.dumps(words), flush=True)


def main(arguments: list[str]) -> None:
    """Run one client, ``MODULE`` or ``MODULE:VARIANT``, in one role."""
    client, role, address, amount = arguments
    module, _, variant = client.partition(":")
    functions = import_module(f"tests.bench.peers.clients.{module}")
    work: Supply | Tally | Trips = (
        Supply(float(amount)) if role == "publish" else Tally() if role == "receive" else Trips(int(float(amount)))
    )
    # A variant has the same roles, and its own way in some of them.
    function = getattr(functions, f"{role}_{variant}", None) or getattr(functions, role)
    if inspect.iscoroutinefunction(function):
        asyncio.run(function(address, work))
    else:
        function(address, work)
    if isinstance(work, Trips):
        work.finish()


if __name__ == "__main__":
    main(sys.argv[1:])
