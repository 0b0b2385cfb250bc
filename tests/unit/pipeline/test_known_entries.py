"""Index entries are known once, whatever their names, and after a kill at any byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbusd.pipeline.known_entries import KNOWN_ENTRIES, KnownEntries

NAMES = ["2026-11-20T12.alpha.00000000000000000001.json", "2026-11-20T12.a\nb\udcff.json", '2026-11-20T13."é\u2028".json']


def test_names_are_known_after_they_were_added(tmp_path: Path) -> None:
    path = tmp_path / KNOWN_ENTRIES
    known = KnownEntries(tmp_path)
    assert known.new_among(NAMES) == NAMES
    known.add(NAMES[:2])
    assert known.new_among(NAMES) == NAMES[2:]
    KnownEntries(tmp_path).add(NAMES[2:])
    assert KnownEntries(tmp_path).new_among(NAMES) == []
    assert path.read_bytes().count(b"\n") == len(NAMES)
    assert path.stat().st_mode & 0o137 == 0


def test_nothing_is_written_without_news(tmp_path: Path) -> None:
    KnownEntries(tmp_path).add([])
    assert not (tmp_path / KNOWN_ENTRIES).exists()


def test_all_names_can_be_forgotten(tmp_path: Path) -> None:
    known = KnownEntries(tmp_path)
    known.forget()
    known.add(NAMES)
    known.forget()
    assert known.new_among(NAMES) == KnownEntries(tmp_path).new_among(NAMES) == NAMES


@pytest.mark.parametrize("lost", range(1, 60))
def test_a_line_that_was_cut_names_no_entry(tmp_path: Path, lost: int) -> None:
    """Names before it stay known; the next run adds the others again."""
    path = tmp_path / KNOWN_ENTRIES
    KnownEntries(tmp_path).add(NAMES)
    content = path.read_bytes()
    path.write_bytes(content[:-lost])
    known = KnownEntries(tmp_path)
    missing = known.new_among(NAMES)
    assert missing == [name for name in NAMES if json.dumps(name).encode() not in content[:-lost].split(b"\n")]
    known.add(missing)
    assert KnownEntries(tmp_path).new_among(NAMES) == []
