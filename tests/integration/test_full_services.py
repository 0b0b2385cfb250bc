"""A service without a descriptor for another connection reports that in one line, and accepts connections again when it has some."""

from __future__ import annotations

import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from tests.support.authority import Authority
from tests.support.blob_programs import BlobProgram
from tests.support.daemons import Daemon
from tests.support.free_ports import free_port
from tests.support.lingering import stopped
from tests.support.link_programs import LinkProgram
from tests.support.metrics_endpoint import Endpoint
from tests.support.relays import Host, wait_for
from tests.support.web_gateway import Gateway

MORE = 9
"""Connections beyond the descriptors that are left, because the service may close others meanwhile."""

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Service:
    """A service that runs as *pid*, accepts connections at *place*, and has written the text that *log* returns."""

    pid: int
    place: str | tuple[str, int]
    kind: socket.SocketKind
    log: Callable[[], str]
    use: Callable[[socket.socket], bytes]
    """Uses a connection, and returns some bytes of a response."""
    spare: int = 3
    """Descriptors that it has left: few, because a user may have only some connections."""

    def connect(self) -> socket.socket:
        """Return a new connection."""
        made = socket.socket(socket.AF_UNIX if isinstance(self.place, str) else socket.AF_INET, self.kind)
        made.settimeout(SECONDS)
        made.connect(self.place)
        return made


def http_response(connection: socket.socket) -> bytes:
    """Send a request, and return the beginning of the response."""
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection.recv(4_096)


def blob_response(connection: socket.socket) -> bytes:
    """Send a request to sbus-blob, and return the response."""
    connection.send(b'{"request":"stats"}')
    return connection.recv(4_096)


def web(folder: Path, bus: Daemon, stack: ExitStack) -> Service:
    """Return sbus-web."""
    made = stack.enter_context(Gateway(folder, bus.path))
    host, port = made.host.split(":")
    return Service(made.process.pid, (host, int(port)), socket.SOCK_STREAM, lambda: made.log, http_response)


def metrics(folder: Path, bus: Daemon, stack: ExitStack) -> Service:
    """Return sbus-metrics."""
    made = stack.enter_context(Endpoint(folder, bus.path))
    assert made.process is not None
    return Service(made.process.pid, made.path, socket.SOCK_STREAM, lambda: made.log, http_response)


def blob(folder: Path, bus: Daemon, stack: ExitStack) -> Service:
    """Return sbus-blob."""
    made = stack.enter_context(BlobProgram(folder, bus.path))
    return Service(made.pid, made.address, socket.SOCK_SEQPACKET, lambda: made.log, blob_response)


def link(folder: Path, bus: Daemon, stack: ExitStack) -> Service:
    """Return sbus-link, which listens for other hosts."""
    authority, port = Authority(folder), free_port()
    other = authority.sign("beta")
    text = f'transport = "direct"\nlisten = "127.0.0.1:{port}"\n{authority.settings(authority.sign("alpha"))}[[peers]]\nhost = "beta"\n'
    made = stack.enter_context(LinkProgram(folder, "alpha", bus.path, text))
    made.wait_for_hosts()
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(other.certificate, other.key)

    def greeting(connection: socket.socket) -> bytes:
        with context.wrap_socket(connection, server_hostname="alpha") as secure:
            return secure.recv(4_096)

    return Service(made.pid, ("127.0.0.1", port), socket.SOCK_STREAM, lambda: made.log, greeting)


def relay(folder: Path, bus: Daemon, stack: ExitStack) -> Service:
    """Return sbus-relay."""
    made = Host(folder, 1)
    stack.callback(made.close)
    host, port = made.relay.start().listen.rsplit(":", 1)
    assert made.relay.process is not None
    return Service(
        made.relay.process.pid, (host, int(port)), socket.SOCK_STREAM, made.relay.log, http_response, spare=20
    )  # it connects to Redis later


@contextmanager
def descriptors_left(pid: int, count: int) -> Iterator[None]:
    """Leave *count* descriptors to the process."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    free = (number for number in range(hard) if number not in used)
    most = next(islice(free, count, None))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("start", [web, metrics, blob, link, relay])
def test_a_service_without_descriptors_accepts_connections_again(
    start: Callable[[Path, Daemon, ExitStack], Service], folder: Path, bus: Daemon
) -> None:
    with ExitStack() as stack:
        service = start(folder, bus, stack)
        with descriptors_left(service.pid, service.spare):
            with ExitStack() as held:
                # They wait together, so that none is closed before the next is accepted.
                with stopped(service.pid):
                    for _ in range(service.spare + MORE):
                        held.enter_context(service.connect())
                wait_for(lambda: "paused accepting connections: " in service.log(), f"the record: {service.log()}", SECONDS)
            with service.connect() as connection:
                assert service.use(connection), service.log()
        log = service.log()
        records = [line for line in log.splitlines() if "paused accepting connections" in line]
        assert all("connections: no file descriptor is left. Raise LimitNOFILE= of the unit" in line for line in records), log
        assert "Traceback" not in log, log
