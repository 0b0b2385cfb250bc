"""The bus goes to the background, and the caller learns whether that worked. Each test runs a small daemon of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sbusd.daemon.daemonize import Daemonizer, PidFileError, open_standard_streams
from sbusd.daemon.options import Options
from tools.stage import ROOT

WAIT = 30.0
"""When a process that does not answer is a failure."""

DAEMON = """
import os, signal, sys
from sbusd.daemon.daemonize import Daemonizer, open_standard_streams
from sbusd.daemon.options import parse_options
from sbus.protocol.errors import SbusError
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
control, *arguments = sys.argv[1:]
open_standard_streams()
options = parse_options(arguments)
try:
    daemonizer = Daemonizer.enter(options)
    with open(control) as commands:
        if commands.read() == "fail":
            sys.exit("the daemon has failed")
    daemonizer.ready()
    with open(control, "w") as told:
        streams = " ".join(os.readlink(f"/proc/self/fd/{fd}") for fd in range(3))
        print(os.getpid(), os.getppid(), os.getsid(0), os.getcwd(), daemonizer.is_background, streams, file=told)
    signal.sigwait({signal.SIGTERM})
    daemonizer.leave()
    with open(control, "w") as told:
        print("has left", file=told)
except SbusError as error:
    sys.exit(f"sbusd: {error}")
"""
"""Waits for a line on the named pipe *control* before it is ready, writes its facts there, and stops on SIGTERM."""


class SmallDaemon:
    """A small daemon and its named pipe."""

    def __init__(self, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.control = folder / "control"
        os.mkfifo(self.control)
        self.pid_file = folder / "pid"
        command = [sys.executable, "-c", DAEMON, str(self.control), "-p", str(self.pid_file), *arguments]
        env = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)} | (environment or {})
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def let(self, word: str = "go") -> None:
        """Make the daemon ready, or let it fail."""
        self.control.write_text(word)

    def reported(self) -> list[str]:
        """Return the next line of the daemon."""
        return self.control.read_text().split()

    def end(self, pid: int) -> None:
        """Stop the daemon, and check that it has ended."""
        os.kill(pid, signal.SIGTERM)
        assert self.reported() == ["has", "left"]

    def outcome(self) -> tuple[int, str]:
        """Return the exit status of the parent, and the standard error of all processes."""
        _, errors = self.process.communicate(timeout=WAIT)
        return self.process.returncode, errors


@pytest.mark.slow
def test_in_the_background_the_parent_exits_when_the_bus_is_ready(tmp_path: Path) -> None:
    run = SmallDaemon(tmp_path)
    run.let()
    pid, parent, session, folder, background, *streams = run.reported()
    assert run.process.wait(WAIT) == 0
    assert int(pid) != run.process.pid
    assert parent != str(run.process.pid)
    assert session not in {pid, str(os.getsid(0))}  # in a session that it does not lead, and that no terminal controls
    assert (folder, background) == ("/", "True")
    assert streams[:2] == ["/dev/null", "/dev/null"]
    assert streams[2].startswith("pipe:")  # no terminal, so it stays
    assert run.pid_file.read_text() == f"{pid}\n"
    assert run.pid_file.stat().st_mode & 0o777 == 0o644
    run.end(int(pid))
    assert not run.pid_file.exists()
    assert run.outcome() == (0, "")


@pytest.mark.slow
def test_a_reader_of_the_output_sees_the_end_when_the_bus_is_ready_in_the_foreground(tmp_path: Path) -> None:
    run = SmallDaemon(tmp_path, "-f")
    run.let()
    pid, parent, _, folder, background, *streams = run.reported()
    assert run.process.stdout is not None
    assert run.process.stdout.read() == ""
    assert (int(pid), int(parent)) == (run.process.pid, os.getpid())
    assert (folder, background) == (str(tmp_path), "False")
    assert streams[:2] == ["/dev/null", "/dev/null"]
    assert not run.pid_file.exists()
    run.end(int(pid))
    assert run.outcome() == (0, "")


@pytest.mark.slow
def test_the_parent_reports_a_bus_that_fails_before_it_is_ready(tmp_path: Path) -> None:
    run = SmallDaemon(tmp_path)
    run.let("fail")
    assert run.outcome() == (1, "the daemon has failed\n")


@pytest.mark.slow
def test_an_existing_pid_file_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text("1\n")
    status, errors = SmallDaemon(tmp_path).outcome()
    assert status == 1
    assert errors == (f"sbusd: pid file {tmp_path}/pid already exists; stop that bus, remove the file if no bus runs, or use -p\n")
    assert (tmp_path / "pid").read_text() == "1\n"


@pytest.mark.slow
def test_dev_null_means_no_pid_file(tmp_path: Path) -> None:
    run = SmallDaemon(tmp_path, "-p", "/dev/null")
    run.let()
    pid = int(run.reported()[0])
    assert not run.pid_file.exists()
    run.end(pid)
    assert run.outcome() == (0, "")


class TestPidFile:
    """The pid file of this process, without a fork."""

    @staticmethod
    def _daemonizer(pid_file: Path) -> Daemonizer:
        return Daemonizer(parent=None, pid_file=pid_file)

    def test_only_the_created_file_is_removed(self, tmp_path: Path) -> None:
        daemonizer = self._daemonizer(tmp_path / "pid")
        daemonizer.write_pid_file()
        other = tmp_path / "other"
        other.write_text("2\n")
        other.rename(tmp_path / "pid")
        daemonizer.leave()
        assert (tmp_path / "pid").read_text() == "2\n"

    def test_a_removed_file_is_not_an_error(self, tmp_path: Path) -> None:
        daemonizer = self._daemonizer(tmp_path / "pid")
        daemonizer.write_pid_file()
        (tmp_path / "pid").unlink()
        daemonizer.leave()
        daemonizer.leave()

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "pid").symlink_to("elsewhere")
        with pytest.raises(PidFileError, match="already exists"):
            self._daemonizer(tmp_path / "pid").write_pid_file()
        assert not (tmp_path / "elsewhere").exists()

    def test_a_missing_directory_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(PidFileError, match=r"cannot create pid file .*: No such file or directory; choose another with -p"):
            self._daemonizer(tmp_path / "none" / "pid").write_pid_file()

    def test_a_full_disk_is_an_error_and_leaves_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(fd: int, text: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", fail)
        with pytest.raises(PidFileError, match=r"cannot write pid file .*: No space left on device; choose another with -p"):
            self._daemonizer(tmp_path / "pid").write_pid_file()
        assert list(tmp_path.iterdir()) == []


def test_in_the_foreground_no_file_is_created(tmp_path: Path) -> None:
    daemonizer = Daemonizer.enter(Options(foreground=True, pid_file=tmp_path / "pid"))
    assert not daemonizer.is_background
    daemonizer.leave()
    assert list(tmp_path.iterdir()) == []


def test_open_streams_do_not_change() -> None:
    before = set(os.listdir("/proc/self/fd"))
    open_standard_streams()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_closed_streams_are_opened() -> None:
    code = (
        "import os; from sbusd.daemon.daemonize import open_standard_streams as f; os.close(0); os.close(2); f();"
        "os.write(1, repr([os.readlink(f'/proc/self/fd/{fd}') for fd in (0, 2)]).encode())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['/dev/null', '/dev/null']"
