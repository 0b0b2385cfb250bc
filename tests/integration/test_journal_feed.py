"""The journal feed as a program: real journal files, a real bus, two real users."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.journals import JournalFolder
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code
from tools.stage import ROOT, Stage

pytestmark = pytest.mark.usefixtures("needs_root")

READERS = FIRST.groups[0]
"""A group with the first test user and without the second, in place of systemd-journal."""


SHARES_BUS = True


class Feed:
    """A running feed, with a socket in place of the service manager's."""

    def __init__(self, folder: Path, number: int, *options: str) -> None:
        self.errors = folder / f"feed-stderr{number}"
        self.expected_status = 0
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / f"notify{number}"))
        self.manager.settimeout(30)
        with self.errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", "from sbus_services.feeds.main import main; main()", "journal", *options],
                env={**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(folder / f"notify{number}")},
                cwd="/",
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def wait_ready(self) -> None:
        assert self.manager.recv(4096).startswith(b"READY=1\nSTATUS=")

    @property
    def stderr(self) -> str:
        return self.errors.read_text()

    def end(self, signal_number: int = signal.SIGTERM) -> int:
        """Stop it and return its status; may be called repeatedly."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(30)
        finally:
            self.manager.close()


@pytest.fixture
def files(folder: Path) -> JournalFolder:
    made = JournalFolder(folder / "journal")
    made.add("before")
    return made


@pytest.fixture
def rules(folder: Path) -> Path:
    """The shipped rules, with a group of the test users in place of the system's."""
    shipped = (ROOT / "etc/sbusd.toml.d/50-journal.toml").read_text()
    config = folder / "sbusd.toml"
    config.write_text(shipped.replace('"adm", "systemd-journal"', str(READERS)).replace('"sbus-feed"', str(FIRST.uid)))
    return config


@pytest.fixture
def ruled(daemon: StartDaemon, rules: Path) -> Daemon:
    return daemon("--config", str(rules))


StartFeed = Callable[..., Feed]


@pytest.fixture
def start(folder: Path, files: JournalFolder) -> Iterator[StartFeed]:
    """Start a feed from the files to a bus, and wait until it is ready."""
    feeds: list[Feed] = []

    def make(bus: Daemon | str, *options: str) -> Feed:
        address = bus if isinstance(bus, str) else bus.path
        kept = ["--cursor-file", str(folder / "cursor"), "--backlog", "3650d"]
        feed = Feed(folder, len(feeds), "--address", address, "--directory", str(files.path), *kept, *options)
        feeds.append(feed)
        feed.wait_ready()
        return feed

    yield make
    for feed in feeds:
        assert feed.end() == feed.expected_status, feed.stderr
        assert "Traceback" not in feed.stderr


def listener(bus: Daemon, pattern: bytes = b"journal/", *, user: Any = None) -> RawClient:
    client = bus.client(user)
    client.subscribe(pattern)
    assert client.barrier() == []
    return client


def reported(client: RawClient) -> tuple[str, dict[str, Any]]:
    packet = client.receive()
    assert packet.startswith(b"MSG "), packet
    key, _, payload = packet.removeprefix(b"MSG ").partition(b"\0")
    return key.decode("ascii"), json.loads(payload)


def messages(client: RawClient, count: int) -> list[str]:
    read = [reported(client)[1] for _ in range(count)]
    assert all("MESSAGE" in payload for payload in read), read
    return [payload["MESSAGE"] for payload in read]


def message_after(client: RawClient, again: str) -> tuple[str, dict[str, Any]]:
    """Return the first message that is not *again*: entries are repeated if the feed or its bus ended before they were routed."""
    while True:
        key, payload = reported(client)
        if payload.get("MESSAGE") != again:
            return key, payload


def messages_until(client: RawClient, last: str, *, again: str) -> list[str]:
    """Return the messages up to *last*, without leading repetitions of *again*."""
    read = [message_after(client, again)[1]["MESSAGE"]]
    while read[-1] != last:
        read += messages(client, 1)
    return read


def test_entries_arrive_as_they_are_written_and_over_rotation(ruled: Daemon, files: JournalFolder, start: StartFeed) -> None:
    client = listener(ruled)
    feed = start(ruled)
    files.add("one", unit="web.service", PRIORITY="3", BINARY=b"\xff\0", TAG=[b"a", b"b"])
    key, payload = reported(client)
    assert key == "journal/web.service/err"
    assert (payload["MESSAGE"], payload["BINARY"], payload["TAG"]) == ("one", [255, 0], ["a", "b"])
    for letter in ("two", "three"):
        files.rotate()
        files.add(letter)
        assert messages(client, 1) == [letter]
    assert feed.stderr == ""


def test_begins_where_it_stopped(folder: Path, ruled: Daemon, files: JournalFolder, start: StartFeed) -> None:
    client = listener(ruled)
    first = start(ruled, "--lines", "1")
    files.add("during")
    assert messages(client, 2) == ["before", "during"]
    assert first.end() == 0
    files.rotate()
    files.add("meanwhile", "and more")
    second = start(ruled)
    assert messages_until(client, "and more", again="during") == ["meanwhile", "and more"]
    assert second.stderr == ""
    assert "i=" in (folder / "cursor").read_text()


def test_killed_feed_loses_nothing(ruled: Daemon, files: JournalFolder, start: StartFeed) -> None:
    client = listener(ruled)
    feed = start(ruled)
    files.add("0")
    assert messages(client, 1) == ["0"]
    feed.expected_status = -signal.SIGKILL
    assert feed.end(signal.SIGKILL) == -signal.SIGKILL
    files.add("1", "2")
    start(ruled)
    assert messages_until(client, "2", again="0") == ["1", "2"]


def test_vacuumed_journal_is_reported(ruled: Daemon, files: JournalFolder, start: StartFeed) -> None:
    client = listener(ruled)
    first = start(ruled)
    files.add("seen")
    assert messages(client, 1) == ["seen"]
    first.end()
    files.add("never seen")
    files.rotate().unlink()
    files.add("later")
    start(ruled)
    key, loss = message_after(client, "seen")
    assert (key, loss["reason"], loss["count"]) == ("journal/-/lost", "vacuumed", None)
    assert messages(client, 1) == ["later"]


def test_a_restarted_bus_misses_no_entry(folder: Path, daemon: StartDaemon, rules: Path, files: JournalFolder, start: StartFeed) -> None:
    address = folder / "current"
    before = daemon("--config", str(rules))
    address.symlink_to(before.path)
    client = listener(before)
    feed = start(str(address))
    files.add("0")
    assert messages(client, 1) == ["0"]
    before.stop()
    files.add("1", "2")
    after = daemon("--config", str(rules))
    client = listener(after)
    address.unlink()
    address.symlink_to(after.path)
    assert messages_until(client, "2", again="0") == ["1", "2"]
    assert "reconnected to the bus" in feed.stderr


def test_only_readers_of_the_journal_read_it(ruled: Daemon, files: JournalFolder, start: StartFeed) -> None:
    """User B learns nothing of the journal on the bus, by any pattern or forged publication."""
    reader = listener(ruled, user=FIRST)
    other_user = ruled.client(SECOND)
    for pattern in (b"journal/", b"", b"*/", b"jour*/web.service/info", b"journal/web.service/info", b"journal/-/lost", b"j*"):
        other_user.subscribe(pattern)
        refusals = other_user.barrier()
        if pattern == b"j*":
            assert refusals == [], "a key of one segment does not belong to the feed"
        else:
            assert [error_code(packet) for packet in refusals] == ["EPERM"], pattern
    start(ruled)
    other_user.publish(b"journal/web.service/info", b'{"MESSAGE":"forged"}')
    assert [error_code(packet) for packet in other_user.barrier()] == ["EPERM"]
    files.add("secret", unit="web.service")
    assert reported(reader)[1]["MESSAGE"] == "secret"
    assert other_user.barrier() == []


def run(stage: Stage, user: Any, *options: str) -> subprocess.CompletedProcess[str]:
    program = [stage.python, "-c", "from sbus_services.feeds.main import main; main()", "journal", *options]
    identity = {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": user.groups}
    return subprocess.run(program, cwd="/", env=stage.env, capture_output=True, text=True, check=False, timeout=60, **identity)


def test_nothing_is_published_on_a_bus_without_rules(bus: Daemon, files: JournalFolder, stage: Stage) -> None:
    client = listener(bus, user=SECOND)
    result = run(stage, None, "--address", bus.path, "--directory", str(files.path), "--lines", "1")
    assert result.returncode == 78
    assert len(result.stderr.splitlines()) == 1
    assert "every user of this bus can subscribe to journal/" in result.stderr
    assert client.barrier() == []


def test_public_is_a_choice(bus: Daemon, files: JournalFolder, start: StartFeed) -> None:
    client = listener(bus, user=SECOND)
    start(bus, "--public", "--lines", "1")
    assert messages(client, 1) == ["before"]


def test_removed_rules_stop_the_feed(ruled: Daemon, rules: Path, files: JournalFolder, start: StartFeed) -> None:
    feed = start(ruled)
    other_user = ruled.client(SECOND)
    rules.write_text("")
    ruled.process.send_signal(signal.SIGHUP)
    while json.loads(other_user.ask(controls.EXPLAIN, b"\0subscribe\0journal/x/info"))["allowed"] is False:
        pass
    other_user.subscribe(b"journal/")
    assert other_user.barrier() == []
    feed.expected_status = 78
    files.add("secret")
    assert feed.process.wait(30) == 78
    assert "every user of this bus can subscribe" in feed.stderr
    assert other_user.barrier() == []


def test_a_user_without_the_right_to_publish(ruled: Daemon, files: JournalFolder, stage: Stage) -> None:
    files.path.chmod(0o755)
    files.active.chmod(0o644)
    result = run(stage, SECOND, "--address", ruled.path, "--directory", str(files.path))
    assert (result.returncode, len(result.stderr.splitlines())) == (78, 1)
    assert "do not allow the feed to publish to journal/" in result.stderr


def test_user_of_the_rules_can_run_it(ruled: Daemon, files: JournalFolder, folder: Path, stage: Stage) -> None:
    """Like the unit: a user that does not own the bus, with a supplementary group alone."""
    files.active.chmod(0o640)
    os.chown(files.active, 0, READERS)
    client = listener(ruled)
    program = [stage.python, "-c", "from sbus_services.feeds.main import main; main()", "journal", "--address", ruled.path, "--lines", "1"]
    feed = FIRST.start([*program, "--directory", str(files.path)], env=stage.env)
    assert messages(client, 1) == ["before"]
    feed.send_signal(signal.SIGTERM)
    _, errors = feed.communicate(timeout=30)
    assert (feed.returncode, errors) == (0, "")


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_while_the_bus_is_away(ruled: Daemon, files: JournalFolder, start: StartFeed, signal_number: int) -> None:
    feed = start(ruled)
    ruled.stop()
    files.add("1")
    assert feed.end(signal_number) == 0


@pytest.mark.parametrize("missing", ["bus", "directory"])
def test_a_missing_file_is_reported_in_one_line(ruled: Daemon, files: JournalFolder, folder: Path, stage: Stage, missing: str) -> None:
    nowhere = str(folder / "no")
    address, directory = (nowhere, str(files.path)) if missing == "bus" else (ruled.path, nowhere)
    result = run(stage, None, "--address", address, "--directory", directory)
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1), result.stderr
    assert nowhere in result.stderr
