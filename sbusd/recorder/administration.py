"""Serves ``recorder/close`` on the bus that is recorded. Spec: sbus-recorder(8), "ON THE BUS"."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable

from sbusd.client import Bus, Request, SbusError
from sbusd.client.errors import RemoteRefusal, ServiceError
from sbusd.client.reconnection import ReconnectAttempts
from sbusd.client.rpc.caller_access import Allow
from sbusd.recorder.segment_closing import Closing, ClosingError

COMMAND = "recorder/close"

CLOSING_SECONDS = 60.0
"""Maximum time until a segment is in the archive."""


class Administration:
    """The second connection of the recorder, in a thread of its own. Only root and the recorder's user may call."""

    def __init__(self, address: str, archive: str, close: Callable[[], Closing], report: Callable[[str], None]) -> None:
        """Serve on the bus at *address*; *close* asks for a segment, *report* gets a line if the bus refuses it."""
        self._address = address
        self._archive = archive
        self._close = close
        self._report = report
        self._is_stopping = threading.Event()
        self._bus: Bus | None = None
        self._thread = threading.Thread(target=self._run, name="administration", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the connection. Does not wait for it: a bus that does not respond must not delay the exit."""
        self._is_stopping.set()
        if (bus := self._bus) is not None:
            with contextlib.suppress(SbusError, OSError):
                bus.close()

    def _run(self) -> None:
        """Serve, and connect again whenever the connection ends, until stopped."""
        backoff, reported = ReconnectAttempts(time.monotonic()), ""
        while not self._is_stopping.wait(max(0.0, backoff.due - time.monotonic())):
            backoff.attempt(time.monotonic())
            try:
                with Bus.connect(self._address, name="sbus-recorder calls") as bus:
                    self._bus = bus
                    bus.service(COMMAND, allow=Allow(users=tuple({0, os.geteuid()})))(self._on_close)
                    backoff.connected(time.monotonic())
                    bus.serve()
            except RemoteRefusal as refusal:
                if refusal.said != reported:
                    reported = refusal.said
                    self._report(reported)
            except (SbusError, OSError):
                pass  # a bus that is away is reported by the tap
            finally:
                self._bus = None
            backoff.lost(time.monotonic())

    def _on_close(self, request: Request) -> bytes:
        """Close the current segment, and return the archive and the number of rows as JSON."""
        seconds = CLOSING_SECONDS
        if request.expires_at is not None:
            seconds = min(seconds, max(0.0, request.expires_at - time.time()))
        try:
            rows = self._close().wait(seconds)
        except ClosingError as error:
            raise ServiceError(str(error)) from None
        return json.dumps({"archive": self._archive, "rows": rows}).encode()
