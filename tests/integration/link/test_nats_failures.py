"""Servers that die, hang, or are cut off, and the ways in which a host shows who it is."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from sbus_services.link.network.credential_files import sign
from sbus_services.link.network.nats import NatsNetwork, NatsSettings
from tests.integration.link.conftest import Realm, one_server
from tests.support.free_ports import free_port
from tests.support.link_networks import RunningNetwork
from tests.support.nats_servers import NatsServer, require_server, user_seed
from tests.support.skips import require_namespaces, require_root
from tools.netns_hosts import PREFIX, NetnsHosts


def test_a_killed_server_is_reported_and_reconnected_to(realm: Realm) -> None:
    alpha, beta = realm.connected("alpha", "beta")
    beta.subscribe("s.R.m.alpha.a")
    realm.server.kill()
    alpha.wait(lambda: alpha.events.of("disconnected"))
    beta.wait(lambda: beta.events.of("disconnected") and beta.reports)
    assert "cannot connect to tls://127.0.0.1" in beta.reports[-1]
    alpha.publish("s.R.m.alpha.a", b"", b"while it is away")
    assert alpha.network.counters.dropped == 1
    realm.server.start()
    alpha.wait_for_connection(2)
    beta.wait_for_connection(2)
    alpha.publish("s.R.m.alpha.a", b"", b"not subscribed again")
    alpha.settle()
    beta.subscribe("s.R.m.alpha.a")
    alpha.publish("s.R.m.alpha.a", b"", b"back")
    beta.wait(lambda: beta.events.messages)
    assert beta.events.messages == [("s.R.m.alpha.a", b"", b"back")]
    assert [each[0] for each in beta.events.all if each[0] != "received"] == ["connected", "disconnected", "connected"]
    assert beta.network.counters.connects == 2


@one_server
def test_a_server_that_hangs_is_left(realm: Realm) -> None:
    (alpha,) = realm.connected("alpha")
    realm.server.pause()
    try:
        alpha.wait(lambda: alpha.events.of("disconnected"))
        assert alpha.events.texts("disconnected") == "the server has sent nothing for 6 s"
        alpha.wait(lambda: alpha.reports)
    finally:
        realm.server.resume()
    alpha.wait_for_connection(2)


def test_both_ends_notice_a_pulled_cable(program: Path, tmp_path: Path) -> None:
    require_root()
    require_namespaces()
    with NetnsHosts(1, 2, 3, stem="sbus-link") as hosts:
        realm = Realm(program, tmp_path, address=f"{PREFIX}1", namespace=hosts.name(1))
        realm.replace_configuration(lambda text: text + "debug: true\n")
        with realm:
            alpha, beta = realm.host("alpha", namespace=hosts.name(2)), realm.host("beta", namespace=hosts.name(3))
            for each in (alpha, beta):
                each.wait_for_connection()
            beta.subscribe("s.R.m.alpha.a")
            hosts.disconnect(3)
            beta.wait(lambda: beta.events.of("disconnected"))
            assert beta.events.texts("disconnected") == "the server has sent nothing for 6 s"
            alpha.wait(lambda: "Stale Client Connection" in realm.server.log)
            alpha.publish("s.R.m.alpha.a", b"", b"during the cut")
            hosts.connect(3)
            beta.wait_for_connection(2)
            beta.subscribe("s.R.m.alpha.a")
            alpha.publish("s.R.m.alpha.a", b"", b"after the cut")
            beta.wait(lambda: beta.events.messages)
            assert [body for _, _, body in beta.events.messages] == [b"after the cut"]
            assert not alpha.events.of("disconnected")


def test_a_client_without_a_certificate_gets_nothing(realm: Realm) -> None:
    context = ssl.create_default_context(cafile=str(realm.authority.certificate))
    assert "closed" in _ask_without_credentials(realm.port, context)


def _ask_without_credentials(port: int, context: ssl.SSLContext) -> str:
    """Say CONNECT and PING to the server, and return its last words."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        assert b"INFO" in plain.recv(65_536)
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(b'CONNECT {"verbose":false}\r\nSUB > 1\r\nPING\r\n')
                return "closed " + repr(secure.recv(65_536)) if secure.recv(65_536) else "closed"
        except OSError as error:
            return f"closed: {error}"


def test_nkeys_are_accepted_and_wrong_ones_refused(program: Path, tmp_path: Path) -> None:
    realm = Realm(program, tmp_path)
    seeds = {host: _nkey(tmp_path / f"{host}.nk") for host in ("alpha", "beta")}
    realm.with_nkeys(seeds)
    realm.server.check()
    other = tmp_path / "other.nk"
    _nkey(other)
    with realm:
        alpha = realm.host("alpha", settings=replace(realm.nats_settings("alpha"), nkey_file=tmp_path / "alpha.nk"))
        wrong = realm.host("beta", settings=replace(realm.nats_settings("beta"), nkey_file=other))
        none = realm.host("beta")
        alpha.wait_for_connection()
        for each in (wrong, none):
            _wait_for_refusal(each)
            assert not each.events.all
        alpha.publish("s.R.m.beta.a", b"", b"forged")
        alpha.wait(lambda: alpha.events.of("rejected"))


def _wait_for_refusal(host: RunningNetwork) -> None:
    """Wait until *host* knows that the server does not admit it."""
    host.wait(lambda: any("authorization violation" in each.lower() for each in host.reports))


def _nkey(file: Path) -> str:
    """Write the seed of a new nkey into *file*, and return its public key."""
    seed = user_seed(file.name.encode().ljust(32, b"."))
    file.write_text(f"{seed}\n")
    file.chmod(0o600)
    return sign(seed, b"")[0]


def test_passwords_are_read_again_at_each_attempt(program: Path, tmp_path: Path) -> None:
    port = free_port()
    password = tmp_path / "password"
    password.write_text("wrong\n")
    password.chmod(0o600)
    settings = NatsSettings("alpha", (f"nats://127.0.0.1:{port}",), password_file=password)
    text = f'listen: "127.0.0.1:{port}"\nauthorization {{ users: [ {{ user: "alpha", password: {json.dumps("right")} }} ] }}\n'
    realm = Realm(program, tmp_path)
    with NatsServer(program, tmp_path / "plain", text) as server:
        alpha = realm.host("alpha", settings=settings)
        alpha.wait(lambda: len(alpha.reports) >= 2)
        alpha.wait(lambda: any("authorization violation" in each.lower() for each in alpha.reports))
        password.chmod(0o644)
        alpha.wait(lambda: "accessible to other users" in alpha.reports[-1])
        password.chmod(0o600)
        password.write_text("right\n")
        alpha.wait_for_connection()
        assert server.log.count("authentication error") >= 2
        realm.__exit__()


def test_a_host_that_needs_tls_sends_no_password_without_it(program: Path, tmp_path: Path) -> None:
    port = free_port()
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    realm = Realm(program, tmp_path)
    settings = replace(realm.nats_settings("alpha"), servers=(f"tls://127.0.0.1:{port}",), password_file=password)
    with NatsServer(program, tmp_path / "plain", f'listen: "127.0.0.1:{port}"\n'), realm:
        alpha = realm.host("alpha", settings=settings)
        alpha.wait(lambda: alpha.reports)
        assert "the server does not offer TLS" in alpha.reports[0]
        assert not alpha.events.all


@pytest.mark.parametrize(
    ("option", "place"), [("handshake_first: true", "tls"), ('handshake_first: "auto"', "tls"), ("allow_non_tls: true", "")]
)
def test_a_server_may_begin_with_tls_or_only_offer_it(tmp_path: Path, option: str, place: str) -> None:
    with ExitStack() as stack:
        realm = Realm(require_server("pypi"), tmp_path)
        realm.replace_configuration(lambda text: text.replace("tls {", f"tls {{\n  {option}", 1) if place else f"{option}\n{text}")
        stack.enter_context(realm)
        alpha, beta = realm.connected("alpha", "beta")
        for each in (alpha, beta):
            assert isinstance(each.network, NatsNetwork)
            assert each.network.state.encrypted
            assert each.reports == []


@pytest.mark.parametrize("hosts", [1, 300])
def test_the_servers_accept_the_configuration(program: Path, tmp_path: Path, hosts: int) -> None:
    realm = Realm(program, tmp_path)
    realm.settings = replace(realm.settings, hosts=[f"host-{number}" for number in range(hosts)])
    realm.with_nkeys({})
    realm.server.check()
