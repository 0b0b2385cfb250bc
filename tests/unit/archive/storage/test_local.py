"""A directory as a store: files appear when they are complete."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest

from sbusd.archive.storage.local import LocalStore


def test_a_file_is_written_whole_and_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("index/x.json", io.BytesIO(b"content"))
    store.put("index/x.json", io.BytesIO(b"longer content"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x.json"]
    assert store.read("index/x.json", 6) == b"longer"
    assert store.digest("index/x.json") == (14, hashlib.sha256(b"longer content").hexdigest())
    assert (store.names("index"), store.is_folder(), store.is_folder("x"), store.exists("index/x.json")) == (["x.json"], True, False, True)
    assert (tmp_path / "index" / "x.json").stat().st_mode & 0o7777 == 0o640
    assert store.source("index/x.json") == store.path("index/x.json") == tmp_path / "index" / "x.json"


def test_a_deleted_file_takes_its_empty_directories_along(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in ("a/b/x", "a/y"):
        store.put(name, io.BytesIO(b"x"))
    store.delete("a/b/x")
    store.delete("a/b/x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "y"]
    with pytest.raises(FileNotFoundError):
        store.read("a/b/x", 1)
