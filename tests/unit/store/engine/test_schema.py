"""Files of older formats: all that is in them survives the conversion, also if that is killed at any point, or the disk is full."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from sbusd.config.store import QueueSettings, StoreSettings, StreamSettings
from sbusd.store.engine import database
from sbusd.store.engine.engine import Engine
from sbusd.store.engine.messages import NO_UID, Gap, JobState, NewMessage, Put, Sender, Stored, StoreError, Worker
from sbusd.store.engine.schema import VERSION
from tests.support.store_clocks import OneClock
from tools.stage import ROOT

NOW = 1_700_000_000_000
SETTINGS = StoreSettings(
    streams=(StreamSettings("log", ("log/",)), StreamSettings("state", ("state/",), last=1), StreamSettings("mail", ("mail/",))),
    queues=(QueueSettings("mail", "mail", in_order="key", tries=2),),
)
ALICE, BOB, HOST = Sender(1000, 1000, 7), Sender(1001, 1001, 8), Sender(NO_UID, 1002, 9, "far/!/cred/1/2/3")
WORKER = Worker(5, 1000)
LEASE = 4
LOG = [
    Stored(1, NOW, b"log/a", b"1", ALICE),
    Stored(2, NOW, b"log/b", b"2", BOB, NOW + 10_000_000),
    Gap(3, NOW, b"log/", 3, "lost by the bus"),
    Stored(4, NOW, b"log/a", bytes(range(256)), HOST),
]
JOBS: dict[JobState, list[tuple[bytes, int, int, str]]] = {
    "dead": [(b"announced dead", 1, NOW, "first"), (b"new dead", 1, NOW, "second")],
    "delayed": [(b"retrying", 1, NOW + 3_600_000, "later"), (b"delayed", 0, NOW + 3_600_000, "")],
    "leased": [(b"leased", 1, NOW + 3_600_000, "")],
    "ready": [(b"blocked", 0, 0, ""), (b"ready", 0, 0, "")],
}
DATED = (b"dated", 0, NOW + 7_200_000, "")

MORE_STEPS = 1.2
"""The conversion is killed after a number of steps of SQLite, each time this factor later."""


def written(path: Path, version: int) -> Path:
    """Write a file of an older *version* to *path*."""
    connection = sqlite3.connect(path)
    connection.executescript((ROOT / f"tests/support/store_formats/{version}.sql").read_text())
    connection.close()
    return path


def opened(path: Path) -> Engine:
    """Open the file *path*."""
    return Engine(path, SETTINGS, OneClock(lambda: NOW), 0)


def tables(path: Path) -> set[tuple[str, ...]]:
    """Return each column of each table, and each index, of the file *path*."""
    connection = sqlite3.connect(path)
    try:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = {(name, str(row[1:])) for name in names for row in connection.execute(f"SELECT * FROM pragma_table_info('{name}')")}
        return columns | set(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"))
    finally:
        connection.close()


def check(path: Path, version: int) -> None:
    """Open the file *path*, and check that it has all that a file of *version* had."""
    engine = opened(path)
    try:
        assert engine.database.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert engine.read("log", 0, 10, 1 << 20).items == LOG
        assert [(each.key, each.payload) for each in engine.last("state").items] == [(b"state/a", b"new"), (b"state/b", b"b")]
        assert engine.readers("log") == [(1000, "alice", 3), (1001, "bob", 2)]
        for state, expected in JOBS.items():
            found = [(each.stored.payload, each.tries, each.at_ms, each.reason) for each in engine.jobs("mail", state)]
            assert found == expected + ([DATED] if version == 2 and state == "delayed" else [])
        assert [each.payload for each in engine.sweep().dead] == [b"new dead"]
        assert engine.put("log", NewMessage(b"log/a", b"1", ALICE, b"id-1")) == Put(1, is_duplicate=True)
        assert engine.put("log", NewMessage(b"log/a", b"5", ALICE)) == Put(5)
        assert engine.ack("mail", [LEASE], WORKER) == [True]
        assert [each.stored.payload for each in engine.take("mail", WORKER, 9, 1_000).jobs] == [b"blocked", b"ready"]
        statistics = engine.statistics()
        assert [(each.name, each.messages) for each in statistics.streams] == [("left", 1), ("log", 4), ("mail", 5 + version), ("state", 2)]
        assert (statistics.to_publish, statistics.unpublished) == (0, 0)
    finally:
        engine.close()


def in_process(function: Callable[[], object]) -> int:
    """Run *function* in a process, and return its exit code, or minus the signal."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def convert_for(steps: int, path: Path) -> None:
    """Open the file, and be killed after that many steps of SQLite."""
    connect = database._connect

    def connected(name: Path) -> sqlite3.Connection:
        connection = connect(name)
        left = iter(range(steps))
        connection.set_progress_handler(lambda: 0 if next(left, None) is not None else os.kill(os.getpid(), signal.SIGKILL), 1)
        return connection

    with mock.patch.object(database, "_connect", connected):
        database.Database(path).close()


@pytest.mark.parametrize("version", [1, 2])
def test_all_survives_the_conversion(tmp_path: Path, version: int) -> None:
    path = written(tmp_path / "store.sqlite", version)
    check(path, version)
    opened(tmp_path / "new.sqlite").close()
    assert tables(path) == tables(tmp_path / "new.sqlite")


@pytest.mark.parametrize("version", [1, 2])
def test_all_survives_a_kill_during_the_conversion(tmp_path: Path, version: int) -> None:
    old = written(tmp_path / "old.sqlite", version)
    steps, kills = 1.0, 0
    while True:
        folder = tmp_path / f"{steps}"
        folder.mkdir()
        path = Path(shutil.copy(old, folder / "store.sqlite"))
        code = in_process(partial(convert_for, round(steps), path))
        check(path, version)
        if not code:
            break
        assert code == -signal.SIGKILL
        steps, kills = steps * MORE_STEPS + 1, kills + 1
    assert kills > 10


@pytest.mark.parametrize("version", [1, 2])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, version: int) -> None:
    path = written(tmp_path / "store.sqlite", version)
    before = tables(path)
    connect = database._connect

    def connected(name: Path) -> sqlite3.Connection:
        connection = connect(name)
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        return connection

    with mock.patch.object(database, "_connect", connected), pytest.raises(StoreError, match=r"^ENOSPC"):
        opened(path)
    assert tables(path) == before
    check(path, version)


def test_each_older_format_has_a_file() -> None:
    found = {int(each.stem) for each in (ROOT / "tests/support/store_formats").iterdir()}
    assert found == set(range(1, VERSION)), "add a file of the format that was released last: see its comment"
