"""``sbusctl record`` and ``replay``: what is recorded, published, refused and printed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import ErrorCode, PayloadTooLarge, RemoteRefusal
from sbus.protocol.packets import join_batch
from sbus_archive.recorder.log_messages import RESUMED, SUSPENDED
from sbus_archive.recorder.replay import RecordedMessage
from sbusctl.commands.recording import ReplayPublisher, WarningPrinter
from tests.support.recorder_fakes import recorded
from tests.support.tapped_bus import TappedBus, message_packet
from tools.stage import ROOT

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "sbusctl.main"]
ENV = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[TappedBus]:
    with TappedBus(tmp_path / "bus") as bus:
        yield bus


def start(bus: TappedBus, *arguments: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "record", "--address", str(bus.path), *arguments]
    return subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("in_batch", [False, True])
def test_it_records_the_requested_number_of_messages_and_reports_it(bus: TappedBus, tmp_path: Path, in_batch: bool) -> None:
    folder = tmp_path / "r"
    with start(bus, "--archive", str(folder), "--pattern", "a/", "-n", "3", "--keep", "2") as process:
        bus.accept()
        packets = [message_packet(b"a/%d" % number, b"payload") for number in range(5)]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ends with the third
            bus.tell(*([join_batch(packets)] if in_batch else packets))
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, f"recorded 3 messages and 1 other row into {folder}\n", "")
    assert bus.demand == b"CMSG tap/on\0a/"
    rows = recorded(folder)
    assert [(row.kind, row.key, row.payload) for row in rows[1:]] == [("message", f"a/{number}", b"pa") for number in range(3)]


def test_ctrl_c_ends_it_whole(bus: TappedBus, tmp_path: Path) -> None:
    with start(bus, "--archive", str(tmp_path / "r"), "--json=short") as process:
        bus.accept()
        bus.tell(b"CMSG !/bus/lost\x007")
        bus.tell(message_packet())
        while not list((tmp_path / "r" / ".spool").glob("*.wal")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        bus.end_when_asked()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out) == {"archive": str(tmp_path / "r"), "rows": 3, "messages": 1, "missing": 7}
    assert "too slow" in err
    assert len(recorded(tmp_path / "r")) == 3


def test_a_time_ends_it(bus: TappedBus, tmp_path: Path) -> None:
    with start(bus, "--archive", str(tmp_path / "r"), "--timeout", "0.01") as process:
        bus.accept()
        bus.end_when_asked()
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, f"recorded 0 messages and 1 other row into {tmp_path}/r\n")


def test_an_invalid_size_is_reported(bus: TappedBus) -> None:
    with start(bus, "--keep", "some") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--keep" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [("record",), ("replay", "/nowhere")])
def test_without_pyarrow_it_says_what_to_install(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text("raise ModuleNotFoundError('pyarrow')")
    env = ENV | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([*COMMAND, *arguments], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert (
        done.stderr == "sbusctl: cannot read or write records: pyarrow is not installed; install it with: pip install 'sbusd[recorder]'\n"
    )


def test_a_folder_that_is_not_an_archive_is_reported(tmp_path: Path) -> None:
    command = [*COMMAND, "replay", str(tmp_path / "nowhere")]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, f"sbusctl: {tmp_path}/nowhere: not an archive: no such directory\n")


@pytest.mark.parametrize(("options", "says"), [((), ""), (("--host", "beta"), " of host beta")])
def test_a_folder_without_a_record_is_reported(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    (tmp_path / "archive").mkdir()
    command = [*COMMAND, "replay", str(tmp_path / "archive"), *options]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sbusctl: cannot replay {tmp_path}/archive: the archive contains no records{says}\n"


def test_without_a_bus_no_folder_is_made(tmp_path: Path) -> None:
    command = [*COMMAND, "record", "--address", str(tmp_path / "bus"), "--archive", str(tmp_path / "new")]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"sbusctl: cannot connect to {tmp_path}/bus: ")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_created_is_reported(bus: TappedBus, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with start(bus, "--archive", str(tmp_path / "file" / "new")) as process:
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, f"sbusctl: {tmp_path}/file/new: Not a directory\n")


def test_only_problems_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    WarningPrinter().record(RESUMED, lost=1)
    assert capfd.readouterr().err == ""
    WarningPrinter().record(SUSPENDED, reason="full")
    assert capfd.readouterr().err.startswith("sbusctl: suspended recording: cannot write: full")


class FakeBus:
    """A bus that takes payloads of up to 10 bytes, and refuses keys that begin with ``x``."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, bytes]] = []
        self._refusals: list[RemoteRefusal] = []

    def publish(self, key: bytes, payload: bytes) -> None:
        if len(payload) > 10:
            raise PayloadTooLarge(len(payload), 10)
        if key.startswith(b"x"):
            self._refusals.append(RemoteRefusal(ErrorCode.EPERM, f"{key.decode()} is closed"))
        else:
            self.taken.append((key, payload))

    def ping(self) -> float:
        if self._refusals:
            raise self._refusals.pop(0)
        return 0.0


@pytest.fixture
def replay_bus() -> FakeBus:
    return FakeBus()


def test_messages_are_published_and_counted(replay_bus: FakeBus) -> None:
    publication = ReplayPublisher(replay_bus)
    reported: list[tuple[int, int]] = []
    some = [RecordedMessage(1, b"a", b"1"), RecordedMessage(2, b"b", bytes(11)), RecordedMessage(3, b"c", b"3")]
    publication.publish(some, lambda published, ts: reported.append((published, ts)))
    assert replay_bus.taken == [(b"a", b"1"), (b"c", b"3")]
    assert (publication.published, publication.too_large, reported) == (2, 1, [(1, 1), (2, 3)])
    assert publication.settle() is None


def test_the_first_refusal_is_kept_and_all_are_received(replay_bus: FakeBus) -> None:
    publication = ReplayPublisher(replay_bus)
    publication.publish(
        [RecordedMessage(1, b"x1", b""), RecordedMessage(2, b"x2", b""), RecordedMessage(3, b"a", b"")], lambda _published, _ts: None
    )
    assert publication.settle() == "EPERM x1 is closed"
    assert publication.settle() is None
    assert replay_bus.taken == [(b"a", b"")]
