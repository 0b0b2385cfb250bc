"""The list of shipped segments: durable lines, of which an incomplete one does not count, for one destination and host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbus_archive.record.shipped import ListHeader, ListWriter, OtherDestinationError, ShippedList
from sbus_archive.storage.files import RecordError

HEADER = ListHeader("s3://bucket/x", "alpha", "1" * 32)


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "shipped"
    writer = ListWriter(path, HEADER)
    reader = ShippedList(path)
    reader.refresh()
    assert len(reader) == 0
    for name in ("a.json", "b.json"):
        writer.add(name)
    reader.refresh()
    assert ("a.json" in reader, "b.json" in reader, "c.json" in reader, len(reader)) == (True, True, False, 2)
    writer.close()
    again = ListWriter(path, ListHeader(HEADER.destination, HEADER.host, "2" * 32))
    assert (again.header, "b.json" in again) == (HEADER, True)
    again.close()
    assert path.stat().st_mode & 0o7777 == 0o640


def test_the_first_line_survives_encoding_and_older_ones_are_read() -> None:
    header = ListHeader("s3://bucket/x", "alpha", "1", "https://store", 17)
    assert ListHeader.from_line(header.to_line()) == header
    assert ListHeader.from_line(b'{"version": 1, "host": "a", "destination": "/b", "id": "c"}\n') == ListHeader("/b", "a", "c")


def test_an_incomplete_line_does_not_count_and_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "shipped"
    path.write_bytes(HEADER.to_line() + b"a.json\nb.js")
    reader = ShippedList(path)
    reader.refresh()
    assert len(reader) == 1
    writer = ListWriter(path, HEADER)
    writer.add("c.json")
    writer.close()
    assert path.read_bytes() == HEADER.to_line() + b"a.json\nc.json\n"
    reader.refresh()
    assert ("c.json" in reader, len(reader)) == (True, 2)


def test_a_new_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "shipped"
    path.write_bytes(HEADER.to_line() + b"a.json\n")
    reader = ShippedList(path)
    reader.refresh()
    (tmp_path / "new").write_bytes(HEADER.to_line() + b"b.json\n")
    os.replace(tmp_path / "new", path)
    reader.refresh()
    assert ("a.json" in reader, "b.json" in reader) == (False, True)


def test_a_list_for_another_destination_or_host_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shipped"
    ListWriter(path, HEADER).close()
    for destination, endpoint, host, shown in (
        ("s3://other/x", "", "alpha", "s3://other/x as host alpha"),
        ("s3://bucket/x", "", "beta", "s3://bucket/x as host beta"),
        ("s3://bucket/x", "https://store", "alpha", "s3://bucket/x at https://store as host alpha"),
    ):
        with pytest.raises(OtherDestinationError) as caught:
            ListWriter(path, ListHeader(destination, host, "3" * 32, endpoint))
        assert str(caught.value) == (
            f"{path}: lists what was shipped to s3://bucket/x as host alpha, not to {shown}."
            " Move it away to ship all segments again; see sbus-ship(8)"
        )
    path.write_bytes(ListHeader("s3://bucket/x", "alpha", "1", "https://store/").to_line())
    ListWriter(path, ListHeader("s3://bucket/x", "alpha", "2", "https://store")).close()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x\n",
        b"[]\n",
        b'{"version": 2}\n',
        b'{"version": 1, "host": "a"}\n',
        b"[" * 9_000,
    ],
)
def test_a_damaged_first_line_is_an_error(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "shipped").write_bytes(line)
    with pytest.raises(RecordError, match="damaged list of shipped segments: the first line"):
        ShippedList(tmp_path / "shipped").refresh()


def test_a_missing_list_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ShippedList(tmp_path / "shipped").refresh()
