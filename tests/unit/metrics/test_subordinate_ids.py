"""Users with an account come before the ids of containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.metrics.subordinate_ids import accounts_first, subordinate_ids


def test_the_ids_of_containers_come_last(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text("alice:100000:65536\nbob:165536:65536\n")
    uids = [100_000, 1_668_800_500, 165_536, 1_000, 231_071, 231_072]
    assert accounts_first(uids, subordinate_ids(file)) == [1_000, 231_072, 1_668_800_500, 100_000, 165_536, 231_071]


@pytest.mark.parametrize("text", ["", "\n", "alice\n", "alice:1\n", "alice:x:1\n", "alice:1:-1\n", "alice::\n", "alice:²:1\n"])
def test_a_line_without_a_range_has_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "subuid"
    file.write_text(text)
    assert not any(map(subordinate_ids(file), range(5)))


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert not subordinate_ids(tmp_path / "none")(100_000)
