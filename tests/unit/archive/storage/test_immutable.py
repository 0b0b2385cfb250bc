"""Files that never change: written once, read back, and never replaced by others."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import BinaryIO

import pytest

from sbusd.archive.storage.immutable import Content, DamagedCopyError, DifferentContentError, put_once
from sbusd.archive.storage.local import LocalStore


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
