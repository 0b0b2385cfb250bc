"""The program sbus-metrics as a process, and a client of it."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.support.forked_programs import StartedProgram, start_program
from tests.support.free_ports import free_port
from tests.support.users import User, command_as
from tools.stage import ROOT, Stage

SECONDS = 60.0

_LATER = ("prometheus_client.openmetrics.exposition",)
"""What the program imports at the first scrape."""

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Values = dict[tuple[str, ...], float]
"""Samples: the name, and the value of each label in the order of the names of labels."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket, once."""
        if self.sock is not None:
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)


class Endpoint:
    """sbus-metrics for the bus at *bus*, with a Unix socket, a port of 127.0.0.1 and the keys *text* of its configuration; a context.

    With *user* it runs as that one. *constants* are those of ``start_program``.
    """

    def __init__(
        self,
        folder: Path,
        bus: str,
        text: str = "",
        *,
        user: User | None = None,
        stage: Stage | None = None,
        env: Mapping[str, str] | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        home = folder / "endpoint"
        home.mkdir()
        if user is not None:
            os.chown(home, user.uid, user.gid)
        self.path = str(home / "metrics.socket")
        self.port = free_port()
        self.config = folder / "metrics.toml"
        self.config.write_text(f'bus = "{bus}"\n{text}')
        self._log = folder / "metrics.log"
        self._python = sys.executable if user is None or stage is None else stage.python
        self._words = ("sbus_services.metrics.main", "-C", str(self.config), "--listen", self.path, "--listen", self.address)
        self._prefix = ["env"] if env else []
        plain = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8", **(env or {})}
        self._env = plain if user is None or stage is None else stage.env
        self._user = user
        self._constants = constants
        self.process: StartedProgram | None = None

    def __enter__(self) -> Endpoint:
        with self._log.open("ab") as log:
            self.process = self._start(log.fileno())
        end = time.monotonic() + SECONDS
        while "serving metrics of" not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.02)
        return self

    def _start(self, log: int) -> StartedProgram:
        """Start the process."""
        user = self._user
        if user is None:
            return start_program(
                *self._words, env=self._env, stdout=log, stderr=log, prefix=self._prefix, imports=_LATER, constants=self._constants
            )
        return subprocess.Popen(
            command_as(user, [self._python, "-m", *self._words]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self._env,
            cwd="/",
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            status = self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
        if kind is None:
            assert status == 0, self.log
            assert "Traceback" not in self.log, self.log
            assert "internal error" not in self.log, self.log

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self._log.read_text(errors="replace")

    @property
    def address(self) -> str:
        """The address of the port."""
        return f"127.0.0.1:{self.port}"

    def scrape(self, accept: str = OPENMETRICS) -> Values:
        """Return all samples, requested over the Unix socket."""
        status, headers, body = get(UnixConnection(self.path), accept=accept)
        assert status == 200, body
        is_openmetrics = headers["Content-Type"].startswith("application/openmetrics-text")
        assert is_openmetrics == (accept == OPENMETRICS)
        return samples(body, is_openmetrics=is_openmetrics)


def get(
    connection: http.client.HTTPConnection, path: str = "/metrics", *, method: str = "GET", accept: str = "*/*"
) -> tuple[int, dict[str, str], str]:
    """Return the status, the headers and the body of a response, and close the connection."""
    try:
        connection.request(method, path, headers={"Accept": accept})
        with connection.getresponse() as response:
            return response.status, dict(response.getheaders()), response.read().decode()
    finally:
        connection.close()


def samples(text: str, *, is_openmetrics: bool) -> Values:
    """Return the samples in *text*, read by the parser of Prometheus' library. No two have the same labels."""
    found: Values = {}
    parse: Any = parse_openmetrics if is_openmetrics else parse_text
    for family in parse(text):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found
