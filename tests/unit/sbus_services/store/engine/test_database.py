"""The file of the store: damaged, of another version or program, in use, on a full disk."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sbus_programs.config.store import QueueSettings, StoreSettings, StreamSettings
from sbus_services.store.engine import database
from sbus_services.store.engine.continuity import AcknowledgedNumbers
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, Gap, NewMessage, PutResult, Sender, Stored, Worker
from tests.support.store_clocks import OneClock

SETTINGS = StoreSettings(streams=(StreamSettings("log", ("log/",)),))
ALICE = Sender(1000, 1000, 7)


def opened(path: Path, min_free_bytes: int = 0) -> Engine:
    """Return an engine with the file *path*, and a clock that stands still."""
    return Engine(path, SETTINGS, OneClock(lambda: 1_000_000), min_free_bytes)


def put(engine: Engine, size: int = 10) -> PutResult:
    """Put a message with that many bytes."""
    return engine.put("log", NewMessage(b"log/a", b"x" * size, ALICE))


def test_only_the_own_user_can_read_the_file(tmp_path: Path) -> None:
    engine = opened(tmp_path / "store.sqlite")
    put(engine)
    assert [path.stat().st_mode & 0o077 for path in tmp_path.iterdir()] == [0] * len(list(tmp_path.iterdir()))
    engine.close()


def fill(engine: Engine) -> int:
    """Put messages until the disk is full, and return their number."""
    for number in range(100):
        try:
            put(engine, 10_000)
        except EngineError as error:
            if error.code == "ENOSPC":
                return number
            raise
    raise AssertionError("the disk is not full")


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_damaged_file_is_renamed_and_the_next_start_is_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    with pytest.raises(EngineError, match=r"^EIO .*damaged") as caught:
        opened(path)
    (kept,) = tmp_path.glob("store.sqlite.damaged-*")
    assert kept.read_bytes() == content
    assert str(kept) in caught.value.reason
    engine = opened(path)
    assert put(engine) == PutResult(1)
    engine.close()


def lose(path: Path, what: str) -> None:
    """Damage the file of a store that was killed."""
    log = path.with_name(f"{path.name}-wal")
    if what == "a damaged log":
        content = bytearray(log.read_bytes())
        content[len(content) // 3 : len(content) // 3 + 12] = b"\xff" * 12
        log.write_bytes(content)
    elif what.startswith("a log cut at"):
        log.write_bytes(log.read_bytes()[: log.stat().st_size * int(what.split()[-2]) // 100])
    elif what == "a removed log":
        log.unlink()
    else:
        path.unlink()
        log.unlink()


LOSSES = ["a damaged log", "a removed log", "a removed file", *(f"a log cut at {each} %" for each in (50, 55, 70, 90))]


@pytest.mark.parametrize("what", LOSSES)
@pytest.mark.parametrize("is_swept", [True, False])
def test_numbers_do_not_go_back_and_what_is_lost_is_a_gap(tmp_path: Path, what: str, is_swept: bool) -> None:
    folder, copy = tmp_path / "store", tmp_path / "copy"
    folder.mkdir()
    engine = opened(folder / "store.sqlite")
    for _ in range(100):
        put(engine)
    engine.set_reader("log", 1000, "me", 31)
    if is_swept:
        engine.sweep()  # the numbers are synced
    numbers = [put(engine).seq for _ in range(120)]
    run = engine.run
    shutil.copytree(folder, copy)  # as after SIGKILL
    engine.close()
    lose(copy / "store.sqlite", what)
    engine = opened(copy / "store.sqlite")
    assert put(engine).seq > numbers[-1]
    for known in (0, run):
        start = engine.valid_from("log", numbers[-1] + 1, known)
        page = engine.read("log", start, 999, 1 << 20)
        reasons = [each.reason for each in page.items if isinstance(each, Gap)]
        assert reasons == ["the file of the store was damaged, removed or replaced by an older copy"]
        assert isinstance(page.items[-1], Stored)
    engine.close()
    engine = opened(copy / "store.sqlite")
    assert engine.statistics().streams[0].gaps == 1
    engine.close()


def test_a_loss_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    engine = opened(path)
    for _ in range(3):
        put(engine)
    assert not engine.sweep().lost
    engine.close()
    path.unlink()
    engine = opened(path)
    assert set(engine.sweep().lost) == {"log"}
    assert not engine.sweep().lost
    engine.close()


@pytest.mark.parametrize("what", ["a folder", "a link", "a pipe", "other bytes", "a cut record", "a damaged record"])
def test_without_the_acknowledged_numbers_the_store_works(tmp_path: Path, what: str) -> None:
    path, noted = tmp_path / "store.sqlite", tmp_path / "store.sqlite.acknowledged"
    engine = opened(path)
    put(engine)
    engine.close()
    content = noted.read_bytes()
    noted.unlink()
    if what == "a folder":
        noted.mkdir()
    elif what == "a link":
        noted.symlink_to(tmp_path / "other")
    elif what == "a pipe":
        os.mkfifo(noted)
    else:
        found = {"other bytes": b"\xff" * 1_000, "a cut record": content[:-1], "a damaged record": content[:5] + b"\xff" + content[6:]}
        noted.write_bytes(found[what])
    engine = opened(path)
    assert put(engine) == PutResult(2)
    assert not engine.statistics().streams[0].gaps
    engine.close()
    assert not (tmp_path / "other").exists()


def test_numbers_that_a_full_disk_refused_are_noted_with_the_next_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.sqlite"
    engine = opened(path)
    refused: list[int] = []

    def full(descriptor: int, data: bytes, offset: int) -> int:
        refused.append(offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert put(engine) == PutResult(1)
    assert refused
    assert put(engine) == PutResult(2)
    assert AcknowledgedNumbers(path.with_name("store.sqlite.acknowledged")).read() == {"log": 2}
    engine.close()


def test_a_kill_is_no_loss(tmp_path: Path) -> None:
    folder, copy = tmp_path / "store", tmp_path / "copy"
    folder.mkdir()
    engine = opened(folder / "store.sqlite")
    run = engine.run
    for _ in range(10):
        put(engine)
    engine.sweep()
    put(engine)
    shutil.copytree(folder, copy)
    engine.close()
    engine = opened(copy / "store.sqlite")
    assert put(engine) == PutResult(12)
    assert engine.valid_from("log", 12, run) == 12
    assert not engine.statistics().streams[0].gaps
    engine.close()


def test_an_older_copy_is_recognized_by_numbers_and_leases_of_later_runs(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.sqlite", tmp_path / "copy.sqlite"
    engine = opened(path)
    for _ in range(60):
        put(engine)
    first = engine.run
    engine.close()
    shutil.copy(path, copy)
    engine = opened(path)
    for _ in range(40):
        put(engine)
    second = engine.run
    engine.close()
    for each in tmp_path.glob("store.sqlite*"):
        each.unlink()
    copy.rename(path)
    engine = opened(path)
    for _ in range(80):
        put(engine)
    assert engine.valid_from("log", 61, first) == 61
    assert engine.valid_from("log", 101, second) == 1
    assert engine.valid_from("log", 101, engine.run) == 101
    assert engine.valid_from("log", 999) == 1
    engine.close()


def test_damage_that_is_found_later_is_checked_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    engine = opened(path)
    for _ in range(200):
        put(engine, 2_000)
    engine.close()
    content = bytearray(path.read_bytes())
    content[200_000:400_000] = b"\xff" * 200_000
    path.write_bytes(content)
    engine = opened(path)
    with pytest.raises(EngineError, match=r"^EIO .*damaged"):
        engine.read("log", 0, 200, 1 << 20)
    engine.close()
    with pytest.raises(EngineError, match=r"^EIO .*renamed"):
        opened(path)
    assert list(tmp_path.glob("store.sqlite.damaged-*"))


def test_a_file_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    opened(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(EngineError, match=r"newer version of sbus-store: format 99"):
        opened(path)
    assert path.exists()


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(EngineError, match="not a file of sbus-store"):
        opened(path)


def test_only_one_store_uses_a_file(tmp_path: Path) -> None:
    first = opened(tmp_path / "store.sqlite")
    with pytest.raises(EngineError, match=r"^EBUSY another store"):
        opened(tmp_path / "store.sqlite")
    first.close()
    opened(tmp_path / "store.sqlite").close()


def test_the_file_is_locked_without_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(tmp_path / "store.sqlite")
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)  # nothing ends the lock
    put(engine)
    assert not list(tmp_path.glob("*-shm"))
    (tmp_path / "store.sqlite.lock").unlink()
    with pytest.raises(EngineError, match=r"^EBUSY another process writes to"):
        opened(tmp_path / "store.sqlite")
    assert put(engine) == PutResult(2)
    engine.close()


@pytest.mark.parametrize(("replaced", "words"), [(False, "is not there any more: No such file"), (True, "was replaced by another one")])
def test_a_file_that_is_not_at_its_path_any_more_takes_no_message(tmp_path: Path, replaced: bool, words: str) -> None:
    path = tmp_path / "store.sqlite"
    engine = opened(path, 1)
    put(engine)
    path.rename(tmp_path / "moved")
    if replaced:
        shutil.copy(tmp_path / "moved", path)
    with pytest.raises(EngineError, match=rf"^EIO .*{words}"):
        put(engine)
    assert len(engine.read("log", 0, 9, 1_000).items) == 1
    engine.close()


WORKER = Worker(5, 1000)
JOBS = StoreSettings(
    streams=(StreamSettings("log", ("log/",)), StreamSettings("mail", ("mail/",))), queues=(QueueSettings("mail", "mail"),)
)

WRITES: dict[str, Callable[[Engine, int, int], object]] = {
    "put": lambda engine, lease, dead: put(engine),
    "put_many": lambda engine, lease, dead: engine.put_many("log", [NewMessage(b"log/b", b"", ALICE)]),
    "put_unpublished": lambda engine, lease, dead: engine.put_unpublished("log", [NewMessage(b"log/b", b"", ALICE)]),
    "add_gap": lambda engine, lease, dead: engine.add_gap("log", b"", 1, "lost"),
    "set_reader": lambda engine, lease, dead: engine.set_reader("log", 1000, "me", 2),
    "new reader": lambda engine, lease, dead: engine.set_reader("log", 1000, "other", 1),
    "drop_reader": lambda engine, lease, dead: engine.drop_reader("log", 1000, "me"),
    "forget": lambda engine, lease, dead: engine.forget("log", b"log/a"),
    "purge": lambda engine, lease, dead: engine.purge("log"),
    "take": lambda engine, lease, dead: engine.take("mail", WORKER, 1, 1_000),
    "ack": lambda engine, lease, dead: engine.ack("mail", [lease], WORKER),
    "retry": lambda engine, lease, dead: engine.retry("mail", [lease], WORKER),
    "fail": lambda engine, lease, dead: engine.fail("mail", [lease], WORKER, "bad"),
    "extend": lambda engine, lease, dead: engine.extend("mail", [lease], WORKER, 90_000),
    "release": lambda engine, lease, dead: engine.release(WORKER.connection),
    "revive": lambda engine, lease, dead: engine.revive("mail", [dead]),
    "drop_dead": lambda engine, lease, dead: engine.drop_dead("mail", [dead]),
}


def state_of(engine: Engine) -> tuple[object, ...]:
    """Return what the operations above change, by reading."""
    jobs = [engine.jobs("mail", state) for state in ("ready", "leased", "delayed", "dead")]
    figures = engine.statistics()
    return engine.read("log", 0, 99, 1 << 20), engine.readers("log"), jobs, figures.streams, figures.queues


@pytest.mark.parametrize("in_group", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_is_not_at_its_path_any_more_takes_no_change(tmp_path: Path, name: str, in_group: bool) -> None:
    path = tmp_path / "store.sqlite"
    engine = Engine(path, JOBS, OneClock(lambda: 1_000_000), 1)
    put(engine)
    engine.set_reader("log", 1000, "me", 1)
    for _ in range(3):
        engine.put("mail", NewMessage(b"mail/a", b"x", ALICE))
    failed, held = engine.take("mail", WORKER, 2, 1_000).jobs
    engine.fail("mail", [failed.lease], WORKER, "bad")
    (dead,) = engine.jobs("mail", "dead")
    before = state_of(engine)
    path.rename(tmp_path / "moved")
    if in_group:
        engine.begin()
    with pytest.raises(EngineError, match=r"^EIO .*is not there any more"):
        WRITES[name](engine, held.lease, dead.stored.seq)
    if in_group:
        engine.commit()
    assert state_of(engine) == before
    shutil.copy(tmp_path / "moved", path)
    with pytest.raises(EngineError, match=r"^EIO .*was replaced by another one"):
        WRITES[name](engine, held.lease, dead.stored.seq)
    (tmp_path / "moved").rename(path)
    WRITES[name](engine, held.lease, dead.stored.seq)
    assert state_of(engine) != before
    engine.close()


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"^EACCES cannot open"):
        opened(tmp_path / "none" / "store.sqlite")


def test_a_full_disk_fails_puts_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    engine = opened(path)
    put(engine)
    ((pages,),) = engine.database.execute("PRAGMA page_count").fetchall()
    engine.database.execute(f"PRAGMA max_page_count = {pages + 20}")
    stored = 1
    stored += fill(engine)
    assert len(engine.read("log", 0, 1_000, 1 << 30).items) == stored
    assert engine.statistics().streams[0].messages == stored
    assert engine.purge("log", 2).count == 1
    engine.database.execute("PRAGMA max_page_count = 100000")
    assert put(engine, 10_000) == PutResult(stored + 1)
    engine.close()


def test_space_is_left_for_what_frees_some(tmp_path: Path) -> None:
    engine = opened(tmp_path / "store.sqlite", 1 << 62)
    with pytest.raises(EngineError, match=r"^ENOSPC /.* has less than .* free some space there, or remove messages"):
        put(engine)
    assert engine.read("log", 0, 10, 100).items == []
    engine.close()


def test_a_purge_returns_space_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.sqlite"
    engine = opened(path, 1 << 20)
    for _ in range(200):
        put(engine, 10_000)
    ((before,),) = engine.database.execute("PRAGMA page_count").fetchall()
    monkeypatch.setattr(engine.database, "free_bytes", lambda: 1_000_000)
    with pytest.raises(EngineError, match=r"^ENOSPC"):
        put(engine)
    engine.purge("log")
    for _ in range(5):
        engine.sweep()
    ((after,),) = engine.database.execute("PRAGMA page_count").fetchall()
    assert after < before / 4
    engine.close()


def test_no_statement_scans_the_messages(tmp_path: Path) -> None:
    engine = opened(tmp_path / "store.sqlite")
    from sbus_services.store.engine import continuity, intake, put_ids, queues, reading, removal, retention, stream, unpublished

    modules = (removal, continuity, intake, stream, removal, put_ids, queues, reading, reading, removal, retention, unpublished)
    statements = [value for module in modules for value in vars(module).values() if isinstance(value, str)]
    statements = [each for each in statements if re.match(r"SELECT |UPDATE |DELETE |INSERT ", each)]
    assert len(statements) > 40
    for statement in statements:
        plan = engine.database.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * statement.count("?")).fetchall()
        found = "; ".join(row[3] for row in plan)
        # An index in the order of the result, cut by LIMIT, reads only the result.
        ordered = re.sub(r"SCAN (message|put_id) USING (COVERING )?INDEX (message_expires|put_id_time)", "", found)
        assert not re.search(r"SCAN (message|job|put_id|reader|usage)|TEMP B-TREE", ordered), f"{statement}: {found}"
    engine.close()
