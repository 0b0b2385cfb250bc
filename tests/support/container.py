"""A machine of Debian 13 with a systemd of its own, booted in half a second from a root that stays as it is: systemd-nspawn(1).

The container gets nothing but what is in that root, and the folders that are bound into it, read-only; it has no network. All that
it writes is in memory, and gone at its end unless :meth:`Container.stop_and_save` keeps it as a layer over the root. Any number may run
at a time.
"""

from __future__ import annotations

import functools
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.support import skips
from tests.support.cgroups import ControlGroup
from tools.packages.roots import BOOT, root_of

BOOT_SECONDS = 180.0
"""The timeout of the boot; it takes half a second on an idle machine."""

COMMAND_SECONDS = 300.0
"""The timeout of a command in it: an installation takes two minutes where processes are stopped again and again."""

_WITHOUT_TIMERS = ("apt-daily.timer", "apt-daily-upgrade.timer")
"""They start within twelve hours of the boot: apt would wait for a network that is not there, and hold its lock meanwhile."""

_POWER_OFF = signal.SIGRTMIN + 4
"""Asks a systemd to shut down, systemd(1)."""

_LEADER = "X_NSPAWN_LEADER_PID="

_CONSOLE_CHARACTERS = 2_000
"""The number of characters of the console shown after a failed boot."""

# In a mount namespace of its own, and so gone with the last process in it.
_MOUNT = """
set -eu
folder=$1 layers=$2
shift 2
mount -t tmpfs -o mode=0755 machine "$folder"
mkdir "$folder/changes" "$folder/work" "$folder/root"
mount -t overlay -o "lowerdir=$layers,upperdir=$folder/changes,workdir=$folder/work" machine "$folder/root"
exec "$@"
"""
"""Runs a command when there is a root made of layers, whose changes go to memory."""

_OF_ONE_BOOT = ("etc/machine-id", "tmp", "var/log/journal", "var/lib/systemd/random-seed", "var/lib/systemd/timers", "var/tmp")
"""What a saved layer does not keep."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


class Container:
    """A container that is up; call :meth:`stop` at the end."""

    def __init__(self, root: Path, *, layer: Path | None = None, binds: dict[Path, str] | None = None) -> None:
        """Boot *root* with a saved *layer* over it; *binds* are folders of this machine, and where they are in the container."""
        self._folder = Path(tempfile.mkdtemp(prefix="sbus-container-"))
        self._group = ControlGroup()
        self.leader = 0
        """The process id of its systemd on this machine."""
        self._watched = -1
        self._console = self._folder / "console"
        self._mounted = self._folder / "machine"
        self._nspawn: subprocess.Popen[bytes] | None = None
        try:
            self._boot([layer, root] if layer else [root], binds or {})
        except BaseException:
            self.stop()
            raise

    def run(
        self, command: str, *, user: str | None = None, check: bool = True, stdin: str = "", timeout_seconds: float = COMMAND_SECONDS
    ) -> Outcome:
        """Run *command* in a shell to its end, as a service of root's, or in a session of *user*, at home; with *check* it must succeed."""
        words = self._words(command, user)
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_seconds)
        outcome = Outcome(done.returncode, done.stdout, done.stderr)
        assert not check or outcome.status == 0, f"{command}: {outcome}"
        return outcome

    def output(self, command: str, *, user: str | None = None) -> str:
        """Return what *command*, which must succeed, writes to standard output, without the end of its last line."""
        return self.run(command, user=user).stdout.rstrip("\n")

    def journal(self, options: str) -> str:
        """Return what journalctl shows with *options*. What its services have written until now is in it: journald writes later."""
        return self.output(f"journalctl --sync && journalctl {options}")

    def start(self, command: str, *, user: str | None = None, stderr: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start *command* with pipes, and return it; it ends with the container at the latest."""
        words = self._words(command, user)
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)

    def wait_for(self, command: str, *, user: str | None = None, seconds: float = COMMAND_SECONDS) -> Outcome:
        """Run *command* again and again until it succeeds, which it then does only once; fail when it does not in time."""
        outcome = self.run(command, user=user, check=False)
        if outcome.status != 0:
            # In one shell, where the tries do not cost a unit of systemd each.
            tries = f'until out=$(\n{command}\n) 2>/dev/null; do sleep 0.1; done; test -z "$out" || printf "%s\\n" "$out"'
            tried = self.run(
                f"timeout {seconds} sh -c {shlex.quote(tries)}", user=user, check=False, timeout_seconds=seconds + COMMAND_SECONDS
            )
            outcome = tried if tried.status == 0 else self.run(command, user=user, check=False)
        assert outcome.status == 0, f"{command}: still {outcome} after {seconds} s"
        return outcome

    def stop(self) -> None:
        """End all of it at once, without a shutdown. May be called twice."""
        # A kill of systemd-nspawn alone would leave what it started.
        self._group.remove()
        if self._nspawn is not None:
            self._nspawn.wait(BOOT_SECONDS)
            self._nspawn = None
        if self._watched >= 0:
            # A group can be removed while the last process in it is still ending.
            select.select([self._watched], [], [], BOOT_SECONDS)
            os.close(self._watched)
            self._watched = -1
        shutil.rmtree(self._folder, ignore_errors=True)

    def stop_and_save(self, layer: Path) -> None:
        """Shut it down, and copy what it has changed into the new folder *layer*."""
        assert self._nspawn is not None
        changes = os.open(f"/proc/{self._nspawn.pid}/root{self._mounted}/changes", os.O_PATH)  # is there until it is closed
        try:
            os.kill(self.leader, _POWER_OFF)
            self._nspawn.wait(BOOT_SECONDS)
            subprocess.run(["cp", "--archive", f"/proc/self/fd/{changes}/.", str(layer)], check=True, pass_fds=[changes])
        finally:
            os.close(changes)
            self.stop()
        for name in _OF_ONE_BOOT:
            path = layer / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _boot(self, layers: list[Path], binds: dict[Path, str]) -> None:
        """Start systemd-nspawn on a root of *layers*, which stay as they are, and wait until the system in it is up."""
        reported = self._folder / "notify"
        self._mounted.mkdir()
        command = ["unshare", "--mount", "/bin/sh", "-c", _MOUNT, "sh", str(self._mounted), ":".join(map(str, layers))]
        command += ["systemd-nspawn", "--quiet", f"--directory={self._mounted}/root", "--register=no", "--keep-unit", "--console=read-only"]
        # With a network of its own it keeps the capability that PrivateNetwork= needs.
        command += ["--private-network", "--notify-ready=yes", "--link-journal=no"]
        command += [f"--bind-ro={here}:{there}" for here, there in binds.items()]
        environment = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "NOTIFY_SOCKET": str(reported)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, self._console.open("wb") as console:
            manager.bind(str(reported))
            manager.settimeout(0.2)
            self._nspawn = subprocess.Popen(
                [*self._group.entering(), *command, "--boot", *(f"systemd.mask={each}" for each in _WITHOUT_TIMERS)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            self.leader = self._await_boot(manager)
            self._watched = os.pidfd_open(self.leader)
        # Close the socket now: if it stayed open and unread, it would eventually block the container's systemd.

    def _await_boot(self, manager: socket.socket) -> int:
        """Return the process id of the container's systemd when all has started."""
        assert self._nspawn is not None
        end, received = time.monotonic() + BOOT_SECONDS, ""
        while "READY=1\n" not in received:
            if self._nspawn.poll() is not None or time.monotonic() > end:
                said = self._console.read_text(errors="replace")[-_CONSOLE_CHARACTERS:]
                raise AssertionError(f"the container did not boot: {said}")
            with suppress(TimeoutError):
                received += manager.recv(4096).decode() + "\n"
        return int(received.split(_LEADER)[1].split()[0])

    def _words(self, command: str, user: str | None) -> list[str]:
        """Return the command line that runs *command* in the container."""
        # By its systemd: a process that only entered the namespaces would be in no control group of it, and have capabilities too many.
        into = [*self._group.entering("payload", "init.scope"), "nsenter", f"--target={self.leader}", "--all", "--"]
        run = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--expand-environment=no", *_as(user)]
        return [*into, *run, "--", "/bin/sh", "-c", command]


def boot_root() -> Path:
    """Return the root that containers boot from; skip the test where there can be none."""
    skips.require_root()
    skips.require_program("mmdebstrap", "mmdebstrap")
    skips.require_program("systemd-nspawn", "systemd-container")
    root = root_of(BOOT)
    refusal = _refusal(root)
    skips.require(not refusal, f"needs containers: {refusal}", could_run=False)
    return root


def _as(user: str | None) -> list[str]:
    """Return the options that run a command as *user*, with all that a login gives."""
    return [] if user is None else [f"--uid={user}", "--property=PAMName=login", "--property=WorkingDirectory=~"]


@functools.cache
def _refusal(root: Path) -> str:
    """Return why systemd-nspawn does not work here, or an empty string if it does."""
    command = ["systemd-nspawn", "--quiet", f"--directory={root}", "--register=no", "--keep-unit", "--read-only", "--pipe", "/bin/true"]
    probe = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return "" if probe.returncode == 0 else (probe.stderr.strip().splitlines() or [f"status {probe.returncode}"])[0]
