"""A full disk: the store names the file system, reads all the same, and goes on when there is room, also if it starts there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pytest

from sbus import Bus, StoredMessage, StoreError
from sbus_programs.config.store import QueueSettings, StoreSettings, StreamSettings
from sbus_services.store.engine.clocks import SystemClock
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, Gap, NewMessage, Sender, Worker
from tests.support.daemons import Daemon
from tests.support.relays import wait_for
from tests.support.small_disks import USES, fill, small_disk_at, take_inodes
from tests.support.store_programs import StoreProgram

CONFIG = """
[[stream]]
name = "log"
keys = ["log/"]
publish = false
"""
SENDER = Sender(1000, 1000, 1)
SETTINGS = StoreSettings(streams=(StreamSettings("log", ("log/",)),))


WORDS = r"^ENOSPC no space, or no inode, left on the file system {disk} for {disk}/store\.sqlite"


def opened(disk: Path, settings: StoreSettings = SETTINGS) -> Engine:
    return Engine(disk / "store.sqlite", settings, SystemClock(print, disk / "date"))


def begin_again(engine: Engine) -> None:
    """Let *engine* look for room, as each group of operations does after a second."""
    deadline = time.monotonic() + 60
    while engine.run_start.refusal is not None and time.monotonic() < deadline:
        engine.begin()
        engine.commit()
    assert engine.run_start.refusal is None


@pytest.mark.parametrize("use", USES)
def test_a_new_store_that_cannot_start_names_the_file_system_and_starts_when_there_is_room(
    tmp_path: Path, use: str, needs_root: None
) -> None:
    with small_disk_at(tmp_path / "disk", "size=32m,nr_inodes=50") as disk:
        taken = USES[use](disk)
        with pytest.raises(EngineError, match=WORDS.format(disk=disk)):
            opened(disk)
        for each in taken:
            each.unlink()
        opened(disk).close()


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_store_that_starts_on_a_full_disk_reads_refuses_changes_and_goes_on_when_there_is_room(
    tmp_path: Path, is_killed: bool, needs_root: None
) -> None:
    with small_disk_at(tmp_path / "disk", "size=32m,nr_inodes=50") as disk, contextlib.ExitStack() as stack:
        (tmp_path / "before").mkdir()
        before = opened(tmp_path / "before")
        put = before.put("log", NewMessage(b"log/a", b"before", SENDER))
        run = before.run
        if is_killed:
            copytree(tmp_path / "before", disk, dirs_exist_ok=True)
        before.close()
        if not is_killed:
            copytree(tmp_path / "before", disk, dirs_exist_ok=True)
        taken = fill(disk)
        opened(disk).close()  # it does so again and again
        more = StoreSettings(streams=(*SETTINGS.streams, StreamSettings("new", ("new/",))), queues=(QueueSettings("jobs", "log"),))
        engine = opened(disk, more)
        stack.callback(engine.close)
        words = WORDS.format(disk=disk)
        assert [each.payload for each in engine.read("log", 0, 10, 1 << 20).items if not isinstance(each, Gap)] == [b"before"]
        assert engine.statistics().streams[0].messages == 1
        assert engine.run == run, "a number is valid for the readers of the last run"
        changes: list[Callable[[], object]] = [
            lambda: engine.set_reader("log", 1000, "me", 1),
            lambda: engine.purge("log"),
            lambda: engine.take("jobs", Worker(1, 1000), 1, 1 << 20),
            lambda: engine.read("new", 0, 10, 1 << 20),
            engine.sweep,
        ]
        for change in changes:
            with pytest.raises(EngineError, match=words):
                change()
        with pytest.raises(EngineError, match=r"^ENOSPC"):
            engine.put("log", NewMessage(b"log/a", b"refused", SENDER))
        taken.unlink()
        begin_again(engine)
        assert engine.run != run
        assert engine.valid_from("log", put.seq + 1, run) == put.seq + 1
        assert engine.put("log", NewMessage(b"log/a", b"after", SENDER)).seq == put.seq + 1
        assert engine.put("new", NewMessage(b"new/a", b"first", SENDER)).seq == 1
        assert len(engine.take("jobs", Worker(1, 1000), 10, 1 << 20).jobs) == 2
        engine.sweep()


def test_a_store_starts_without_a_free_inode(tmp_path: Path, needs_root: None) -> None:
    """Its log needs one, which the last run has left."""
    with small_disk_at(tmp_path / "disk", "size=32m,nr_inodes=50") as disk:
        for number in (1, 2, 3):
            engine = opened(disk)
            assert engine.put("log", NewMessage(b"log/a", b"", SENDER)).seq == number
            engine.close()
            take_inodes(disk)


def test_a_stop_on_a_full_disk_keeps_the_log(tmp_path: Path, needs_root: None) -> None:
    with small_disk_at(tmp_path / "disk", "size=32m") as disk:
        engine = opened(disk)
        for _ in range(50):
            engine.put("log", NewMessage(b"log/a", bytes(50_000), SENDER))
        taken = fill(disk)
        engine.close()
        assert (disk / "store.sqlite-wal").stat().st_size > 2_000_000, "it does not fit into the file itself"
        taken.unlink()
        engine = opened(disk)
        assert len(engine.read("log", 0, 100, 1 << 30).items) == 50
        engine.close()


def test_what_was_lost_becomes_a_gap_when_there_is_room(tmp_path: Path, needs_root: None) -> None:
    """Until then, the second file keeps the numbers that were acknowledged."""
    with small_disk_at(tmp_path / "disk", "size=32m") as disk:
        engine = opened(disk)
        engine.close()
        copy = (disk / "store.sqlite").read_bytes()
        engine = opened(disk)
        last = [engine.put("log", NewMessage(b"log/a", b"%d" % number, SENDER)).seq for number in range(10)][-1]
        engine.close()
        (disk / "store.sqlite").write_bytes(copy)
        taken = fill(disk)
        opened(disk).close()
        engine = opened(disk)
        assert engine.read("log", 0, 10, 1 << 20).items == []
        taken.unlink()
        begin_again(engine)
        assert [type(each) for each in engine.read("log", 0, 10, 1 << 20).items] == [Gap]
        assert engine.put("log", NewMessage(b"log/a", b"after", SENDER)).seq > last
        engine.close()


@contextlib.contextmanager
def served(tmp_path: Path, bus: Daemon, size: str) -> Iterator[tuple[StoreProgram, Path, Bus]]:
    """A store whose file is on a disk of its own of *size*, that disk, and a client."""
    with small_disk_at(tmp_path / "disk", f"size={size}") as disk, Bus.connect(bus.path) as client:
        store = StoreProgram(tmp_path, bus.path, "")
        store.file = disk / "store.sqlite"
        store.configure(CONFIG)
        with store:
            yield store, disk, client


def has_stored(client: Bus, payload: bytes) -> bool:
    """Store a message if there is room, and return whether there was."""
    with contextlib.suppress(StoreError):
        client.store.put("log/a", payload)
        return True
    return False


def test_a_store_on_a_full_disk_serves_reads_and_goes_on_when_there_is_room(bus: Daemon, tmp_path: Path, needs_root: None) -> None:
    with served(tmp_path, bus, "40m") as (store, disk, client):
        client.store.put("log/a", b"before")
        filler = fill(disk)
        with pytest.raises(StoreError, match=f"ENOSPC: {disk} has less than 16MiB free for {store.file}; "):
            client.store.put("log/a", b"refused")
        assert [each.payload for each in client.store.read("log", follow=False) if isinstance(each, StoredMessage)] == [b"before"]
        store.kill()
        store.start()
        assert f"all changes are refused until there is room: no space, or no inode, left on the file system {disk} for " in store.log
        with pytest.raises(StoreError, match=f"ENOSPC: {disk} has less than 16MiB free for {store.file}; "):
            client.store.put("log/a", b"refused")
        assert [each.payload for each in client.store.read("log", follow=False) if isinstance(each, StoredMessage)] == [b"before"]
        os.truncate(filler, 0)
        wait_for(lambda: has_stored(client, b"after"), "room for a message")
        assert [each.payload for each in client.store.read("log", follow=False) if isinstance(each, StoredMessage)] == [b"before", b"after"]


def test_a_purge_returns_its_space_to_a_disk_that_is_full_to_the_last_byte(bus: Daemon, tmp_path: Path, needs_root: None) -> None:
    """The purge needs more space in the log than there is if SQLite writes zeros over what is removed, as Debian's does by default."""
    with served(tmp_path, bus, "96m") as (_, disk, client):
        for _ in range(480):
            client.store.put("log/a", bytes(100_000))
        fill(disk)
        assert client.store.purge(stream="log") == 480
        wait_for(lambda: has_stored(client, b"after"), "room for a message")
