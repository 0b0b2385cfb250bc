"""The outbox: a batch that comes again is not published again, one that was interrupted goes on, and only what is in doubt comes twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.source.options import InDoubt
from sbus_archive.pipeline.source.outbox import MESSAGES, BatchResult, Outbox

Pairs = list[tuple[bytes, bytes]]


class Killed(BaseException):
    """The process ends here."""


class Wire:
    """The bus; it can be made to end the process before or behind the message *fatal*."""

    def __init__(self, fatal: int | None = None) -> None:
        self.received: Pairs = []
        self._fatal = fatal

    def __call__(self, messages: Pairs) -> None:
        """Take messages, one after the other."""
        for each in messages:
            if self._fatal is not None and len(self.received) >= self._fatal:
                self._fatal = None
                raise Killed
            self.received.append(each)


def content(first: int, last: int, size: int = 7) -> list[pa.RecordBatch]:
    rows = [{"key": b"k/%d" % number, "payload": b"p"} for number in range(first, last)]
    return [pa.RecordBatch.from_pylist(rows[start : start + size], schema=MESSAGES) for start in range(0, len(rows), size)]


def numbers(received: Iterable[tuple[bytes, bytes]]) -> list[int]:
    return [int(key.removeprefix(b"k/")) for key, _ in received]


def outbox(root: Path, in_doubt: InDoubt = "repeat", chunk: int = 5) -> Outbox:
    return Outbox(root / "outbox", chunk, in_doubt)


def test_a_batch_is_published_once_and_an_older_one_never_again(tmp_path: Path) -> None:
    wire = Wire()
    box = outbox(tmp_path)
    assert box.deliver("q", 0, content(0, 20), wire) == BatchResult(20)
    assert box.deliver("q", 0, content(0, 20), wire) == BatchResult(0)
    assert box.deliver("q", 1, content(20, 30), wire) == BatchResult(10)
    assert box.deliver("q", 0, content(0, 20), wire) == BatchResult(0)
    assert box.deliver("other", 0, content(30, 31), wire) == BatchResult(1)
    assert numbers(wire.received) == list(range(31))
    assert sorted(path.name for path in box.root.iterdir()) == [".lock", "done.json"]


@pytest.mark.parametrize("in_doubt", ["repeat", "skip"])
@pytest.mark.parametrize("seed", range(15))
def test_only_messages_of_one_chunk_are_in_doubt(tmp_path: Path, in_doubt: InDoubt, seed: int) -> None:
    """However often it is killed: all come, in order, and no more than are in doubt come twice, or not at all; as it says."""
    chance = random.Random(seed)
    received: Pairs = []
    repeated = skipped = 0
    for _ in range(3):
        wire = Wire(fatal=chance.randrange(25))
        with pytest.raises(Killed):
            outbox(tmp_path, in_doubt).deliver("q", 0, content(0, 100), wire)
        received += wire.received
        assert not list((tmp_path / "outbox").glob("done.json"))
    wire = Wire()
    # Spark has recomputed it with another result; the first result counts.
    delivery = outbox(tmp_path, in_doubt).deliver("q", 0, content(500, 600), wire)
    received += wire.received
    counts = Counter(numbers(received))
    assert set(counts) <= set(range(100))
    repeated = sum(number - 1 for number in counts.values())
    skipped = 100 - len(counts)
    assert (repeated <= 3 * 5, skipped) == (True, 0) if in_doubt == "repeat" else (repeated, skipped <= 3 * 5) == (0, True)
    assert delivery.repeated <= 5
    assert (delivery.skipped if in_doubt == "repeat" else delivery.repeated) == 0


def test_a_batch_killed_before_its_end_is_repeated(tmp_path: Path) -> None:
    def interrupted() -> Iterable[pa.RecordBatch]:
        yield from content(0, 7)
        raise Killed

    wire = Wire()
    with pytest.raises(Killed):
        outbox(tmp_path).deliver("q", 0, interrupted(), wire)
    assert wire.received == []
    outbox(tmp_path).deliver("q", 0, content(50, 60), wire)
    assert numbers(wire.received) == list(range(50, 60))


def test_other_sizes_of_chunks_change_nothing(tmp_path: Path) -> None:
    wire = Wire(fatal=13)
    with pytest.raises(Killed):
        outbox(tmp_path, chunk=5).deliver("q", 0, content(0, 40), wire)
    delivery = outbox(tmp_path, chunk=9).deliver("q", 0, content(0, 40), wire)
    counts = Counter(numbers(wire.received))
    assert set(counts) == set(range(40))
    assert sum(counts.values()) == 40 + (13 - 12)  # chunks end at 5, 7 and 12: the one that was being published had one message out
    assert delivery == BatchResult(28, repeated=2)  # what was in doubt: rows 12 and 13, of a chunk that the batch cut to two


def test_two_do_not_publish_from_one_outbox(tmp_path: Path) -> None:
    box = outbox(tmp_path)

    def publish(_: Pairs) -> None:
        outbox(tmp_path).deliver("q", 1, content(0, 1), Wire())

    with pytest.raises(SourceError, match="outbox is in use by another process"):
        box.deliver("q", 0, content(0, 1), publish)


@pytest.mark.parametrize("name", ["done.json", "q.0.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    box = outbox(tmp_path)
    with pytest.raises(Killed):
        box.deliver("q", 0, content(0, 9), Wire(fatal=0))
    (box.root / name).write_text("[]")
    with pytest.raises(SourceError, match=f"{name}: damaged file"):
        box.deliver("q", 0, content(0, 9), Wire())
    (box.root / name).unlink()
    (box.root / "q.0.arrow").write_bytes(b"")
    with pytest.raises(SourceError, match=r"q.0.arrow: damaged file"):
        box.deliver("q", 0, content(0, 9), Wire())
