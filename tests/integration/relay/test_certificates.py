"""Hosts that know each other by certificates, and what others show."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.authority import Authority, Certificate
from tests.support.relays import Host, data_of, free_address, peer_table, request, require_redis


class World:
    """Two twins of one authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        addresses = {twin: free_address() for twin in (1001, 1002)}
        self.hosts = []
        for twin, other in ((1001, 1002), (1002, 1001)):
            host = Host(folder, twin)
            tls = self.authority.settings(self.authority.sign(f"twin-{twin}"))
            host.relay.write(f'listen = "{addresses[twin]}"\nbody_timeout = "1s"\n', tls + peer_table(other, addresses[other]))
            host.relay.start()
            self.hosts.append(host)

    def speak(self, certificate: Certificate | None, message: dict[str, object]) -> bytes:
        """Return the first line of what the first twin answers to *message*, sent with *certificate*."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.authority.certificate)
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        name, _, port = self.hosts[0].relay.listen.rpartition(":")
        body = json.dumps(message).encode()
        with (
            socket.create_connection((name, int(port)), 30) as plain,
            context.wrap_socket(plain, server_hostname="twin-1001") as connection,
        ):
            connection.sendall(b"POST /zbus-remote HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return connection.recv(65_536).partition(b"\r\n")[0]

    def is_heard(self, certificate: Certificate | None) -> bool:
        """Return whether there is any answer to who shows *certificate*."""
        try:
            return self.speak(certificate, incoming()) != b""
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_redis()
    made = World(tmp_path_factory.mktemp("tls"))
    yield made
    for host in made.hosts:
        host.close()
        assert "internal error" not in host.relay.told()


def incoming(**members: object) -> dict[str, object]:
    """Return a request of the second twin to the first."""
    return request("direct", 1001, uid=f"1001.{time.monotonic_ns()}", src=1002) | members


def test_calls_go_both_ways(world: World) -> None:
    for one, other in (world.hosts, world.hosts[::-1]):
        ret = one.send("x", other.twin, dat=b"?")
        other.reply(other.receive("msgbus.x"), b"!")
        assert data_of(one.receive(ret)) == b"!"
        assert "authenticated by certificates" in one.relay.told()


def test_the_right_certificate_is_served(world: World) -> None:
    certificate = world.authority.sign("twin-1002", file="again")
    assert world.speak(certificate, incoming()) == b"HTTP/1.1 200 OK"


def test_another_src_than_the_certificates_is_refused(world: World) -> None:
    certificate = world.authority.sign("twin-1002", file="other")
    assert world.speak(certificate, incoming(src=1003)).startswith(b"HTTP/1.1 403 ")
    world.hosts[0].relay.wait_told("forged or unexpected messages from 127.0.0.1: host 1002 sent a message with src 1003")


@pytest.mark.parametrize("names", [("host.example",), ("twin-1002", "twin-1003"), ("twin-0",), ("twin-99999999999",)])
def test_a_certificate_that_names_no_twin_is_refused(world: World, names: tuple[str, ...]) -> None:
    certificate = world.authority.sign(*names, file="names")
    assert world.speak(certificate, incoming()).startswith(b"HTTP/1.1 403 ")
    world.hosts[0].relay.wait_told("the certificate must name exactly one host")


def test_a_certificate_of_another_authority_is_refused(world: World) -> None:
    wrong = Authority(world.folder, "wrong").sign("twin-1002", file="forged")
    assert not world.is_heard(wrong)
    world.hosts[0].relay.wait_told("unauthenticated requests from 127.0.0.1: TLS handshake failed")


def test_no_certificate_is_refused(world: World) -> None:
    assert not world.is_heard(None)
    world.hosts[0].wait_counted("handshakes-failed")


def test_a_host_with_anothers_certificate_is_not_spoken_to(world: World) -> None:
    """Who has taken over the address of twin 1004 and has the certificate of another twin gets no message."""
    first, second = world.hosts
    address = second.relay.listen
    first.relay.stop()
    tls = world.authority.settings(world.authority.sign("twin-1001", file="first"))
    first.relay.write(f'listen = "{free_address()}"\n', tls + peer_table(1004, address))
    first.relay.start()
    ret = first.send("x", 1004, try_=1)
    answer = first.receive(ret)
    assert "certificate" in answer["err"]
    assert "twin-1004" in answer["err"]
    assert second.redis.llen("msgbus.x") == 0
