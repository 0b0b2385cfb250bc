"""The server of the metrics: a loop that cannot accept connections says so in the log, and not by tracebacks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import socket
import threading
from pathlib import Path
from typing import cast

import pytest

from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_programs.socket_owner import OVERFLOW_UID
from sbus_programs.systemd.log_records import LimitedLog, Record
from sbus_services.metrics import listener, server
from sbus_services.metrics import server as admission_module
from sbus_services.metrics.collector import Collector
from sbus_services.metrics.listener import without_descriptors
from sbus_services.metrics.log_messages import DENIED, PAUSED
from sbus_services.metrics.server import MAX_CONNECTIONS, MAX_OTHERS, MAX_PER_USER, Admission, MetricsServer, user_of

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
    monkeypatch.setattr(server, "user_of", lambda _connection: next(users))

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


SCRAPER, OTHER = 1_000, 1_001

CONNECTIONS_CHARGED = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 65_536, OTHER)]))


def test_root_this_user_and_those_of_the_configuration_may_scrape() -> None:
    admission = Admission(["daemon", "7", "no-such-user"], CONNECTIONS_CHARGED)
    asyncio.run(admission.look_up())
    assert all(map(admission.may_scrape, (0, os.geteuid(), pwd.getpwnam("daemon").pw_uid, 7)))
    assert not any(map(admission.may_scrape, (OTHER, OVERFLOW_UID, None)))


def test_nobody_of_another_namespace_may_scrape_whatever_the_configuration_says() -> None:
    assert not Admission([str(OVERFLOW_UID)], CONNECTIONS_CHARGED).may_scrape(OVERFLOW_UID)


def test_a_user_that_is_added_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "_NAMES_SECONDS", 0.01)
    admission = Admission(["prometheus-of-a-test"], CONNECTIONS_CHARGED)
    asyncio.run(admission.look_up())
    assert not admission.may_scrape(SCRAPER)
    made = pwd.struct_passwd(("prometheus-of-a-test", "x", SCRAPER, 1, "", "/", "/"))
    monkeypatch.setattr(pwd, "getpwnam", lambda _: made)

    async def found() -> None:
        looking_up = asyncio.ensure_future(admission.run())
        while not admission.may_scrape(SCRAPER):
            await asyncio.sleep(0.01)
        looking_up.cancel()

    asyncio.run(asyncio.wait_for(found(), 60))


def test_a_directory_service_that_does_not_respond_delays_no_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Event(), threading.Event()

    def getpwnam(_name: str) -> pwd.struct_passwd:
        assert threading.current_thread() is not threading.main_thread()
        asked.set()
        assert answered.wait(60)
        return pwd.struct_passwd(("slow", "x", SCRAPER, 1, "", "/", "/"))

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    admission = Admission(["slow", "7"], CONNECTIONS_CHARGED)

    async def main() -> None:
        look_up = asyncio.ensure_future(admission.look_up())
        await asyncio.sleep(0)
        assert await asyncio.to_thread(asked.wait, 60)
        assert admission.may_scrape(0)
        assert admission.may_scrape(7)
        assert not admission.may_scrape(SCRAPER)
        answered.set()
        await look_up
        assert admission.may_scrape(SCRAPER)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_limits() -> None:
    admission = Admission([str(SCRAPER)], CONNECTIONS_CHARGED)
    assert admission.enter(OTHER, may_scrape=False)
    assert not admission.enter(OTHER, may_scrape=False), "one connection of a user that may not scrape"
    others = [uid for uid in range(2_000, 2_100) if admission.enter(uid, may_scrape=False)]
    assert len(others) == MAX_OTHERS - 1
    for scraper in (SCRAPER, 0):
        assert sum(admission.enter(scraper, may_scrape=True) for _ in range(100)) == MAX_PER_USER
    assert MAX_PER_USER * 2 == MAX_CONNECTIONS
    assert not admission.enter(7, may_scrape=True)
    admission.leave(OTHER, may_scrape=False)
    admission.leave(SCRAPER, may_scrape=True)
    assert admission.enter(OTHER, may_scrape=False)
    assert admission.enter(7, may_scrape=True)


def test_all_ids_of_a_user_have_the_connections_of_one() -> None:
    admission = Admission([str(SCRAPER)], CONNECTIONS_CHARGED)
    entered = [uid for uid in range(100_000, 100_100) if admission.enter(admission.charged_for(uid), may_scrape=False)]
    assert entered == [100_000]
    assert not admission.enter(admission.charged_for(OTHER), may_scrape=False)
    assert admission.enter(admission.charged_for(2_000), may_scrape=False), "another user is not displaced"
    assert admission.enter(admission.charged_for(None), may_scrape=False)
    admission.leave(OTHER, may_scrape=False)
    assert admission.enter(admission.charged_for(100_001), may_scrape=False)


def test_the_right_is_that_of_the_id_itself() -> None:
    admission = Admission([str(OTHER)], CONNECTIONS_CHARGED)
    assert admission.may_scrape(OTHER)
    assert not admission.may_scrape(100_000)


def test_the_kernel_reports_the_user_of_a_connection() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert user_of(ours) == os.geteuid()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        served, _ = server.accept()
        with served:
            assert user_of(served) == os.geteuid()
    with socket.socket(socket.AF_INET) as closed:
        assert user_of(closed) is None
