"""NATS servers with the configuration that sbusctl link config prints, and hosts that connect to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from sbus_programs.config.certificates import CertificateFiles
from sbus_services.link.network.nats import NatsNetwork, NatsSettings
from sbus_services.link.permissions import ServerSettings, server_configuration
from tests.support.authority import Authority, Certificate
from tests.support.free_ports import free_port
from tests.support.link_networks import Gate, RunningNetwork
from tests.support.nats_servers import NatsServer, require_server
from tests.support.shared_bus import SharedBus
from tools.stage import Stage


class Realm:
    """One server of the realm R, and its hosts; a context."""

    def __init__(self, program: Path, folder: Path, *, address: str = "127.0.0.1", namespace: str = "") -> None:
        self.authority = Authority(folder)
        self._stack = ExitStack()
        self._signed: dict[str, Certificate] = {}
        self._address = address
        self.port = free_port()
        certificate = self.authority.sign("localhost", addresses=[address], file="server")
        self.settings = ServerSettings(
            "R",
            ["alpha", "beta", "gamma"],
            listen=f"{address}:{self.port}",
            certificate=str(certificate.certificate),
            key=str(certificate.key),
            authority=str(self.authority.certificate),
        )
        self.server = NatsServer(program, folder / "server", server_configuration(self.settings), namespace)

    def __enter__(self) -> Realm:
        self._stack.enter_context(self.server)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"tls://{self._address}:{self.port}"

    def files(self, certificate: Certificate, authority: Path | None = None) -> CertificateFiles:
        """Return the files of a host."""
        return CertificateFiles(certificate.certificate, certificate.key, authority or self.authority.certificate)

    def nats_settings(self, host: str) -> NatsSettings:
        """Return the settings of *host*, which has a certificate."""
        # Signed once: a running host reads its files at each attempt to connect.
        if host not in self._signed:
            self._signed[host] = self.authority.sign(host)
        return NatsSettings(host, (self.url,), self.files(self._signed[host]))

    def host(self, host: str, *, gate: Gate | None = None, namespace: str = "", settings: NatsSettings | None = None) -> RunningNetwork:
        """Start *host*; it stops with the realm."""
        used = settings or self.nats_settings(host)
        writable = (gate or Gate()).writable
        return self._stack.enter_context(RunningNetwork(lambda report: NatsNetwork(used, writable, report), namespace))

    def connected(self, *hosts: str) -> Sequence[RunningNetwork]:
        """Start *hosts*, and return them connected."""
        started = [self.host(host) for host in hosts]
        for each in started:
            each.wait_for_connection()
        return started

    def replace_configuration(self, change: Callable[[str], str]) -> None:
        """Change the configuration of the server before it starts."""
        self.server.configuration.write_text(change(self.server.configuration.read_text()))

    def with_nkeys(self, keys: dict[str, str]) -> None:
        """Write the configuration with nkeys instead of certificates, if there are any, before the server starts."""
        hosts = list(keys) or self.settings.hosts
        self.server.configuration.write_text(server_configuration(replace(self.settings, hosts=hosts, nkeys=keys)))


@pytest.fixture(scope="module")
def module_buses(stage: Stage) -> Iterator[list[SharedBus]]:
    """The buses of two hosts, on which this user may run the link."""
    users = f"users = [{os.geteuid()}]\n"
    with ExitStack() as ends:
        yield [ends.enter_context(SharedBus(stage, f"[rights.vouch]\n{users}[rights.presence]\n{users}")) for _ in range(2)]


@pytest.fixture
def make_bus(module_buses: list[SharedBus]) -> Callable[[], str]:
    """Return the address of the bus of each of two hosts, which has no connection of an earlier test."""
    left = iter(module_buses)
    return lambda: next(left).unused().path


one_server = pytest.mark.parametrize("program", ["debian"], indirect=True)
"""For tests of what the hosts do: test_nats.py compares what both versions of the server do."""


@pytest.fixture(params=["debian", "pypi"])
def program(request: pytest.FixtureRequest) -> Path:
    return require_server(str(request.param))


@pytest.fixture
def realm(program: Path, tmp_path: Path) -> Iterator[Realm]:
    with Realm(program, tmp_path) as running:
        yield running
