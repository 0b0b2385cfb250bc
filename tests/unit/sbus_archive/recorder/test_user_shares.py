"""A flood removes the record of its own user; the ranking of users gives the lowest first."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_archive.record.index import write_entry
from sbus_archive.record.layout import MAX_ENTRY_BYTES, OTHERS, IndexEntry, SegmentName
from sbus_archive.record.schema import Row, batch_of
from sbus_archive.record.segments import RecordReader, write_segments
from sbus_archive.recorder.converter import Converter
from sbus_archive.recorder.log_messages import REMOVED
from sbus_archive.recorder.retention import (
    FEW_USERS,
    MAX_USERS,
    ROW_BYTES,
    Ranking,
    Retention,
    bytes_by_user,
    common_limit,
    next_to_remove,
    spool_limit,
    with_charged,
)
from sbus_archive.recorder.wal import WalWriter
from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from tests.support.dates import fixed_date
from tests.support.examples import examples
from tests.support.recorder_fakes import RecordedLog, recorded
from tests.support.records import NOON, message

ALICE, BOB, CAROL = 1_000, 1_001, 1_002
QUOTA = 1_000_000

FIRST = 100_000
"""The first id that subuid(5) gives to BOB."""

IDS = ChargedUsers(SubordinateIds([SubordinateRange(FIRST, 65_536, BOB)]))


def of(uid: int | None, row: Row) -> Row:
    """Return *row* as if it were of user *uid*."""
    return row._replace(uid=uid)


class Hosted:
    """An archive of one host, and the files of its write-ahead, each converted as it is written."""

    def __init__(self, folder: Path, quota: int) -> None:
        self.archive, self.spool, self.log = folder / "archive", folder / "spool", RecordedLog()
        for each in (self.archive, self.spool):
            each.mkdir()
        self.quota, self.seq = quota, 0
        self.charged = ChargedUsers()

    def write(self, *batches: list[Row]) -> None:
        """Convert a file for each of *batches*, with a recorder that is new."""
        retention = Retention(self.archive, "alpha", self.quota, 1e9)
        retention.load()
        converter = Converter(self.archive, retention, self.log, clock=fixed_date(NOON), charged=self.charged.of, retry_seconds=0.01)
        for rows in batches:
            converter.submit(self.spooled(rows))
        converter.start()
        assert converter.close(60)
        assert converter.failure is None

    def spooled(self, rows: list[Row]) -> Path:
        """Write a file of the write-ahead with *rows*."""
        wal = WalWriter.create(self.spool, "alpha", self.seq + 1)
        wal.append(batch_of(rows, self.seq + 1))
        wal.close()
        self.seq += len(rows)
        return wal.path

    def rows_of(self, uid: int | None) -> int:
        """Return how many rows of a user there are."""
        return sum(row.uid == uid for row in recorded(self.archive))


def flood(uid: int, size: int) -> list[Row]:
    """Return *size* bytes of a user that nothing compresses."""
    return [of(uid, message(0, payload=os.urandom(size)))]


def test_a_flood_of_one_user_removes_no_row_of_others(tmp_path: Path) -> None:
    """On a tree with one pool for all, the oldest rows went first, whosever they were."""
    host = Hosted(tmp_path, QUOTA)
    host.write([of(uid, message(0)) for uid in (ALICE, None, CAROL, ALICE)])
    for _ in range(30):
        host.write([*flood(BOB, 100_000), of(CAROL, message(0))])
    assert [host.rows_of(uid) for uid in (ALICE, None, CAROL)] == [2, 1, 31]
    assert 0 < host.rows_of(BOB) < 30
    assert sum(entry.bytes for entry in RecordReader(host.archive).entries()) <= host.quota
    assert {facts["whose"] for facts in host.log.facts(REMOVED)} == {f"user {BOB}"}


def test_the_ids_of_a_user_have_one_part_of_the_quota(tmp_path: Path) -> None:
    """With each id below the part of ALICE, the rows of ALICE went first; and no id had a tenth of what BOB may have."""
    host = Hosted(tmp_path, QUOTA)
    host.charged = IDS
    for _ in range(10):
        host.write(flood(ALICE, 20_000))
    for number in range(60):
        host.write([of(FIRST + 8 * number + uid, message(0, payload=os.urandom(10_000))) for uid in range(8)])
    assert host.rows_of(ALICE) == 10
    assert sum(entry.bytes for entry in RecordReader(host.archive).entries()) <= host.quota
    assert {facts["whose"] for facts in host.log.facts(REMOVED)} == {f"user {BOB}"}
    assert {entry.uid for entry in RecordReader(host.archive).entries()} <= {None, ALICE, BOB}
    assert all(entry.users.keys() <= {str(ALICE), str(BOB)} for entry in RecordReader(host.archive).entries())


def test_rows_of_a_user_within_the_share_are_kept(tmp_path: Path) -> None:
    host = Hosted(tmp_path, 600_000)
    for uid, size, files in ((ALICE, 20_000, 8), (BOB, 100_000, 20)):
        for _ in range(files):
            host.write(flood(uid, size))
    assert host.rows_of(ALICE) == 8
    for _ in range(30):
        host.write(flood(ALICE, 20_000))
    # Now both have their halves, and each new row costs its own user's oldest.
    left = {uid: sum(len(row.payload or b"") for row in recorded(host.archive) if row.uid == uid) for uid in (ALICE, BOB)}
    assert all(size >= 300_000 - 100_000 - 20_000 for size in left.values()), left


def test_the_part_in_common_segments_is_bounded(tmp_path: Path) -> None:
    """Many small portions are a flood too."""
    host = Hosted(tmp_path, 8 << 20)
    payload = bytes(2_000)
    host.write(*([of(uid, message(0, payload=payload)) for uid in (ALICE, BOB)] for _ in range(60)))
    common = Counter[str]()
    for entry in RecordReader(host.archive).entries():
        common.update(entry.users if entry.uid is None else {})
    limit = common_limit(host.quota, 2)
    assert set(common) == {str(ALICE), str(BOB)}
    assert all(limit - ROW_BYTES - 2_100 < size <= limit for size in common.values())


def many() -> list[Row]:
    """Return a row of each of a thousand users more than an entry names, with the numbers of subordinate users."""
    return [of(100_000 + uid, message(0, payload=bytes(8))) for uid in range(MAX_USERS + 1_000)]


def test_many_users_of_one_person_remove_no_row_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, users that no entry named were counted nowhere: they filled the common segments, and everybody's oldest rows went."""
    monkeypatch.setattr("sbus_archive.recorder.retention.MAX_USERS", 3)
    host = Hosted(tmp_path, QUOTA)
    host.write([of(uid, message(0)) for uid in (ALICE, None, CAROL, ALICE)])
    for number in range(40):
        # Each stays below the part that a user may have in common segments, and none comes twice.
        crowd = [of(100_000 + 100 * number + uid, message(0, payload=os.urandom(500))) for uid in range(100)]
        host.write([*crowd, of(CAROL, message(0))])
    assert [host.rows_of(uid) for uid in (ALICE, None, CAROL)] == [2, 1, 41]
    assert sum(entry.bytes for entry in RecordReader(host.archive).entries()) <= host.quota
    common = [entry for entry in RecordReader(host.archive).entries() if entry.uid is None]
    assert all(len(entry.users) <= 3 and not entry.unnamed for entry in common)
    others = [entry for entry in RecordReader(host.archive).entries() if entry.uid == OTHERS]
    assert all(not entry.users and entry.unnamed == 98 * (ROW_BYTES + 500 + 3) for entry in others)
    assert {entry.uid for entry in RecordReader(host.archive).entries(removed=True) if entry.is_removed} == {OTHERS}
    assert {facts["whose"] for facts in host.log.facts(REMOVED)} == {"users beyond the 3 lowest user ids"}


def test_rows_of_more_users_than_an_entry_names(tmp_path: Path) -> None:
    host = Hosted(tmp_path, 1 << 40)
    host.write([*many(), of(ALICE, message(0)), of(None, message(0))])
    others, common = sorted(RecordReader(host.archive).entries(), key=lambda entry: entry.uid is None)
    assert (others.uid, others.users, others.rows, others.unnamed) == (OTHERS, {}, 1_001, 1_001 * (ROW_BYTES + 8 + 3))
    assert (common.uid, len(common.users), common.rows, common.unnamed) == (None, MAX_USERS, MAX_USERS + 1, 0)
    assert {int(uid) for uid in common.users} == {ALICE, *range(100_000, 100_000 + MAX_USERS - 1)}
    assert [row.seq for row in recorded(host.archive)] == list(range(1, host.seq + 1))
    assert len(common.to_json()) < MAX_ENTRY_BYTES // 2


@pytest.mark.parametrize("charged", [(ChargedUsers(), ChargedUsers()), (IDS, ChargedUsers()), (ChargedUsers(), IDS)])
@pytest.mark.parametrize("max_users", [1, 2, 1_000])
@pytest.mark.parametrize("interrupted", range(6))
def test_an_interrupted_run_creates_the_same_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: int, max_users: int, charged: tuple[ChargedUsers, ChargedUsers]
) -> None:
    """A failed attempt has counted no bytes, and the next attempt must not write any row twice, also if another user is charged then."""
    monkeypatch.setattr("sbus_archive.recorder.retention.MAX_USERS", max_users)
    host = Hosted(tmp_path, QUOTA)
    rows = [
        of(uid, message(0, payload=os.urandom(size))) for uid, size in ((CAROL, 10), (ALICE, 9_000), (BOB, 9_000), (ALICE, 10), (None, 0))
    ]
    rows += [of(FIRST + number, message(0, payload=os.urandom(5_000))) for number in (0, 0, 1, 1, 2)]
    rows += [of(BOB, message(0, ts=NOON + 3_600 * 10**9)), of(CAROL, message(0, ts=NOON + 3_600 * 10**9, payload=os.urandom(7_000)))]
    with monkeypatch.context() as patched:
        calls = itertools.count()

        def write(*given: object, **more: object) -> list[IndexEntry]:
            if next(calls) == interrupted:
                raise KeyError("killed")
            return write_segments(*given, **more)  # type: ignore[arg-type]

        patched.setattr("sbus_archive.recorder.converter.write_segments", write)
        retention = Retention(host.archive, "alpha", host.quota, 1e9)
        converter = Converter(host.archive, retention, host.log, clock=fixed_date(NOON), charged=charged[0].of)
        path = host.spooled(rows)
        converter.submit(path)
        converter.start()
        converter.close(60)
        assert path.exists() == (next(calls) - 1 == interrupted)
    if path.exists():
        # With another quota the decision would be another.
        host.quota = 1 << 40 if interrupted == 2 else 300_000
        retention = Retention(host.archive, "alpha", host.quota, 1e9)
        retention.load()
        again = Converter(host.archive, retention, host.log, clock=fixed_date(NOON), charged=charged[1].of)
        again.submit(path)
        again.start()
        assert again.close(60)
    assert [row.seq for row in recorded(host.archive)] == list(range(1, len(rows) + 1))
    assert last_seq(host.archive) == len(rows)


def last_seq(archive: Path) -> int:
    """Return the position that a restarted recorder finds in the index of alpha."""
    retention = Retention(archive, "alpha", 1 << 40, 1e9)
    retention.load()
    return retention.last_seq


def test_a_write_ahead_that_begins_with_a_row_of_a_user_apart(tmp_path: Path) -> None:
    host = Hosted(tmp_path, QUOTA)
    large = of(ALICE, message(0, payload=os.urandom(9_000)))
    host.write([large], [large, of(None, message(0)), of(BOB, message(0))], [large, large, of(BOB, message(0))])
    assert [row.seq for row in recorded(host.archive)] == list(range(1, 8))
    entries = RecordReader(host.archive).entries()
    assert [(entry.name.first_seq, entry.uid) for entry in entries] == [(1, ALICE), (2, ALICE), (3, None), (5, None), (6, ALICE)]
    assert last_seq(host.archive) == 7


def test_the_size_of_rows(tmp_path: Path) -> None:
    rows = [of(ALICE, message(1, key="k" * 50, payload=b"x" * 100)), of(BOB, Row(1, 2, "denial", reason="12345")), of(None, message(3))]
    assert bytes_by_user(with_charged(pa.Table.from_batches([batch_of(rows)]), int)) == {ALICE: ROW_BYTES + 150, BOB: ROW_BYTES + 5}
    assert bytes_by_user(with_charged(pa.Table.from_batches([batch_of([])]), int)) == {}


@pytest.mark.parametrize(
    ("own", "common", "users", "expected"),
    [(None, 0, 0, None), (None, 9, 1, None), ((2, 6), 6, 1, 2), ((2, 6), 7, 1, None), ((1, 5), 9, 2, 1), ((1, 5), 4, 0, 1)],
)
def test_the_users_with_the_most_rows(own: tuple[int, int] | None, common: int, users: int, expected: int | None) -> None:
    assert next_to_remove(own, common, users) == expected


@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(1, 120_000), min_size=1, max_size=4), max_size=60), st.booleans())
@settings(max_examples=examples(40))
def test_whatever_others_write_a_share_is_kept(files: list[dict[int, int]], restarts: bool) -> None:
    """A plain model: the rows that each user has written, and those that remain."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder)
        retention = Retention(archive, "alpha", QUOTA, 1e9)
        written, left, most = Counter[int](), Counter[int](), Counter[int]()
        users = len({uid for new in files for uid in new})
        kept: dict[str, Counter[int]] = {}
        for number, new in enumerate(files):
            written.update(new)
            left.update(new)
            separate = retention.separate_users(new)
            common = Counter({uid: size for uid, size in new.items() if uid not in separate})
            made = [(uid, Counter({uid: new[uid]})) for uid in sorted(separate)] + [(None, common)] * bool(common)
            for place, (uid, sizes) in enumerate(made):
                most.update({each: max(0, size - most[each]) for each, size in sizes.items()})
                name = SegmentName.at(NOON, "alpha", 100 * (number + 1) + place)
                shares = {} if uid is not None else {str(each): size for each, size in sizes.items()}
                size = sum(sizes.values())
                entry = IndexEntry(
                    name.path, name.date, name.hour, "alpha", 1, size, "", NOON + number, NOON + number, 1, 1, uid=uid, users=shares
                )
                kept[name.path] = sizes
                if restarts:
                    write_entry(archive, entry)
                else:
                    retention.add([entry])
            if restarts:
                retention = Retention(archive, "alpha", QUOTA, 1e9)
                retention.load()
            retention.prune(NOON, 0)
            for entry in RecordReader(archive).entries(removed=True):
                if entry.is_removed:
                    left.subtract(kept.pop(entry.path, Counter()))
            assert retention.bytes == sum(left.values()) <= QUOTA
            share = QUOTA // users - common_limit(QUOTA, users)
            for uid, size in written.items():
                assert left[uid] >= min(size, share - most[uid] * (size > share)), (uid, share)


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(-3, 3)), max_size=300))
def test_the_first_is_the_one_that_a_search_finds(changes: list[tuple[int, int | None]]) -> None:
    ranking: Ranking[int] = Ranking()
    numbers: dict[int, int] = {}
    for key, number in changes:
        if number is not None:
            numbers[key] = number
            ranking.put(key, number)
        elif key in numbers:
            del numbers[key]
            ranking.drop(key)
        else:
            with pytest.raises(KeyError):
                ranking.drop(key)
        assert ranking.first() == min(numbers, key=lambda each: (numbers[each], each), default=None)
        assert len(ranking) == len(numbers)


def test_outdated_entries_are_removed() -> None:
    ranking: Ranking[str] = Ranking()
    ranking.put("first", -1)
    for number in range(10_000):
        ranking.put("changing", number)
        assert len(ranking._items) <= 100
    assert ranking.first() == "first"


def test_the_limits_are_those_of_the_manual() -> None:
    size = 1 << 40
    assert common_limit(size, 1) == common_limit(size, FEW_USERS) == size // 128
    assert common_limit(size, 100) == size * 3 // 4 // 100 // 3
    assert (spool_limit(size, 1), spool_limit(size, size // 4)) == (size // 4, size // 2)
