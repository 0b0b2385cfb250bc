"""The server of the metrics: a loop that cannot accept connections says so in the log, and not by tracebacks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import cast

import pytest

from sbusd.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbusd.metrics import connections, listener
from sbusd.metrics.collector import Collector
from sbusd.metrics.connections import Admission
from sbusd.metrics.listener import without_descriptors
from sbusd.metrics.log_messages import DENIED, PAUSED
from sbusd.metrics.server import MetricsServer
from sbusd.systemd.log_records import LimitedLog, Record

USER, FIRST = 1_000, 100_000

CHARGED = ChargedUsers(SubordinateIds([SubordinateRange(FIRST, 65_536, USER)]))


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
    monkeypatch.setattr(listener, "MAX_CLOSES", 0)
    path = str(folder / "metrics.socket")

    async def main() -> list[Record]:
        sink = Sink()
        server = MetricsServer(cast(Collector, None), Admission((), CHARGED), LimitedLog("sbus-metrics", sink))
        await server.listen([without_descriptors(socket.create_server(path, family=socket.AF_UNIX), CHARGED)])
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(path)
            await sink.is_written.wait()
        await server.close()
        return sink.records

    (record,) = asyncio.run(asyncio.wait_for(main(), 60))
    assert (record.message, record.facts["reason"]) == (PAUSED, "paused accepting connections: too many sockets wait to be closed")
    assert caplog.records == [], "asyncio logs a traceback"


def test_all_ids_of_a_user_have_the_log_records_of_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(folder / "metrics.socket")
    users = iter([*range(FIRST, FIRST + 5), 2_000])
    monkeypatch.setattr(connections, "user_of", lambda _connection: next(users))

    async def scrape() -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        response = await reader.read()
        writer.close()
        return response

    async def main() -> list[Record]:
        sink = Sink()
        server = MetricsServer(cast(Collector, None), Admission((), CHARGED), LimitedLog("sbus-metrics", sink))
        await server.listen([socket.create_server(path, family=socket.AF_UNIX)])
        for _ in range(6):
            assert b" 403 " in await scrape()
        await server.close()
        return sink.records

    records = asyncio.run(asyncio.wait_for(main(), 60))
    assert [(each.message, each.facts["user"]) for each in records] == [(DENIED, str(FIRST)), (DENIED, "2000")]
