"""Tables in a directory and in an object store: readers see whole publications, of writers that are killed at any moment too."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sbus_archive.storage import store as store_module
from sbus_archive.storage.files import TablesError
from sbus_archive.storage.location import ArchivePath, RemotePath, table_uri
from sbus_archive.tables.delta import storage_options
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.schema import RELAY, USERS
from sbus_archive.tables.storage import open_published, read_tables
from tests.support.object_stores import BUCKET, SECRET, FaultyProxy, ObjectServer, environment, without_retries
from tests.support.published_tables import publish_record_at
from tests.support.records import message
from tests.support.table_versions import HOUR, LATER, open_writer, publish_version, replace_version
from tools.stage import ROOT

_SECONDS = 240.0

_KILLS = 4
"""Kills at random moments. test_publication.py lets a writer die before and after each of its commits; ``make chaos-pipeline`` has more."""

_VERSIONS = 10
"""Publications that a reader observes: each fourth one also merges the log and removes old files, so both happen twice."""

_WRITER = """
import sys
from sbus_archive.tables import delta
from sbus_archive.storage.location import parse_tables_location
from tests.support.table_versions import publish_version

delta.COMMITS = 4
root, first, last = parse_tables_location(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for number in range(first, last):
    publish_version(root, number)
"""
"""Publishes versions, each of which replaces the one before in two hours of two tables."""


_RIVALS = """
import sys
from deltalake import DeltaTable
from sbus_archive.storage.files import TablesError
from sbus_archive.storage.location import parse_tables_location
from sbus_archive.tables.schema import USERS
from tests.support.table_versions import HOUR, open_writer, publish_version, replace_version

def replace(writer, number):
    try:
        replace_version(writer, USERS, [HOUR], number)
    except TablesError as error:
        print(error)

root = parse_tables_location(sys.argv[1])
publish_version(root, 1)
first, second = open_writer(root), open_writer(root)
replace(first, 5)
replace(second, 6)
third = open_writer(root)
DeltaTable.history = lambda *_: [{}]  # another program has replaced the commit in the same moment
replace(third, 7)
"""
"""Two writers that opened the tables at the same time, and one whose commit is replaced; prints their errors."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """An object store; this process is its client too."""
    with ObjectServer(tmp_path_factory.mktemp("store")) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(found.port).items():
            patch.setenv(name, value)
        store_module._client.cache_clear()
        yield found
    store_module._client.cache_clear()


@pytest.fixture(params=["directory", "object store"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> ArchivePath:
    """Where the tables are."""
    if request.param == "directory":
        return tmp_path / "tables"
    request.getfixturevalue("store")
    return RemotePath("s3", BUCKET, tmp_path.name)


def writer(location: ArchivePath, first: int, last: int, **variables: str) -> subprocess.Popen[str]:
    """Start a program that publishes versions."""
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(location), str(first), str(last)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


def version_of(location: ArchivePath) -> int:
    """Return the version that a reader sees; it is whole."""
    found = read_tables(location, names=["users", "relay"])
    users, relay = (found.tables[table.name].column(table.names[-1]).to_pylist() for table in (USERS, RELAY))
    (number,) = {manifest.made for manifest in found.manifests.values()}
    assert (users, relay, len(found.manifests)) == ([number] * 2, [number] * (2 if number == 1 else 1), 2)
    return number


def test_readers_during_publications_see_one_version_after_another(location: ArchivePath) -> None:
    publish_version(location, 1)
    seen = []
    with writer(location, 2, _VERSIONS + 2) as process:
        while process.poll() is None:
            seen.append(version_of(location))
        assert process.returncode == 0, process.stderr and process.stderr.read()
    seen.append(version_of(location))
    assert seen == sorted(seen)
    assert seen[-1] == _VERSIONS + 1


@pytest.mark.parametrize("seed", [1])
def test_writers_that_are_killed_at_any_moment_leave_a_whole_version(location: ArchivePath, seed: int) -> None:
    chance = random.Random(seed)
    publish_version(location, 1)
    killed, version = 0, 1
    for _ in range(_KILLS):
        with writer(location, version + 1, 1_000) as process:
            deadline = time.monotonic() + _SECONDS
            while version_of(location) == version:  # until it has published something
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
            time.sleep(chance.random() * 0.3)
            process.kill()
            killed += process.wait() == -signal.SIGKILL
        found = version_of(location)
        assert found > version
        version = found
    assert killed == _KILLS
    publish_version(location, version + 1)
    assert version_of(location) == version + 1


def test_of_two_writers_one_gets_an_error(location: ArchivePath) -> None:
    publish_version(location, 1)
    first, second = open_writer(location), open_writer(location)
    replace_version(first, USERS, [HOUR], 5)
    with pytest.raises(TablesError, match="another program has changed the table during this run"):
        replace_version(second, USERS, [LATER], 6)
    assert version_of(location) == 1


def test_a_store_that_ignores_conditions_loses_no_commit(store: ObjectServer, tmp_path: Path) -> None:
    """The second of two writers would replace the commit of the first one, or lose its own without notice."""
    location = f"s3://{BUCKET}/{tmp_path.name}"
    with FaultyProxy(store.port, chance=1.0, faults=("unconditional",)) as proxy:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **proxy.environment()}
        command = [sys.executable, "-c", _RIVALS, location]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=_SECONDS, check=False)
        assert proxy.made["unconditional"] > 0
    first, second = done.stdout.splitlines() or [done.stderr, ""]
    assert "another program has changed the table during this run" in first
    assert "the server ignores If-None-Match" in second


def test_writers_at_the_same_time_never_mix_their_rows(location: ArchivePath) -> None:
    """Without a lock, as two machines with one object store: each ends, or reports a conflict."""
    publish_version(location, 1)
    processes = [writer(location, first, first + 4) for first in (100, 200, 300)]
    while any(process.poll() is None for process in processes):
        version_of(location)
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0 or "another program has changed the table during this run" in errors, errors
    last = version_of(location)
    publish_version(location, 400)
    assert last in {1, *range(100, 304)}  # they may all be in conflict
    assert version_of(location) == 400


def test_an_earlier_version_can_be_read_for_a_day(location: ArchivePath) -> None:
    publish_version(location, 1)
    before = open_published(location).version_of("users")
    for number in range(3, 8):
        publish_version(location, number)
    old = DeltaTable(table_uri(location, "users"), version=before, storage_options=storage_options(location))
    assert pa.table(old.get_add_actions(flatten=True)).column("max.lost").to_pylist() == [1, 1]
    (found,) = {path for path in old.file_uris() if f"hour={HOUR.hour}/" in path}
    assert found.endswith(".parquet")


def test_a_report_is_made_of_tables_in_an_object_store(store: ObjectServer, tmp_path: Path) -> None:
    location = f"s3://{BUCKET}/{tmp_path.name}"
    publish_record_at(RemotePath("s3", BUCKET, tmp_path.name), tmp_path, {"alpha": [message(1)]})
    command = [sys.executable, "-m", "sbusctl.main", "report", "--tables"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, location], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, without_retries(done.stderr)) == (0, "")
    assert (tmp_path / "sbus-report.html").read_text().startswith("<!doctype html>")
    done = subprocess.run([*command, f"{location}/x"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert without_retries(done.stderr) == f"sbusctl: {location}/x: no tables found. Run: sbusctl report --now\n"


def test_an_object_store_that_does_not_respond_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(9).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TablesError, match=rf"s3://{BUCKET}/x/hours: cannot read table: ") as caught:
        read_tables(RemotePath("s3", BUCKET, "x"))
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_an_unknown_bucket_is_one_line(store: ObjectServer) -> None:
    with pytest.raises(TablesError) as caught:
        TableWriter(RemotePath("s3", "unknown", "x"))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("s3://unknown/x/hours: cannot ")


def test_nothing_in_the_store_are_no_tables(store: ObjectServer) -> None:
    with pytest.raises(TablesError, match=rf"s3://{BUCKET}/nothing: no tables found"):
        read_tables(RemotePath("s3", BUCKET, "nothing"))


def test_a_store_that_fails_now_and_then_never_has_a_part_of_a_version(store: ObjectServer) -> None:
    """Most failures are repeated; a writer that gives up leaves the version before or a whole one, and the next run continues."""
    location = RemotePath("s3", BUCKET, "faulty")
    publish_version(location, 1)
    published = 0
    # The proxy is in this process: a call of the library that holds the interpreter's lock would wait for it.
    with FaultyProxy(store.port, seed=3, chance=0.1) as proxy:
        for number in range(2, 8):
            before = version_of(location)
            with writer(location, number, number + 1, **proxy.environment()) as process:
                _, errors = process.communicate(timeout=_SECONDS)
            assert process.returncode == 0 or "Error: s3://" in errors, errors
            published += process.returncode == 0
            assert version_of(location) in ({number} if process.returncode == 0 else {before, number})
    assert published >= 3
    assert sum(proxy.made.values()) > 0
