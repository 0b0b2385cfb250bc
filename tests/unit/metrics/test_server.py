"""The server of the metrics: a loop that cannot accept connections says so in the log, and not by tracebacks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import cast

import pytest

from sbusd.metrics import checked_sockets
from sbusd.metrics.admission import Admission
from sbusd.metrics.checked_sockets import without_descriptors
from sbusd.metrics.collector import Collector
from sbusd.metrics.log_messages import CROWDED
from sbusd.metrics.server import MetricsServer
from sbusd.systemd.limited_log import LimitedLog
from sbusd.systemd.log_records import Record


class Sink:
    """Keeps the records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_written = asyncio.Event()

    def write(self, record: Record) -> None:
        """Keep *record*."""
        self.records.append(record)
        self.is_written.set()

    def close(self) -> None:
        """Do nothing."""


def test_connections_that_wait_for_closes_are_a_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checked_sockets, "MAX_CLOSES", 0)
    path = str(folder / "metrics.socket")

    async def main() -> list[Record]:
        sink = Sink()
        server = MetricsServer(cast(Collector, None), Admission(()), LimitedLog("sbus-metrics", sink))
        await server.listen([without_descriptors(socket.create_server(path, family=socket.AF_UNIX))])
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(path)
            await sink.is_written.wait()
        await server.close()
        return sink.records

    (record,) = asyncio.run(asyncio.wait_for(main(), 60))
    assert (record.message, record.facts["reason"]) == (CROWDED, "paused accepting connections: too many sockets wait to be closed")
    assert caplog.records == [], "asyncio logs a traceback"
