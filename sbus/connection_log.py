"""Log records about the connections of one bus object, as ``sbus``. No I/O but that of :mod:`logging`.

A link notes what happens while it is locked, and writes the records when it is not: a handler of the program may wait, or use the same bus.
"""

from __future__ import annotations

import sys
from collections import deque

from sbus.errors import Closed, SbusError

_INFO, _WARNING = 20, 30
"""The levels of :mod:`logging`, which takes milliseconds to import: it is not imported for a program that has not done so."""

_MOST_PENDING = 64
"""Records that wait to be written; a link writes them soon."""


class ConnectionLog:
    """The records of one bus object: one for each event, and of losses the 1st, 2nd, 4th, 8th and so on. No payloads and no keys."""

    __slots__ = ("_address", "_is_connected", "_losses", "pending")

    def __init__(self) -> None:
        self.pending: deque[tuple[int, str]] = deque(maxlen=_MOST_PENDING)
        """Levels and words of records that are not written yet."""
        self._address = ""
        self._is_connected = False
        self._losses = 0

    def connected(self, address: str) -> None:
        """Note the first connection, to *address*."""
        self._address = address
        self._is_connected = True
        self._add(_INFO, f"connected to {address}")

    def disconnected(self, error: SbusError, *, is_final: bool) -> None:
        """Note the end of a connection, and its reason; not *is_final*: a new one follows. Harmless when already noted."""
        if not self._is_connected:
            return
        self._is_connected = False
        if isinstance(error, Closed):
            self._add(_INFO, f"closed the connection to {self._address}")
        elif is_final:
            self._add(_INFO, str(error))  # the next call raises it
        else:
            self._add(_WARNING, f"{error}; reconnecting")

    def reconnected(self, attempts: int, seconds: float) -> None:
        """Note a new connection, *seconds* after the end of the last one."""
        self._is_connected = True
        self._add(_INFO, f"reconnected to {self._address} after {seconds:.1f} s, at attempt {attempts}")

    def lost(self, count: int, total: int) -> None:
        """Note that the bus has discarded *count* packets for this connection, 0: an unknown number; *total* are known so far."""
        self._losses += 1
        if self._losses.bit_count() == 1:
            number = str(count or "an unknown number")
            self._add(_INFO, f"lost packets for {self._address}: {number} (so far: {total}; losses: {self._losses})")

    def write(self) -> None:
        """Write the records. Call it without a lock."""
        while self.pending:
            try:
                level, words = self.pending.popleft()
            except IndexError:  # another thread has written it
                return
            import logging  # noqa: PLC0415 - see _INFO

            logger = logging.getLogger("sbus")
            if logger.hasHandlers():  # otherwise warnings would go to standard error, and mix with what the program prints there
                logger.log(level, "%s", words)

    def _add(self, level: int, words: str) -> None:
        if "logging" in sys.modules:
            self.pending.append((level, words))
