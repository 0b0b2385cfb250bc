"""A minimal service manager: it starts a daemon on its socket, stores the descriptors that it sends, and passes them to the next one.

What it does is what systemd does, as far as a bus can tell: sd_notify(3), sd_listen_fds(3), systemd.service(5).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.support.daemons import READY_SECONDS
from tests.support.frames import StreamClient
from tests.support.wire import RawClient
from tools.stage import ROOT

_RUN = "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
"""Only the process itself knows its id before it is the daemon."""


class Manager:
    """One service with a socket at ``path``, and perhaps a stream socket at ``stream_path``.

    A context manager, which kills the daemon and closes everything at its end.
    """

    def __init__(
        self,
        folder: Path,
        *,
        options: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        has_streams: bool = False,
        prepare: str = "",
    ) -> None:
        """*prepare* is Python that the process runs before it is the daemon."""
        self.path = str(folder / "bus")
        self.stream_path = str(folder / "bus-stream")
        self._has_streams = has_streams
        self.store: dict[str, list[int]] = {}
        self.said: list[str] = []
        """All states that the daemon has notified, without the descriptors."""
        self.errors = folder / "stderr"
        self._options = options
        self._prepare = prepare
        self._env = {"FDSTORE": "16"} | (env or {})
        self._notify_path = str(folder / "notify")
        self._clients: list[RawClient] = []
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Manager:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        os.chmod(self.path, 0o777)
        self._listener.listen(1024)
        self._stream_listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if self._has_streams:
            self._stream_listener.bind(self.stream_path)
            os.chmod(self.stream_path, 0o777)
            self._stream_listener.listen(1024)
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(self._notify_path)
        os.chmod(self._notify_path, 0o777)
        self._notify.settimeout(READY_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for client in self._clients:
            client.close()
        self.empty_store()
        self._listener.close()
        self._stream_listener.close()
        self._notify.close()

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        assert self.process is not None
        return self.process.pid

    @property
    def stderr(self) -> str:
        """The standard error of all daemons."""
        return self.errors.read_text(errors="replace")

    def start(self) -> None:
        """Start the daemon with all stored descriptors, and wait until it is ready."""
        stored = [(name, fd) for name, fds in self.store.items() for fd in fds]
        sockets = [("sbus.socket", self._listener.fileno())]
        if self._has_streams:
            sockets.insert(0, ("sbus-stream.socket", self._stream_listener.fileno()))
        passed = [fd for _, fd in (*sockets, *stored)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("LISTEN_", "SBUS"))} | {
            "PYTHONPATH": str(ROOT),
            "NOTIFY_SOCKET": self._notify_path,
            "LISTEN_FDS": str(len(passed)),
            "LISTEN_FDNAMES": ":".join(name for name, _ in (*sockets, *stored)),
            **self._env,
        }
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _PLACE + self._prepare + _RUN,
                    ",".join(map(str, passed)),
                    "-m",
                    "sbusd.daemon.main",
                    "-f",
                    *self._options,
                ],
                cwd="/",
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=passed,
            )
        self.wait_for("READY=1")

    def wait_for(self, state: str) -> None:
        """Receive the daemon's notifications up to *state*."""
        end = time.monotonic() + READY_SECONDS
        seen = len(self.said)
        while not any(state in said for said in self.said[seen:]):
            assert time.monotonic() < end, f"no {state}: {self.said[seen:]}; {self.stderr}"
            assert self.process is not None
            if not select.select([self._notify], [], [], 0.1)[0]:
                assert self.process.poll() is None, f"the daemon has ended with {self.process.returncode}: {self.stderr}"
                continue
            self._take_in()

    def wait_said(self, words: str, *, times: int = 1) -> str:
        """Return what was written to standard error once *words* are in it so often: a thread of the daemon's writes that."""
        end = time.monotonic() + READY_SECONDS
        while (said := self.stderr).count(words) < times:
            assert time.monotonic() < end, f"it did not say {words!r}: {said}"
            time.sleep(0.01)
        return said

    def drain(self) -> None:
        """Receive all pending notifications."""
        while select.select([self._notify], [], [], 0)[0]:
            self._take_in()

    def _take_in(self) -> None:
        """Receive one packet: store or remove descriptors."""
        data, fds, _, _ = socket.recv_fds(self._notify, 4096, 16)
        fields = dict(line.partition("=")[::2] for line in data.decode().splitlines())
        name = fields.get("FDNAME", "stored")
        if "FDSTOREREMOVE" in fields:
            self._close(self.store.pop(name, []))
        elif "FDSTORE" in fields:
            self.store.setdefault(name, []).extend(fds)
        else:
            self._close(fds)
            self.said.append(data.decode())

    def restart(self) -> None:
        """Restart the daemon, like `systemctl restart`."""
        self.end(signal.SIGTERM)
        self.start()

    def end(self, number: signal.Signals) -> int:
        """Stop the daemon by a signal, and return its status."""
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(READY_SECONDS)
        self.drain()
        return status

    def reload(self) -> None:
        """Restart it in its process, and wait until it is ready."""
        os.kill(self.pid, signal.SIGUSR2)
        self.wait_for("RELOADING=1")
        self.wait_for("READY=1")

    def empty_store(self) -> None:
        """Close all stored descriptors, as systemd does when a service is stopped."""
        for fds in self.store.values():
            self._close(fds)
        self.store.clear()

    def client(self) -> RawClient:
        """Return a new client; it is closed with the manager."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(self.path)
        self._clients.append(RawClient(sock))
        return self._clients[-1]

    def stream_client(self) -> StreamClient:
        """Return a new client with a stream socket; it is closed with the manager."""
        client = StreamClient.connect(self.stream_path)
        self._clients.append(client)
        return client

    @staticmethod
    def _close(fds: list[int]) -> None:
        """Close descriptors."""
        for fd in fds:
            os.close(fd)


_PLACE = """
import fcntl, os, sys
passed = [fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 100) for fd in sys.argv.pop(1).split(",")]
for number, fd in enumerate(passed, 3):
    os.dup2(fd, number)
"""
"""Descriptors are passed from 3 on, in order."""
