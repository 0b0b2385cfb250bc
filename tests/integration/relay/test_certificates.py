"""Hosts with certificates, valid and invalid ones."""

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


class CertificateHosts:
    """Two hosts with certificates of one authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        addresses = {twin: free_address() for twin in (1001, 1002)}
        self.hosts = []
        for twin, other in ((1001, 1002), (1002, 1001)):
            host = Host(folder, twin)
            tls = self.authority.settings(self.authority.sign(f"twin-{twin}"))
            host.relay.write(f'listen = "{addresses[twin]}"\n', tls + peer_table(other, addresses[other]))
            host.relay.start()
            self.hosts.append(host)

    def speak(self, certificate: Certificate | None, message: dict[str, object]) -> bytes:
        """Return the first line of the first host's response to *message*, sent with *certificate*."""
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

    def is_received(self, certificate: Certificate | None) -> bool:
        """Return whether a client with *certificate* gets any response."""
        try:
            return self.speak(certificate, incoming()) != b""
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CertificateHosts]:
    require_redis()
    made = CertificateHosts(tmp_path_factory.mktemp("tls"))
    yield made
    for host in made.hosts:
        host.close()
        assert "internal error" not in host.relay.log()


def incoming(**members: object) -> dict[str, object]:
    """Return a request of the second host to the first."""
    return request("direct", 1001, uid=f"1001.{time.monotonic_ns()}", src=1002) | members


def test_calls_go_both_ways(hosts: CertificateHosts) -> None:
    for one, other in (hosts.hosts, hosts.hosts[::-1]):
        ret = one.send("x", other.twin, dat=b"?")
        other.reply(other.receive("msgbus.x"), b"!")
        assert data_of(one.receive(ret)) == b"!"
        assert "authenticated by certificates" in one.relay.log()


def test_the_right_certificate_is_served(hosts: CertificateHosts) -> None:
    certificate = hosts.authority.sign("twin-1002", file="again")
    assert hosts.speak(certificate, incoming()) == b"HTTP/1.1 200 OK"


def test_another_src_than_the_certificates_is_refused(hosts: CertificateHosts) -> None:
    certificate = hosts.authority.sign("twin-1002", file="other")
    assert hosts.speak(certificate, incoming(src=1003)).startswith(b"HTTP/1.1 403 ")
    hosts.hosts[0].relay.wait_logged("forged or unexpected messages from 127.0.0.1: host 1002 sent a message with src 1003")


@pytest.mark.parametrize("names", [("host.example",), ("twin-1002", "twin-1003"), ("twin-0",), ("twin-99999999999",)])
def test_certificate_without_a_host_is_rejected(hosts: CertificateHosts, names: tuple[str, ...]) -> None:
    certificate = hosts.authority.sign(*names, file="names")
    assert hosts.speak(certificate, incoming()).startswith(b"HTTP/1.1 403 ")
    hosts.hosts[0].relay.wait_logged("the certificate must name exactly one host")


def test_a_certificate_of_another_authority_is_refused(hosts: CertificateHosts) -> None:
    wrong = Authority(hosts.folder, "wrong").sign("twin-1002", file="forged")
    assert not hosts.is_received(wrong)
    hosts.hosts[0].relay.wait_logged("unauthenticated requests from 127.0.0.1: TLS handshake failed")


def test_no_certificate_is_refused(hosts: CertificateHosts) -> None:
    assert not hosts.is_received(None)
    hosts.hosts[0].wait_counted("handshakes-failed")


def test_host_with_the_certificate_of_another_gets_no_message(hosts: CertificateHosts) -> None:
    """An attacker at the address of host 1004 with the certificate of another host gets no message."""
    first, second = hosts.hosts
    address = second.relay.listen
    first.relay.stop()
    tls = hosts.authority.settings(hosts.authority.sign("twin-1001", file="first"))
    first.relay.write(f'listen = "{free_address()}"\n', tls + peer_table(1004, address))
    first.relay.start()
    ret = first.send("x", 1004, try_=1)
    answer = first.receive(ret)
    assert "certificate" in answer["err"]
    assert "twin-1004" in answer["err"]
    assert second.redis.llen("msgbus.x") == 0
