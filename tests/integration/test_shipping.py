"""The program sbus-ship with an object store that fails: killed anywhere, the remote archive becomes equal, and is valid at any time."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sbus_archive.record.index import newer, read_index, write_entry
from sbus_archive.record.layout import HOUR_NS, IndexEntry
from tests.support import skips
from tests.support.object_stores import BUCKET, SECRET, FaultyProxy, ObjectServer
from tests.support.records import NOON, message
from tests.support.traffic import GrowingRecord, deliver
from tools.stage import ROOT

_SECONDS = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """An object store."""
    with ObjectServer(tmp_path_factory.mktemp("server")) as made:
        yield made


class Host:
    """A host with an archive and a shipper, which ships to the prefix *prefix*."""

    def __init__(self, folder: Path, prefix: str, name: str = "alpha", **settings: str) -> None:
        self.folder, self.prefix, self.name = folder, prefix, name
        self.archive = folder / "archive"
        self.archive.mkdir(parents=True)
        self.settings = {
            "destination": f"s3://{BUCKET}/{prefix}", "archive": str(self.archive), "host": name, "state": str(folder / "state"),
            "interval": "1s", **settings,
        }  # fmt: skip

    def start(self, environment: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
        """Start the program."""
        config = self.folder / "ship.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in self.settings.items()))
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "sbus_archive.shipping.main", "--config", str(config), *options],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def ship(self, environment: Mapping[str, str], *options: str) -> tuple[int, str]:
        """Run the program once; return its status and output."""
        process = self.start(environment, *(options or ("--once",)))
        said, _ = process.communicate(timeout=_SECONDS)
        assert SECRET not in said
        return process.returncode, said

    def is_listed(self, count: int) -> bool:
        """Return whether the list of shipped segments has at least *count* segments."""
        path = self.folder / "state" / "shipped"
        return path.exists() and path.read_bytes().count(b"\n") > count


def wait(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for *condition* while *process* runs."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def entries_in(contents: Mapping[str, bytes]) -> dict[str, IndexEntry]:
    """Return the index entries in *contents* by the paths of their segments: those of day files, then those with a file of their own."""
    found: dict[str, IndexEntry] = {}
    for name in sorted(contents, key=lambda name: not name.startswith("index/days/")):
        lines = gzip.decompress(contents[name]) if name.endswith(".jsonl.gz") else contents[name]
        if name.startswith("index/"):
            for line in lines.decode().splitlines():
                entry = IndexEntry.from_json(line)
                found[entry.path] = newer(found.get(entry.path), entry)
    return found


def check_valid(contents: Mapping[str, bytes]) -> int:
    """Check that each index entry has its segment; return the number of entries."""
    entries = entries_in(contents)
    for entry in entries.values():
        if not entry.is_removed:
            content = contents[entry.path]
            assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.bytes, entry.sha256)
    return len(entries)


def archived(contents: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, IndexEntry]]:
    """Return the segments in *contents*, and the index entries, whether merged or not."""
    return {name: content for name, content in contents.items() if name.startswith("date=")}, entries_in(contents)


def local(host: Host) -> dict[str, bytes]:
    """Return the files of the archive of *host*."""
    return {str(path.relative_to(host.archive)): path.read_bytes() for path in host.archive.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", [1])
def test_killed_anywhere_the_remote_archive_is_valid_and_becomes_equal(server: ObjectServer, tmp_path: Path, seed: int) -> None:
    """Six kills at random requests; ``make chaos-pipeline`` has more."""
    chance = random.Random(seed)
    host = Host(tmp_path / "alpha", f"kills/{seed}")
    rows = GrowingRecord(seed).fill(600)
    batches = [rows[start : start + 20] for start in range(0, len(rows), 20)]
    with FaultyProxy(server.port, seed=seed, chance=0.1) as proxy:
        kills = 0
        for number, batch in enumerate(batches):
            deliver(host.archive, "alpha", batch)
            if number % 5 == 4:
                process = host.start(proxy.environment())
                begun = proxy.requests
                wanted = begun + chance.randrange(1, 60)
                wait(lambda wanted=wanted, number=number: proxy.requests >= wanted or host.is_listed(number), process)  # type: ignore[misc]
                process.kill()
                said, _ = process.communicate(timeout=60)
                assert process.returncode == -signal.SIGKILL, said
                kills += 1
                check_valid(server.contents(host.prefix))
        assert kills == len(batches) // 5 > 4
        process = host.start(proxy.environment())
        shipped = {name for name in local(host) if name.startswith("index/")}
        wait(lambda: host.is_listed(len(shipped)), process)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=_SECONDS)
        assert process.returncode == 0, said
        assert proxy.made
    assert SECRET not in said
    contents = server.contents(host.prefix)
    assert check_valid(contents) == len(shipped)
    assert archived(contents) == archived(local(host))
    assert (tmp_path / "alpha" / "state" / "shipped").stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "alpha" / "state").stat().st_mode & 0o007 == 0
    # A lost list is harmless with --claim, and refused without it.
    (tmp_path / "alpha" / "state" / "shipped").unlink()
    status, said = host.ship(server_environment(server))
    assert (status, "run sbus-ship --claim once" in said) == (os.EX_CONFIG, True), said
    status, said = host.ship(server_environment(server), "--claim")
    assert (status, said.splitlines()[-1]) == (0, f"claimed host alpha in s3://{BUCKET}/{host.prefix}")
    assert not host.is_listed(1)
    status, said = host.ship(server_environment(server))
    assert (status, "0 segments with 0 bytes shipped, 0 waiting" in said) == (0, True), said
    assert archived(server.contents(host.prefix)) == archived(local(host))


def server_environment(server: ObjectServer) -> dict[str, str]:
    """Return the variables of a client of the server itself."""
    from tests.support.object_stores import environment

    return environment(server.port)


def test_two_hosts_share_a_destination_but_not_a_name(server: ObjectServer, tmp_path: Path) -> None:
    alpha, beta = Host(tmp_path / "a", "two"), Host(tmp_path / "b", "two", "beta")
    deliver(alpha.archive, "alpha", [message(1)])
    deliver(alpha.archive, "gamma", [message(1)])  # another host's segment in a shared archive: not shipped
    deliver(beta.archive, "beta", [message(1), message(2)])
    for host in (alpha, beta):
        status, said = host.ship(server_environment(server))
        assert status == 0, said
    contents = server.contents("two")
    assert check_valid(contents) == 2
    assert not [name for name in contents if "gamma" in name]
    impostor = Host(tmp_path / "c", "two")
    deliver(impostor.archive, "alpha", [message(7, ts=NOON + HOUR_NS)])
    status, said = impostor.ship(server_environment(server))
    assert status == os.EX_CONFIG
    assert f"s3://{BUCKET}/two/hosts/alpha.json: host alpha belongs to machine " in said
    assert f"with archive {alpha.archive}, id " in said
    assert f"; this is machine {os.uname().nodename} with archive {impostor.archive}, id " in said
    assert server.contents("two") == contents
    # With the same list, as of a cloned machine, the segments differ.
    clone = Host(tmp_path / "d", "two")
    deliver(clone.archive, "alpha", [message(1, payload=b"another")])
    (clone.folder / "state").mkdir(mode=0o750)
    header = (alpha.folder / "state" / "shipped").read_bytes().splitlines()[0]
    (clone.folder / "state" / "shipped").write_bytes(header + b"\n")
    status, said = clone.ship(server_environment(server))
    assert status == os.EX_CONFIG
    (entry,) = read_index(clone.archive)
    assert f"s3://{BUCKET}/two/{entry.path}: exists with other content (" in said
    assert f") than {clone.archive}/{entry.path} (" in said
    assert server.contents("two") == contents


def test_what_the_recorder_removed_stays_remote_and_what_expires_remote_stays_local(server: ObjectServer, tmp_path: Path) -> None:
    host = Host(tmp_path / "a", "expiry")
    now = time.time_ns() // HOUR_NS * HOUR_NS
    first, second = message(1, ts=now - 50 * HOUR_NS), message(2, ts=now)
    deliver(host.archive, "alpha", [first])
    deliver(host.archive, "alpha", [second])
    assert host.ship(server_environment(server))[0] == 0
    old, new = read_index(host.archive)
    before = archived(server.contents("expiry"))
    # The recorder removes the second, and a third before it is shipped.
    from dataclasses import replace

    write_entry(host.archive, replace(new, removed_at=now, removed_because="retention"))
    (host.archive / new.path).unlink()
    deliver(host.archive, "alpha", [message(3, ts=now)])
    third = next(entry for entry in read_index(host.archive) if entry.first_seq == 3)
    write_entry(host.archive, replace(third, removed_at=time.time_ns(), removed_because="quota"))
    (host.archive / third.path).unlink()
    status, said = host.ship(server_environment(server))
    assert status == 0
    assert f"cannot ship {Path(third.name.index_path).name}: the recorder removed the segment before it was shipped; lost so far: 1" in said
    assert archived(server.contents("expiry")) == before
    # Another host's segments, and those that are not old enough, are left alone by the remote retention.
    other = Host(tmp_path / "b", "expiry", "beta")
    deliver(other.archive, "beta", [message(1, ts=now - 50 * HOUR_NS)])
    assert other.ship(server_environment(server))[0] == 0
    host.settings["retention"] = "1d"
    status, said = host.ship(server_environment(server))
    assert (status, f"removed 1 segments from the destination, the last is {old.path}" in said) == (0, True), said
    contents = server.contents("expiry")
    assert old.path not in contents
    assert entries_in(contents)[old.path].removed_because == "retention"
    assert contents[new.path] == before[0][new.path]
    assert check_valid(contents) == 3
    assert (host.archive / old.path).exists()
    assert host.ship(server_environment(server))[0] == 0
    assert server.contents("expiry") == contents


def test_damaged_and_hostile_segments_are_skipped_and_the_rest_is_shipped(server: ObjectServer, tmp_path: Path) -> None:
    host = Host(tmp_path / "a", "hostile")
    for seq in (1, 2, 3, 4):
        deliver(host.archive, "alpha", [message(seq)])
    damaged, linked, renamed, good = read_index(host.archive)
    content = (host.archive / damaged.path).read_bytes()
    (host.archive / damaged.path).write_bytes(content[:-1] + b"\0")
    shutil.move(host.archive / linked.path, tmp_path / "elsewhere.parquet")
    (host.archive / linked.path).symlink_to(tmp_path / "elsewhere.parquet")
    for path in ("../../outside.parquet", "/etc/passwd", good.path):
        fields = {**json.loads(renamed.to_json()), "path": path}
        (host.archive / renamed.name.index_path).write_text(json.dumps(fields))
        status, said = host.ship(server_environment(server))
        assert status == 1
        assert "skipped a segment that cannot be shipped: " in said
        assert said.splitlines()[-1] == f"sbus-ship: {host.archive}: damaged segments that were not shipped: 3"
    segments, entries = archived(server.contents("hostile"))
    assert [*segments, *entries] == [good.path, good.path]


def test_an_outage_is_survived_and_counted(server: ObjectServer, tmp_path: Path) -> None:
    host = Host(tmp_path / "a", "outage")
    deliver(host.archive, "alpha", [message(1)])
    with FaultyProxy(server.port, chance=1.0, faults=("error", "reset")) as proxy:
        status, said = host.ship(proxy.environment())
        assert status == 1
        assert "failed to ship: " in said
        assert "sbus-ship: retried to read " in said
        assert len(said.splitlines()) < 20
        process = host.start(proxy.environment())
        begun = proxy.requests
        wait(lambda: proxy.requests > begun + 8, process)
        proxy.chance = 0.0
        wait(lambda: host.is_listed(1), process)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=_SECONDS)
        assert process.returncode == 0, said
    assert check_valid(server.contents("outage")) == 1


@pytest.mark.parametrize(
    ("settings", "variables", "status", "says"),
    [
        ({"destination": ""}, {}, 78, "no destination: set destination in ship.toml"),
        ({"destination": "s3://key:pass-word@bucket/x"}, {}, 78, "a URL must not contain credentials"),
        ({"destination": "relative"}, {}, 78, "must be an absolute path or a URL"),
        ({"retention": "-1d"}, {}, 78, "retention"),
        ({"host": "a/b"}, {}, 78, "invalid host name"),
        ({}, {"AWS_SECRET_ACCESS_KEY": ""}, 1, "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ({"destination": "s3://no-such-bucket/x"}, {}, 1, "s3://no-such-bucket/x/hosts/alpha.json: cannot write: "),
        ({"archive": "/nowhere"}, {}, 1, "/nowhere: not an archive: no such directory"),
    ],
)
def test_errors_are_one_line(
    server: ObjectServer, tmp_path: Path, *, settings: dict[str, str], variables: dict[str, str], status: int, says: str
) -> None:
    host = Host(tmp_path / "a", "errors", **settings)
    found, said = host.ship({**server_environment(server), **variables})
    assert found == status, said
    last = said.splitlines()[-1]
    assert last.startswith("sbus-ship: ")
    assert says in last
    assert "pass-word" not in said
    assert "Traceback" not in said


def test_only_one_shipper_uses_a_state(server: ObjectServer, tmp_path: Path) -> None:
    host = Host(tmp_path / "a", "lock")
    deliver(host.archive, "alpha", [message(1)])
    process = host.start(server_environment(server))
    wait(lambda: host.is_listed(1), process)
    status, said = host.ship(server_environment(server))
    assert status == 1
    assert f"{tmp_path}/a/state: in use by another sbus-ship, process {process.pid}" in said
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=_SECONDS)
    endpoint = server_environment(server)["AWS_ENDPOINT_URL"]
    host.settings["destination"] = f"s3://{BUCKET}/elsewhere"
    status, said = host.ship(server_environment(server))
    assert status == os.EX_CONFIG
    assert (
        f"lists what was shipped to s3://{BUCKET}/lock at {endpoint} as host alpha, not to s3://{BUCKET}/elsewhere at {endpoint} as host"
        in said
    )


def test_a_directory_is_a_destination_too(tmp_path: Path) -> None:
    host = Host(tmp_path / "a", "", destination=str(tmp_path / "mounted"))
    deliver(host.archive, "alpha", [message(1)])
    status, said = host.ship({})
    assert status == 0, said
    found = {str(path.relative_to(tmp_path / "mounted")): path.read_bytes() for path in (tmp_path / "mounted").rglob("*") if path.is_file()}
    assert archived(found) == archived(local(host))


def test_a_destination_that_became_another_one_is_noticed(tmp_path: Path) -> None:
    host = Host(tmp_path / "a", "", destination=str(tmp_path / "mounted"))
    deliver(host.archive, "alpha", [message(1)])
    assert host.ship({})[0] == 0
    shutil.move(tmp_path / "mounted", tmp_path / "unmounted")
    deliver(host.archive, "alpha", [message(2)])
    status, said = host.ship({})
    assert status == os.EX_CONFIG
    assert f"{tmp_path}/mounted/hosts/alpha.json: missing, although 1 segments are listed as shipped" in said
    assert not (tmp_path / "mounted").exists()


def test_the_host_of_the_recorder_is_shipped(tmp_path: Path) -> None:
    host = Host(tmp_path / "a", "", destination=str(tmp_path / "mounted"))
    deliver(host.archive, "gamma", [message(1)])
    del host.settings["host"]
    (host.folder / "recorder.toml").write_text('host = "gamma"\n')
    status, said = host.ship({})
    assert (status, "1 segments with " in said) == (0, True), said


def test_without_pyarrow_an_administrator_must_act(tmp_path: Path) -> None:
    host = Host(tmp_path / "a", "", destination=str(tmp_path / "mounted"))
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError('pyarrow')\n")
    status, said = host.ship({"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert status == os.EX_CONFIG
    assert said.startswith("sbus-ship: pyarrow is not installed. Install it with: ")


def test_another_user_is_refused(tmp_path: Path) -> None:
    skips.require_root()
    host = Host(tmp_path / "a", "", destination=str(tmp_path / "mounted"))
    (host.folder / "state").mkdir(mode=0o750)
    os.chown(host.folder / "state", 65534, 65534)
    status, said = host.ship({}, "--claim")
    assert status == os.EX_CONFIG
    assert f"{host.folder}/state: owned by user " in said
    assert list((host.folder / "state").iterdir()) == []
