"""The store of a location: a directory needs no client of PyArrow, and a process has its own clients."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from sbus_archive.storage.store import Content, DamagedCopyError, DifferentContentError, LocalStore, put_once, store_of
from tools.stage import ROOT

pytestmark = pytest.mark.slow

_PROGRAM = """
import sys
from pathlib import Path
from sbus_archive.record.index import list_index
assert list_index(Path(sys.argv[1])).names == ()
print(sorted(name for name in sys.modules if name.startswith("pyarrow")))
"""


def test_a_directory_is_read_without_pyarrow(tmp_path: Path) -> None:
    assert isinstance(store_of(tmp_path), LocalStore)
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


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


def content(value: bytes) -> Content:
    """Return the description of *value*."""
    return Content(len(value), hashlib.sha256(value).hexdigest())


class _Careless(LocalStore):
    """A store that damages the first copies of a file, or the first readings."""

    def __init__(self, root: Path, *, copies: int = 0, readings: int = 0) -> None:
        super().__init__(root)
        self.copies, self.readings = copies, readings

    def put(self, name: str, source: BinaryIO) -> None:
        self.copies -= 1
        super().put(name, io.BytesIO(b"other") if self.copies >= 0 else source)

    def digest(self, name: str) -> tuple[int, str]:
        size, digest = super().digest(name)
        self.readings -= 1
        return (size, digest) if self.readings < 0 else (size - 1, digest)


def test_a_file_is_written_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert put_once(store, "a/x", io.BytesIO(b"new"), Path("/origin"), content(b"new"))
    assert not put_once(store, "a/x", io.BytesIO(b""), Path("/origin"), content(b"new"))
    assert (tmp_path / "a" / "x").read_bytes() == b"new"


def test_other_content_is_refused_with_both_names(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old!")
    with pytest.raises(DifferentContentError) as caught:
        put_once(LocalStore(tmp_path), "x", io.BytesIO(b"new"), Path("/origin"), content(b"new"))
    assert str(caught.value) == f"{tmp_path}/x: exists with other content ({content(b'old!')}) than /origin ({content(b'new')})"
    assert (tmp_path / "x").read_bytes() == b"old!"


def test_the_rest_of_an_interrupted_write_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ne")
    assert put_once(LocalStore(tmp_path), "x", io.BytesIO(b"new"), Path("/origin"), content(b"new"), before_write=lambda: None)
    assert (tmp_path / "x").read_bytes() == b"new"


def test_each_write_can_be_refused(tmp_path: Path) -> None:
    left = [2]

    def before_write() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise FileExistsError("x")

    store = _Careless(tmp_path, copies=9)
    with pytest.raises(FileExistsError):
        put_once(store, "x", io.BytesIO(b"new"), Path("/origin"), content(b"new"), before_write=before_write)
    assert store.copies == 7


def test_a_damaged_copy_is_written_again(tmp_path: Path) -> None:
    assert put_once(_Careless(tmp_path, copies=2), "x", io.BytesIO(b"new"), Path("/origin"), content(b"new"))
    assert (tmp_path / "x").read_bytes() == b"new"
    with pytest.raises(DamagedCopyError, match=f"{tmp_path}/y: does not have the content that was written: 5 bytes"):
        put_once(_Careless(tmp_path, copies=9), "y", io.BytesIO(b"new"), Path("/origin"), content(b"new"))


def test_one_wrong_reading_is_not_other_content(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"new")
    assert not put_once(_Careless(tmp_path, readings=2), "x", io.BytesIO(b""), Path("/origin"), content(b"new"))
