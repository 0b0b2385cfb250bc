"""The program sbus-blob as a process, and clients that speak its protocol without the library, as hostile ones do."""

from __future__ import annotations

import array
import fcntl
import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from sbus.protocol.blobs import F_ADD_SEALS, SEALS
from tests.support.forked_programs import start_program
from tests.support.relays import wait_for
from tests.support.service_programs import ServiceProgram
from tests.support.users import User
from tools.stage import ROOT

TIMEOUT_SECONDS = 30.0

ENV = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}


class BlobProgram(ServiceProgram):
    """sbus-blob for the bus at *bus* with the configuration *text*; a context. It runs as the caller."""

    def __init__(
        self,
        folder: Path,
        bus: str,
        text: str = "",
        max_descriptors: int | None = None,
        env: Mapping[str, str] | None = None,
        *,
        prefix: Sequence[str] = (),
        constants: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(folder / "blob.log")
        self.address = f"{bus}-blob"
        self._config = folder / "blob.toml"
        self._config.write_text(f'bus = "{bus}"\n{text}')
        limit = [] if max_descriptors is None else ["prlimit", f"--nofile={max_descriptors}"]
        self._prefix = [*prefix, *limit]
        self._env = ENV | dict(env or {})
        self._constants = constants

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        arguments = ("-C", str(self._config), "--listen", self.address)
        prefix = self._prefix
        if self._env != ENV:
            prefix = ["env", *prefix]  # such as the path of a library to load before others
        with self._log.open("ab") as log:
            self.process = start_program(
                "sbus_services.blob.main",
                *arguments,
                prefix=prefix,
                env=self._env,
                stdout=log.fileno(),
                stderr=log.fileno(),
                constants=self._constants,
            )
        wait_for(self._serves, f"the service: {self.log}")

    def memory(self) -> dict[str, int]:
        """Return the memory of the process in KiB, by the names of proc_pid_status(5)."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {
            name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if name.startswith(("Rss", "VmRSS"))
        }

    def client(self, user: User | None = None) -> BlobClient:
        """Return a connection of *user*, or of the caller."""
        if user is not None:
            return BlobClient(user.connect(self.address))
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(self.address)
        except OSError:
            sock.close()
            raise
        return BlobClient(sock)

    def check_others(self, user: User) -> None:
        """Put and get a blob as *user*: whatever others do, this works."""
        with self.client(user) as client:
            ticket = client.put(b"mine", for_=f"uid:{user.uid}")
            answer, (fd,) = client.request("get", ticket=ticket)
            with os.fdopen(fd, "rb") as file:
                assert file.read() == b"mine"
            assert answer["from"]["uid"] == user.uid
            client.request("drop", ticket=ticket)

    def _serves(self) -> bool:
        self.check_running()
        try:
            client = self.client()
        except OSError:
            return False
        with client:
            return "usage" in client.request("stats")[0]


class BlobClient:
    """A connection to the service; a context."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.settimeout(TIMEOUT_SECONDS)

    def __enter__(self) -> BlobClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a packet."""
        self.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

    def receive(self) -> tuple[Any, list[int]]:
        """Return the members of a response, and its descriptors. Raises EOFError at the end of the connection."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 4)
        except ConnectionResetError:
            raise EOFError from None
        if not data:
            raise EOFError
        return json.loads(data), fds

    def request(self, name: str, fd: int | None = None, **members: object) -> tuple[Any, list[int]]:
        """Send a request, and return the response; ``for_`` is the member ``for``."""
        members = {key.rstrip("_"): value for key, value in members.items()}
        request = json.dumps({"request": name, **members}).encode()
        try:
            self.send(request, () if fd is None else (fd,))
        except PermissionError:  # the kernel refuses descriptors until the service has accepted the connection
            self.request("stats")
            self.send(request, (fd,) if fd is not None else ())
        return self.receive()

    def cause(self, name: str, fd: int | None = None, **members: object) -> str:
        """Send a request that is refused, and return the cause."""
        answer, fds = self.request(name, fd, **members)
        assert not fds
        assert answer["reason"]
        return str(answer["cause"])

    def put(self, data: bytes | int = b"x", **members: object) -> str:
        """Put a blob with *data*, or a sparse one of that size, and return its ticket."""
        fd = sealed(data)
        try:
            answer, _ = self.request("put", fd, **{"size": os.fstat(fd).st_size, **members})
        finally:
            os.close(fd)
        assert "ticket" in answer, answer
        return str(answer["ticket"])

    def counter(self, name: str) -> int:
        """Return a counter of this user."""
        return int(self.request("stats")[0]["counters"].get(name, 0))


def sealed(data: bytes | int, seals: int = SEALS, flags: int = 0) -> int:
    """Return a sealed memfd with *data*, or a sparse one of that size."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    if isinstance(data, int):
        os.truncate(fd, data)
    else:
        os.write(fd, data)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd
