"""Bits that the disk flips in a stored message: it is never delivered as if it were right, and its place is known."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sbus_programs.config.store import QueueSettings, StoreSettings, StreamSettings
from sbus_programs.config.users import SubordinateIds, SubordinateRange
from sbus_services.store.engine.checksums import DAMAGED
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, Gap, NewMessage, Sender, Stored, Sweep, Worker
from sbus_services.store.engine.retention import TOO_OLD
from sbus_services.store.engine.schema import seq_of
from tests.support.store_clocks import OneClock

NOW = 1_700_000_000_000
ALICE = Sender(1000, 1000, 70_000, "far/!/cred/1/2/3")
WORKER = Worker(5, 1000)
SETTINGS = StoreSettings(
    streams=(StreamSettings("log", ("log/",)), StreamSettings("state", ("state/",), last=1), StreamSettings("mail", ("mail/",))),
    queues=(QueueSettings("mail", "mail", in_order="key"),),
)
PAYLOAD = b"PAYLOAD-"
COUNT = 3
EXPIRY_MS = 10_000_000
RECORD_BYTES = 90
"""What is changed: the end of the payload, and what is before it, in which the other values of the message are."""


def opened(path: Path) -> Engine:
    """Open the file *path*."""
    return Engine(path, SETTINGS, OneClock(lambda: NOW), 0)


def payload(number: int) -> bytes:
    """Return the payload of a message."""
    return PAYLOAD + b"%d" % number * 4


def filled(path: Path, stream: str) -> bytes:
    """Fill *stream*, and return the content of the file."""
    engine = opened(path)
    engine.put_unpublished(
        stream,
        [NewMessage(b"%b/%d" % (stream.encode(), number), payload(number), ALICE, expires_ms=NOW + EXPIRY_MS) for number in range(COUNT)],
    )
    engine.close()
    return path.read_bytes()


def damaged(path: Path, content: bytes, at: int, bit: int) -> None:
    """Write *content* to *path* with one other bit, without the other files of the store."""
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    path.write_bytes(changed)


READERS: dict[str, tuple[str, Callable[[Engine], list[Stored]]]] = {
    "read": ("log", lambda engine: [each for each in engine.read("log", 0, 9, 1 << 20).items if isinstance(each, Stored)]),
    "read some": ("log", lambda engine: [each for each in engine.read("log", 0, 9, 1 << 20, b"log/*").items if isinstance(each, Stored)]),
    "last": ("state", lambda engine: engine.last("state").items),
    "take": ("mail", lambda engine: [each.stored for each in engine.take("mail", WORKER, 9, 1 << 20).jobs]),
    "peek": ("mail", lambda engine: [each.stored for each in engine.jobs("mail", "ready") if each.reason != DAMAGED]),
    "publish": ("log", lambda engine: getattr(engine.next_unpublished({}), "messages", [])),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_flipped_bit_is_never_delivered(tmp_path: Path, reader: str) -> None:
    stream, function = READERS[reader]
    path = tmp_path / "store.sqlite"
    content = filled(path, stream)
    engine = opened(path)
    right = function(engine)
    engine.close()
    assert len(right) == COUNT
    end = content.index(payload(1)) + len(payload(1))
    noticed = 0
    for at in range(end - RECORD_BYTES, end):
        damaged(path, content, at, at % 8)
        try:
            engine = opened(path)
        except EngineError:  # SQLite has noticed it
            continue
        try:
            found = function(engine)
            assert all(each in right for each in found), f"bit {at % 8} of byte {at - end} is delivered"
            noticed += len(engine.sweep().damaged)
        except EngineError:
            pass
        finally:
            engine.close()
    assert noticed > 20


def test_a_damaged_message_is_a_gap_in_its_place_and_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    content = filled(path, "log")
    damaged(path, content, content.index(payload(1)), 0)
    for found in ([("log", 2)], []):
        engine = opened(path)
        for pattern in (b"", b"log/0", b"log/*"):
            items = engine.read("log", 0, 9, 1 << 20, pattern).items
            gaps = [each for each in items if isinstance(each, Gap)]
            assert gaps == ([] if pattern == b"log/0" else [Gap(2, NOW, b"", 1, DAMAGED)])
        assert engine.sweep().damaged == found
        assert (engine.statistics().damaged, engine.statistics().open_damaged) == (1, bool(found))
        assert [engine.acknowledge(7) for _ in range(2)] == [bool(found), 0]
        assert (engine.statistics().damaged, engine.statistics().open_damaged) == (1, 0)
        engine.close()


def test_a_damaged_job_is_a_dead_letter_and_the_next_one_of_its_key_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    engine = opened(path)
    for number in range(2):
        engine.put("mail", NewMessage(b"mail/a", payload(number), ALICE))
    engine.close()
    content = path.read_bytes()
    damaged(path, content, content.index(payload(0)), 0)
    engine = opened(path)
    assert engine.take("mail", WORKER, 1, 1 << 20) == ([], True)
    (job,) = engine.take("mail", WORKER, 1, 1 << 20).jobs
    assert job.stored.payload == payload(1)
    (letter,) = engine.sweep().dead
    assert (letter.reason, letter.payload) == (DAMAGED, b"")
    engine.close()


RETAIN_MS = 1_000_000
RETAINING = replace(SETTINGS, streams=tuple(replace(each, retain=RETAIN_MS / 1000) for each in SETTINGS.streams))
AGES = {"expires": (SETTINGS, NOW + EXPIRY_MS), "retain": (RETAINING, NOW + RETAIN_MS + 1)}


def heads(content: bytes, stream: str) -> list[int]:
    """Return the places of the bytes of time, key and expiry of the message with the payload 1, in its row."""
    end = content.index(payload(1))
    values = (NOW.to_bytes(6), (NOW + EXPIRY_MS).to_bytes(6), b"%b/1" % stream.encode())
    starts = [(content.rindex(each, 0, end), len(each)) for each in values]
    assert min(starts)[0] > end - RECORD_BYTES
    return [start + each for start, length in starts for each in range(length)]


def swept(engine: Engine) -> set[bytes]:
    """Sweep until nothing is left to do, and return the keys whose end is published."""
    sweep, ended = Sweep(more=True), set[bytes]()
    for _ in range(9):
        sweep = engine.sweep(places=sweep.places)
        ended |= {each.message.key for each in sweep.values}
    assert not sweep.more
    assert sweep.next_ms != engine.clock.now() + 1, "sweeps follow each other without a pause"
    return ended


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("stream", ["log", "state"])
def test_what_the_disk_has_changed_is_not_removed_by_its_age_and_the_others_are(tmp_path: Path, stream: str, age: str) -> None:
    path, (settings, now) = tmp_path / "store.sqlite", AGES[age]
    content = filled(path, stream)
    for at in heads(content, stream):
        damaged(path, content, at, at % 8)
        engine = Engine(path, settings, OneClock(lambda: now), 0)
        ended = swept(engine)
        left = engine.database.execute("SELECT id FROM message").fetchall()
        assert [seq_of(number) for (number,) in left] == [2], f"byte {at} of the row: another message is removed"
        assert ended == ({b"state/0", b"state/2"} if stream == "state" else set())
        assert engine.statistics().damaged == 1
        engine.close()


def test_a_row_whose_key_was_changed_can_be_purged_after_a_restart_and_no_wrong_key_ends(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    content = filled(path, "state")
    damaged(path, content, content.rindex(b"state/1", 0, content.index(payload(1))) + 6, 1)
    engine = opened(path)
    with contextlib.suppress(EngineError):  # SQLite may notice that the index has another key
        engine.purge("state")
    engine.close()
    engine = opened(path)
    engine.purge("state")
    ended = swept(engine)
    assert engine.database.execute("SELECT id FROM message").fetchall() == []
    assert ended == {b"state/0", b"state/2"}
    engine.close()


def test_an_old_job_that_was_changed_is_a_damaged_one_and_an_old_one_does_not_block_its_line(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    engine = Engine(path, RETAINING, OneClock(lambda: NOW), 0)
    for key in (b"mail/a", b"mail/b"):
        engine.put("mail", NewMessage(key, b"old", ALICE))
    with engine.database.operation():
        engine.database.execute("UPDATE message SET time = time + 5 WHERE key = ?", (b"mail/b",))
    engine.close()
    engine = Engine(path, RETAINING, OneClock(lambda: NOW + RETAIN_MS // 2), 0)
    engine.put("mail", NewMessage(b"mail/a", b"new", ALICE))
    engine.close()
    engine = Engine(path, RETAINING, OneClock(lambda: NOW + RETAIN_MS + 1), 0)
    assert swept(engine) == set()
    assert [each.reason for each in engine.jobs("mail", "dead")] == [TOO_OLD, DAMAGED]
    assert [each.stored.payload for each in engine.take("mail", WORKER, 9, 1_000).jobs] == [b"new"]
    engine.close()


def test_another_account_of_a_message_is_noticed(tmp_path: Path) -> None:
    """One that pays for the sender, and is not the sender."""
    path = tmp_path / "store.sqlite"
    engine = opened(path)
    engine.charge(SubordinateIds([SubordinateRange(100_000, 65_536, 1000)]))
    engine.put("log", NewMessage(b"log/a", b"x", Sender(100_007, 100_007, 1)))
    engine.put("log", NewMessage(b"log/b", b"x", Sender(1000, 1000, 1)))
    assert len(engine.read("log", 0, 9, 1 << 20).items) == 2
    for account in (1001, 100_007, -3, "x"):
        engine.database.execute("UPDATE message SET account = ?", (account,))
        items = engine.read("log", 0, 9, 1 << 20).items
        assert [each.reason for each in items if isinstance(each, Gap)] == [DAMAGED, DAMAGED], account
    engine.close()
