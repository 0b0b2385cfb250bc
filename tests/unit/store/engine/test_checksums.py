"""Bits that the disk flips in a stored message: it is never delivered as if it were right, and its place is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sbusd.config.store import QueueSettings, StoreSettings, StreamSettings
from sbusd.store.engine.checksums import DAMAGED
from sbusd.store.engine.engine import Engine
from sbusd.store.engine.messages import Gap, NewMessage, Sender, Stored, StoreError, Worker
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
        [NewMessage(b"%b/%d" % (stream.encode(), number), payload(number), ALICE, expires_ms=NOW + 10_000_000) for number in range(COUNT)],
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
    "take": ("mail", lambda engine: [each.stored for each in engine.take("mail", WORKER, 9, 1 << 20)]),
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
        except StoreError:  # SQLite has noticed it
            continue
        try:
            found = function(engine)
            assert all(each in right for each in found), f"bit {at % 8} of byte {at - end} is delivered"
            noticed += len(engine.sweep().damaged)
        except StoreError:
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
        assert (engine.statistics().damaged, engine.statistics().recent_damaged) == (1, 1)
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
    (job,) = engine.take("mail", WORKER, 1, 1 << 20)
    assert job.stored.payload == payload(1)
    (letter,) = engine.sweep().dead
    assert (letter.reason, letter.payload) == (DAMAGED, b"")
    engine.close()
