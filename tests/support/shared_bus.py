"""One bus for many tests."""

from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path
from types import TracebackType

from sbus.protocol import controls
from tests.support.daemons import READY_SECONDS, Daemon, start_daemon
from tests.support.wire import RawClient
from tools.stage import Stage, open_folder


class SharedBus:
    """A daemon with the configuration *text*, in a folder of its own; a context. It is replaced after a test that has ended it."""

    def __init__(self, stage: Stage, text: str) -> None:
        self._stage = stage
        self._text = text
        self._folder = open_folder()
        self._started: list[Daemon] = []

    def __enter__(self) -> SharedBus:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            for each in self._started:
                each.check()
        finally:
            shutil.rmtree(self._folder)

    @property
    def daemon(self) -> Daemon:
        """The daemon, which runs."""
        if not self._started or self._started[-1].process.poll() is not None:
            config = self._folder / "sbusd.toml"
            config.write_text(self._text)
            options = ("-C", str(config))
            self._started.append(start_daemon(self._folder, len(self._started), options, stage=self._stage, user=None, env=None))
        return self._started[-1]

    def unused(self) -> Daemon:
        """Return the daemon when it has no connection and no file of an earlier test, such as the socket of a service."""
        daemon = self.daemon
        for each in Path(daemon.path).parent.iterdir():
            if each != Path(daemon.path):
                each.unlink()
        deadline = time.monotonic() + READY_SECONDS
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(daemon.path)
            observer = RawClient(sock)
            while len(connections := json.loads(observer.ask(controls.CONNECTIONS))["connections"]) > 1:
                assert time.monotonic() < deadline, f"connections of an earlier test: {connections}"
                time.sleep(0.005)
        return daemon
