"""Cache entries are made once, completely or not at all, and expire."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tools.packages import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sbusd"


def _make(path: Path) -> None:
    """Make something worth keeping."""
    path.mkdir()
    (path / "made").touch()


def _never(path: Path) -> None:
    pytest.fail("made again")


def test_it_is_made_once(folder: Path) -> None:
    first = cache.kept("thing", "a1", _make)
    assert first == folder / "thing-a1"
    assert (first / "made").exists()
    assert cache.kept("thing", "a1", _never) == first
    assert cache.kept("thing", "b2", _make) != first


def test_an_incomplete_entry_is_never_used(folder: Path) -> None:
    def fail(path: Path) -> None:
        _make(path)
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        cache.kept("thing", "a1", fail)
    assert [path.name for path in folder.iterdir()] == ["thing.lock"]
    _make(folder / "thing-a1.new")  # of a run that was killed
    assert (cache.kept("thing", "a1", _make) / "made").exists()


def test_only_the_last_used_of_a_name_are_kept(folder: Path) -> None:
    for age, digest in enumerate(["d4", "c3", "b2", "a1"]):
        os.utime(cache.kept("thing", digest, _make, limit=9), (1000.0 - age, 1000.0 - age))
    cache.kept("thing-other", "a1", _make)
    cache.kept("thing", "a1", _never, limit=2)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"thing-a1", "thing-d4", "thing-other-a1"}


def test_a_second_caller_waits_for_the_first() -> None:
    started, go = threading.Event(), threading.Event()
    found: list[Path] = []

    def slowly(path: Path) -> None:
        started.set()
        assert go.wait(30)
        _make(path)

    first = threading.Thread(target=lambda: found.append(cache.kept("thing", "a1", slowly)))
    second = threading.Thread(target=lambda: found.append(cache.kept("thing", "a1", _never)))
    first.start()
    assert started.wait(30)
    second.start()
    go.set()
    for thread in (first, second):
        thread.join(30)
    assert len(found) == 2
    assert found[0] == found[1]


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_folder() == Path.home() / ".cache/sbusd"
