"""Objects: the interface of a directory, by a client of PyArrow; here its local client replaces that of HDFS."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from sbus_archive.record.index import list_index, read_entry, read_index, segment_names
from sbus_archive.record.schema import SCHEMA, batch_of
from sbus_archive.record.segments import RecordReader, write_segments
from sbus_archive.storage import store as storage
from sbus_archive.storage.attempts import Attempts, StorageError, UnsupportedClientError
from sbus_archive.storage.files import RecordError, SegmentGoneError
from sbus_archive.storage.location import LocationError, RemotePath
from sbus_archive.storage.objects import ObjectClient, ObjectFile, ObjectStore, connect
from tests.support.records import NOON, message

ROOT = RemotePath("hdfs", "name-node", "srv/record")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which the store at ROOT keeps its files."""
    client = ObjectClient(
        lambda: fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()),
        "hdfs",
        "name-node",
        Attempts(lambda _: None, sleep=lambda _: None),
    )
    monkeypatch.setattr(storage, "_client", lambda *_: client)
    made = tmp_path / ROOT.key
    made.mkdir(parents=True)
    return made


def test_an_object_is_written_whole_and_read(folder: Path) -> None:
    store = storage.store_of(ROOT)
    assert isinstance(store, ObjectStore)
    store.put("index/x.json", io.BytesIO(b"old"))
    store.put("index/x.json", io.BytesIO(b"content"))
    assert (folder / "index" / "x.json").read_bytes() == b"content"
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["x.json"]
    assert store.read("index/x.json", 3) == b"con"
    assert store.digest("index/x.json") == (7, hashlib.sha256(b"content").hexdigest())
    assert (store.names("index"), store.exists("index/x.json"), store.exists("index")) == (["x.json"], True, False)
    assert (store.is_folder(), store.is_folder("index"), store.is_folder("date=1")) == (True, True, False)
    store.delete("index/x.json")
    store.delete("index/x.json")
    assert not store.exists("index/x.json")


def test_missing_objects_and_names_that_lead_out_are_errors(folder: Path) -> None:
    store = storage.store_of(ROOT)
    with pytest.raises(FileNotFoundError, match="no such object: 'hdfs://name-node/srv/record/x'"):
        store.read("x", 1)
    for name in ("../x", "/x", "a/%2e%2e/x"):
        with pytest.raises(LocationError):
            store.read(name, 1)
        with pytest.raises(LocationError):
            store.put(name, io.BytesIO(b"x"))


def test_a_remote_record_is_read_as_a_local_one(folder: Path) -> None:
    entries = write_segments(folder, "alpha", 1, pa.Table.from_batches([batch_of([message(1), message(2), message(3, key="c")])]))
    local, remote = RecordReader(folder), RecordReader(ROOT)
    assert remote.entries() == local.entries() == entries
    (entry,) = entries
    assert remote.read(entry).equals(local.read(entry))
    assert remote.read(entry, ["key", "host"]).equals(local.read(entry, ["key", "host"]))
    assert [*remote.read_batches(entry, 2)] == [*local.read_batches(entry, 2)]
    condition = pa.compute.field("key") == "c"
    for wanted in (condition, None):
        scans = ([*each.scan(entry, ["seq", "key"], wanted, 2)] for each in (remote, local))
        one, other = (pa.Table.from_batches(scan) for scan in scans)
        assert one.equals(other)
    assert remote.exists(entry)
    remote.verify(entry)
    assert segment_names(ROOT, list_index(ROOT)) == segment_names(folder, list_index(folder))


def test_damage_of_a_remote_record_is_reported_as_that_of_a_local_one(folder: Path) -> None:
    (entry,) = write_segments(folder, "alpha", 1, pa.Table.from_batches([batch_of([message(1)])]))
    path = folder / entry.path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    reader = RecordReader(ROOT)
    with pytest.raises(RecordError, match=rf"^{ROOT}/{entry.path}: checksum mismatch: the segment is damaged"):
        reader.verify(entry)
    with pytest.raises(RecordError, match="damaged segment"):
        reader.read(entry)
    path.unlink()
    assert not reader.exists(entry)
    for read in (reader.verify, reader.read, lambda entry: [*reader.scan(entry, ["seq"], None, 9)]):
        with pytest.raises(SegmentGoneError, match="missing, but named in the index"):
            read(entry)


def test_a_hostile_index_is_reported(folder: Path) -> None:
    (folder / "index").mkdir()
    hostile = f"{'2026-11-20'}T12.a b%2e%2e.{1:020}.json"
    (folder / "index" / hostile).write_text("{}")
    errors: list[RecordError] = []
    assert list(read_index(ROOT, errors.append)) == []
    assert segment_names(ROOT, list_index(ROOT), errors.append) == []
    assert [str(error) for error in errors] == [
        f"hdfs://name-node/srv/record/index/{hostile}: invalid index entry: the file name does not name a segment"
    ] * 2
    with pytest.raises(RecordError, match="does not name a segment"):
        list(read_index(ROOT))


def test_a_location_without_an_archive_is_an_error(folder: Path) -> None:
    assert list_index(ROOT).names == ()
    folder.rmdir()
    with pytest.raises(RecordError, match="not an archive: no such directory"):
        list_index(ROOT)
    with pytest.raises(RecordError, match="cannot read file: no such object"):
        read_entry(ROOT / "index" / "x.json")


class _Unreliable:
    """An object that returns too little, or nothing, now and then."""

    def __init__(self, content: bytes, bad: int) -> None:
        self.content, self.bad = content, bad

    def size(self) -> int:
        return len(self.content)

    def read_at(self, nbytes: int, offset: int) -> bytes:
        if self.bad:
            self.bad -= 1
            if self.bad % 2:
                raise OSError("AWS Error NETWORK_CONNECTION")
            return self.content[offset : offset + nbytes - 1]
        return self.content[offset : offset + nbytes]

    def close(self) -> None:
        self.bad = 0


def test_a_part_that_cannot_be_read_is_requested_again() -> None:
    attempts = Attempts(lambda _: None, sleep=lambda _: None)
    file = ObjectFile(_Unreliable(b"0123456789", 4), ROOT / "x", attempts)  # type: ignore[arg-type]
    assert (file.read(4), file.tell(), file.seek(-2, io.SEEK_END), file.read(), file.read()) == (b"0123", 4, 8, b"89", b"")
    assert attempts.retries == 4


def test_an_error_of_the_store_within_pyarrow_stays_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot be used is not a damaged segment, which a pipeline would leave out."""
    (entry,) = write_segments(folder, "alpha", 1, pa.Table.from_batches([batch_of([message(1, ts=NOON)])]))
    monkeypatch.setattr(ObjectFile, "_get", lambda *_: (_ for _ in ()).throw(OSError("AWS Error NETWORK_CONNECTION")))
    reader = RecordReader(ROOT)
    for read in (reader.read, reader.verify, lambda entry: [*reader.scan(entry, SCHEMA.names, None, 9)]):
        with pytest.raises(StorageError, match="cannot read: AWS Error NETWORK_CONNECTION"):
            read(entry)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"AWS_ENDPOINT_URL": "localhost:9000"}, "invalid AWS_ENDPOINT_URL: must have the form https://HOST:PORT"),
        ({"AWS_ENDPOINT_URL": "http://me:pass-word@localhost:9000"}, "without credentials"),
        ({"AWS_ACCESS_KEY_ID": "x"}, "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_an_invalid_environment_is_an_error(environ: dict[str, str], says: str) -> None:
    with pytest.raises(StorageError, match=r"^s3://bucket/: ") as caught:
        connect("s3", "bucket", environ)
    assert says in str(caught.value)
    assert "pass-word" not in str(caught.value)


def test_hdfs_without_its_library_is_an_error() -> None:
    with pytest.raises(StorageError, match=r"^hdfs://name-node:1/: cannot connect: "):
        connect("hdfs", "name-node:1", {})


@pytest.mark.parametrize(
    ("version", "newer"), [("17.0.0", {}), ("20.0.0.dev1", {}), ("21.0.0", {"allow_delayed_open": True, "tls_ca_file_path": None})]
)
def test_an_old_client_gets_only_what_it_knows(monkeypatch: pytest.MonkeyPatch, version: str, newer: dict[str, object]) -> None:
    passed: dict[str, object] = {}
    monkeypatch.setattr(pa, "__version__", version)
    monkeypatch.setattr(fs, "S3FileSystem", lambda **options: passed.update(options))
    connect("s3", "bucket", {"AWS_REGION": "x"})
    assert {name: value for name, value in passed.items() if name in ("allow_delayed_open", "tls_ca_file_path")} == newer
    if newer:
        connect("s3", "bucket", {"AWS_REGION": "x", "AWS_CA_BUNDLE": "/ca.pem"})
        assert passed["tls_ca_file_path"] == "/ca.pem"
        return
    with pytest.raises(UnsupportedClientError, match=rf"^s3://bucket/: AWS_CA_BUNDLE needs pyarrow 21 or later, not {version}\."):
        connect("s3", "bucket", {"AWS_REGION": "x", "AWS_CA_BUNDLE": "/ca.pem"})


def test_a_pyarrow_without_the_client_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_options: object) -> None:
        raise ImportError("not built with support for 'S3FileSystem'")

    monkeypatch.setattr(fs, "S3FileSystem", missing)
    with pytest.raises(UnsupportedClientError, match=r"^s3://bucket/: pyarrow .* has no client for s3: not built with support"):
        connect("s3", "bucket", {"AWS_REGION": "x"})


def test_the_name_of_an_object_does_not_change_its_content(folder: Path) -> None:
    """PyArrow would compress it."""
    store = storage.store_of(ROOT)
    for name in ("x.gz", "x.zst", "x.bz2", "x.lz4"):
        store.put(name, io.BytesIO(b"text"))
        assert ((folder / name).read_bytes(), store.read(name, 9)) == (b"text", b"text")
