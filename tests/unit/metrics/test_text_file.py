"""The file for node_exporter."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sbusd.metrics.text_file import TextFileError, check_name, replace


def test_the_file_is_replaced_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "sbus.prom"
    replace(path, b"one\n")
    before = path.stat()
    replace(path, b"two\n")
    assert (path.read_bytes(), path.stat().st_mode & 0o777, os.listdir(tmp_path)) == (b"two\n", 0o644, ["sbus.prom"])
    assert path.stat().st_ino != before.st_ino


def test_after_an_error_the_file_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sbus.prom"
    replace(path, b"one\n")

    def fail(*_: object) -> None:
        assert sorted(os.listdir(tmp_path))[-1] == "sbus.prom"
        assert [name for name in os.listdir(tmp_path) if name.endswith(".prom")] == ["sbus.prom"]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sbusd.metrics.text_file.os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        replace(path, b"two\n")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"one\n", ["sbus.prom"])


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "no" / "a.prom"))):
        replace(tmp_path / "no" / "a.prom", b"")


def test_node_exporter_would_not_read_another_name() -> None:
    with pytest.raises(TextFileError, match=r"a\.txt: node_exporter reads only files whose names end with \.prom"):
        check_name(Path("a.txt"))
    check_name(Path("/x/a.prom"))
