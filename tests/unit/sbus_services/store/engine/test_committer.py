"""Group commit: what is acknowledged is on the disk, an operation fails alone, and a full disk fails only what needs space."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from sbus_programs.config.store import StoreSettings, StreamSettings
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, NewMessage, Page, PutResult, Sender, Stored
from tests.support.future_committer import FutureCommitter
from tests.support.store_clocks import OneClock
from tools.stage import ROOT

SETTINGS = StoreSettings(streams=(StreamSettings("log", ("log/",)),))
ALICE = Sender(1000, 1000, 7)

PUTTER = """
import sys
from pathlib import Path
from sbus_services.store.engine.engine import Engine
from tests.support.future_committer import FutureCommitter
from tests.support.store_clocks import OneClock
from tests.unit.sbus_services.store.engine.test_committer import SETTINGS, put
committer = FutureCommitter(Engine(Path(sys.argv[1]), SETTINGS, OneClock(lambda: 1), 0))
number = 0
while True:
    futures = [committer.begin(put(b"%d" % each)) for each in range(number, number + 20)]
    for future in futures:
        print(future.result().seq, flush=True)
    number += 20
"""


class put:  # noqa: N801 - used as a function
    """The operation that puts one message."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __call__(self, engine: Engine) -> PutResult:
        return engine.put("log", NewMessage(b"log/a", self.payload, ALICE))


def read(engine: Engine) -> Page:
    """Return the whole stream."""
    return engine.read("log", 0, 1_000_000, 1 << 30)


def opened(folder: Path) -> Engine:
    """Return an engine without a reserve of free space."""
    return Engine(folder / "store.sqlite", SETTINGS, OneClock(lambda: 1), 0)


def stored(folder: Path) -> list[tuple[int, bytes]]:
    """Return numbers and payloads in the file of *folder*, which must be undamaged."""
    engine = opened(folder)
    assert engine.database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    found, from_seq = [], 0
    while True:
        page = engine.read("log", from_seq, 1_000_000, 1 << 30)
        found += [(each.seq, each.payload) for each in page.items if isinstance(each, Stored)]
        from_seq = page.next_seq
        if from_seq > page.last_seq:
            break
    assert engine.statistics().streams[0].messages == len(found)
    engine.close()
    return found


def test_results_and_errors_belong_to_their_operations(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    committer = FutureCommitter(engine)

    def fails(engine: Engine) -> None:
        engine.put("log", NewMessage(b"log/a", b"undone", ALICE))
        raise ZeroDivisionError

    entered, go = threading.Event(), threading.Event()

    def blocks(_engine: Engine) -> None:
        entered.set()
        go.wait()

    first = committer.begin(blocks)
    entered.wait()
    futures: list[Future[PutResult]] = [committer.begin(put(b"1"))]
    failed = committer.begin(fails)
    unknown = committer.begin(lambda engine: engine.first_seq("none"))
    futures.append(committer.begin(put(b"2")))
    go.set()
    first.result()
    assert [each.result() for each in futures] == [PutResult(1), PutResult(2)]
    assert isinstance(failed.exception(), ZeroDivisionError)
    assert isinstance(unknown.exception(), EngineError)
    committer.close()
    assert isinstance(committer.begin(put(b"4")).exception(), EngineError)
    engine.close()
    assert stored(tmp_path) == [(1, b"1"), (2, b"2")]


def test_closing_finishes_what_was_submitted(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    committer = FutureCommitter(engine)
    futures = [committer.begin(put(b"")) for _ in range(1_000)]
    committer.close()
    assert [each.result().seq for each in futures] == list(range(1, 1_001))
    engine.close()


def test_a_full_disk_fails_puts_while_reads_go_on(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    ((pages,),) = engine.database.execute("PRAGMA page_count").fetchall()
    engine.database.execute(f"PRAGMA max_page_count = {pages + 20}")
    committer = FutureCommitter(engine)
    puts = [committer.begin(put(b"x" * 10_000)) for _ in range(50)]
    reads = [committer.begin(read) for _ in range(5)]
    codes = [error.code if isinstance(error := each.exception(), EngineError) else "" for each in puts]
    assert set(codes) == {"", "ENOSPC"}
    assert [len(each.result().items) for each in reads] == [codes.count("")] * 5
    committer.close()
    engine.database.execute("PRAGMA max_page_count = 100000")
    engine.put("log", NewMessage(b"log/a", b"again", ALICE))
    engine.close()
    assert len(stored(tmp_path)) == codes.count("") + 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 150, 2_000])
def test_nothing_that_was_acknowledged_is_missing_after_a_kill(tmp_path: Path, count: int) -> None:
    command = [sys.executable, "-c", PUTTER, str(tmp_path / "store.sqlite")]
    acknowledged = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            acknowledged.append(int(line))
            if len(acknowledged) == count:
                process.kill()
    assert len(acknowledged) >= count
    found = stored(tmp_path)
    assert [seq for seq, _ in found][: len(acknowledged)] == acknowledged
    assert [payload for _, payload in found] == [b"%d" % number for number in range(len(found))]


def test_a_copy_of_the_files_at_any_moment_has_what_was_acknowledged_before(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    for round_ in range(20):
        engine.put_many("log", [NewMessage(b"log/a", b"%d" % each, ALICE) for each in range(round_ + 1)])
        copy = tmp_path / f"copy{round_}"
        copy.mkdir()
        for name in ("store.sqlite", "store.sqlite-wal"):
            shutil.copy(tmp_path / name, copy / name)
        engine.begin()
        engine.put_many("log", [NewMessage(b"log/a", b"later" * 50, ALICE)] * 50)
        later = tmp_path / f"later{round_}"
        later.mkdir()
        for name in ("store.sqlite", "store.sqlite-wal"):
            shutil.copy(tmp_path / name, later / name)
        engine.rollback()
        wanted = [payload for _, payload in stored(copy)]
        assert wanted == [b"%d" % each for done in range(round_ + 1) for each in range(done + 1)]
        assert [payload for _, payload in stored(later)] == wanted
    engine.close()


def test_every_commit_is_synchronous(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    assert engine.database.execute("PRAGMA synchronous").fetchall() == [(2,)]
    assert engine.database.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    engine.close()
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    connection.close()
