"""A record, published again: in the order of time, and what cannot be is counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Row, RowKind, batch_of
from sbus_archive.record.segments import RecordReader, write_segments
from sbus_archive.recorder.replay import RecordedMessage, Replay, SkippedMessages, paced
from sbus_archive.storage.files import RecordError
from tests.support.records import NOON, message


def archive_of(folder: Path, some: Iterable[Row], host: str = "alpha", first_seq: int = 1) -> RecordReader:
    write_segments(folder, host, first_seq, pa.Table.from_batches([batch_of(list(some))]))
    return RecordReader(folder)


def test_messages_come_in_the_order_of_time_over_segments_hours_and_hosts(tmp_path: Path) -> None:
    archive_of(tmp_path, [message(1, "b", b"3", ts=NOON + 3), message(2, "a", b"1", ts=NOON + 1)])
    archive_of(tmp_path, [message(3, "c", b"2", ts=NOON + 2), message(4, "c", b"5", ts=NOON + HOUR_NS)], host="beta")
    archive = archive_of(tmp_path, [message(9, "d", b"4", ts=NOON + 3)], first_seq=9)
    assert [each.payload for each in Replay(archive)] == [b"1", b"2", b"3", b"4", b"5"]
    assert [each.payload for each in Replay(archive, host="beta")] == [b"2", b"5"]
    assert list(Replay(archive, host="gamma")) == []


def test_only_keys_that_are_asked_for(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, [message(1, "a/b"), message(2, "a/c/d"), message(3, "b"), message(4, r"\xff")])
    assert [each.key for each in Replay(archive, b"a/*")] == [b"a/b"]
    assert [each.key for each in Replay(archive, b"a/")] == [b"a/b", b"a/c/d"]
    assert [each.key for each in Replay(archive, b"\xff")] == [b"\xff"]


def test_unpublishable_messages_are_counted(tmp_path: Path) -> None:
    some = [
        message(1, "whole"),
        message(2, "cut", b"ab")._replace(payload_bytes=3),
        message(3, "none")._replace(payload=None),
        message(4, "!/cred/1/2/3/x"),
        message(5, "!/conn/7/x"),
        message(6, "empty", b""),
        Row(NOON, 7, RowKind.GAP, lost=12),
        Row(NOON, 8, RowKind.SUBSCRIBE, key="whole"),
    ]
    replay = Replay(archive_of(tmp_path, some))
    assert [each.key for each in replay] == [b"whole", b"empty"]
    assert replay.skipped == SkippedMessages(reserved=2, cut=1, left_out=1)
    assert replay.missing == 12


def test_a_removed_segment_is_reported(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, [message(1)])
    (tmp_path / archive.entries()[0].path).unlink()
    with pytest.raises(RecordError, match="missing, but named in the index"):
        list(Replay(archive))


def test_an_invalid_key_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="invalid key "):
        list(Replay(archive_of(tmp_path, [message(1, "\\")])))


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 50.0
        self.slept: list[float] = []
        self._step = step

    def __call__(self) -> float:
        self.now += self._step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


SECONDS = (0, 1, 1, 3.5)


def _messages() -> list[RecordedMessage]:
    return [RecordedMessage(NOON + int(seconds * 1e9), b"k", b"") for seconds in SECONDS]


@pytest.mark.parametrize(("speed", "slept"), [(1.0, [1, 2.5]), (2.0, [0.5, 1.25]), (0.0, []), (0.5, [2, 5])])
def test_messages_are_as_far_apart_as_they_were_by_the_speed(speed: float, slept: list[float]) -> None:
    clock = Clock()
    assert list(paced(_messages(), speed, clock, clock.sleep)) == _messages()
    assert clock.slept == slept


def test_a_delayed_replay_catches_up() -> None:
    clock = Clock(step=2.0)  # each look at the clock takes two seconds
    list(paced(_messages(), 1.0, clock, clock.sleep))
    assert clock.slept == []


def test_nothing_is_read_before_it_is_wanted(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, [message(1, ts=NOON), message(2, ts=NOON + HOUR_NS)])
    (tmp_path / archive.entries()[1].path).write_bytes(b"")
    assert [each.ts for each in itertools.islice(Replay(archive), 1)] == [NOON]
