"""Links that talk to each other without a server: what arrives, which hosts are admitted, and what hosts that misbehave can do."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from sbus_programs.config.certificates import CertificateFiles
from sbus_services.link.network import direct_frames, direct_listener
from sbus_services.link.network.direct import DirectNetwork, DirectSettings
from tests.support.authority import Authority, Certificate
from tests.support.free_ports import free_port
from tests.support.link_networks import Gate, RunningNetwork
from tests.support.skips import require_namespaces, require_root
from tools.netns_hosts import PREFIX, NetnsHosts

HOSTS = ("alpha", "beta", "gamma")


class Mesh:
    """Hosts of the realm R, each of which knows the others; a context."""

    def __init__(self, folder: Path, addresses: dict[str, str] | None = None) -> None:
        self.authority = Authority(folder)
        self.certificates = {host: self.authority.sign(host) for host in HOSTS}
        addresses = addresses or dict.fromkeys(HOSTS, "127.0.0.1")
        self.addresses = {host: (addresses[host], free_port()) for host in HOSTS}
        self._stack = ExitStack()

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def settings(self, host: str, peers: tuple[str, ...] = HOSTS, max_pending_bytes: int = 4 << 20) -> DirectSettings:
        """Return the settings of *host*."""
        known = {peer: self.addresses[peer] for peer in peers if peer != host}
        return DirectSettings("R", host, self.addresses[host], known, self.files(self.certificates[host]), max_pending_bytes)

    def one_way(self, host: str, max_pending_bytes: int = 4 << 20) -> DirectSettings:
        """Return the settings of *host* if only the lesser of two hosts connects: a second connection replaces the first, and what is on
        its way is lost.
        """
        settings = self.settings(host, max_pending_bytes=max_pending_bytes)
        return replace(settings, peers={peer: address if host < peer else None for peer, address in settings.peers.items()})

    def files(self, certificate: Certificate) -> CertificateFiles:
        """Return the files of a host."""
        return CertificateFiles(certificate.certificate, certificate.key, self.authority.certificate)

    def start(self, host: str, settings: DirectSettings | None = None, gate: Gate | None = None, namespace: str = "") -> RunningNetwork:
        """Start *host*."""
        used = settings or self.settings(host)
        writable = (gate or Gate()).writable
        return self._stack.enter_context(RunningNetwork(lambda report: DirectNetwork(used, writable, report), namespace))

    def enemy(self, to: str, certificate: Certificate | None) -> Enemy:
        """Connect an enemy to the host *to*."""
        return self._stack.enter_context(closing(Enemy(self, to, certificate)))

    def connected(self, *hosts: str) -> list[RunningNetwork]:
        """Start *hosts*, and return them when each is connected to all others."""
        started = [self.start(host, self.one_way(host)) for host in hosts]
        for each in started:
            each.wait(lambda each=each: len(direct(each)._connections) == len(hosts) - 1)  # type: ignore[misc]
        return started


def direct(host: RunningNetwork) -> DirectNetwork:
    assert isinstance(host.network, DirectNetwork)
    return host.network


def reported(host: RunningNetwork, words: str) -> bool:
    """Return whether *host* has reported *words*: a later failure replaces the last error of a counter."""
    return any(words in report for report in host.reports)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with Mesh(tmp_path) as made:
        yield made


def test_a_host_that_does_not_listen_connects_and_the_other_one_reports_that_it_waits(mesh: Mesh) -> None:
    beta = mesh.start("beta", replace(mesh.settings("beta", ("alpha",)), peers={"alpha": None}))
    beta.wait(lambda: "host alpha has no address here, and has not connected" in beta.network.counters.last_error)
    alpha = mesh.start("alpha", replace(mesh.settings("alpha", ("beta",)), listen=None))
    for each in (alpha, beta):
        each.wait_for_connection()


class Enemy:
    """A program with the certificate of a host, or another one, that sends any bytes."""

    def __init__(self, mesh: Mesh, to: str, certificate: Certificate | None) -> None:
        context = ssl.create_default_context(cafile=str(mesh.authority.certificate))
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        plain = socket.create_connection(mesh.addresses[to], timeout=60)
        try:
            self._socket = context.wrap_socket(plain, server_hostname=to)
        except OSError:
            plain.close()
            raise
        self._reader = direct_frames.FrameReader()
        self.frames: list[direct_frames.Frame] = []

    def send(self, *frames: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(b"".join(frames))

    def greet(self) -> None:
        """Send the first frame."""
        self.send(direct_frames.hello("R"))

    def wait_for(self, kind: direct_frames.FrameKind) -> direct_frames.Frame:
        """Return the next frame of *kind*."""
        while True:
            for index, frame in enumerate(self.frames):
                if frame.kind is kind:
                    return self.frames.pop(index)
            data = self._socket.recv(65_536)
            assert data, f"closed before {kind.name}"
            self.frames += self._reader.feed(data)

    def wait_for_end(self) -> None:
        """Return when the host closes the connection."""
        try:
            while self._socket.recv(65_536):
                pass
        except (ConnectionError, ssl.SSLError):
            return

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def test_only_hosts_that_want_a_message_get_it(mesh: Mesh) -> None:
    alpha, beta, gamma = mesh.connected(*HOSTS)
    beta.subscribe("s.R.m.*.net.>", "s.R.x.beta.*")
    gamma.subscribe("s.R.m.alpha.other", "s.R.h.*")
    alpha.settle()
    body = bytes(range(256)) * 1_000
    alpha.publish("s.R.m.alpha.net.a", b"1/2", body)
    alpha.publish("s.R.x.beta.alpha", b"", b"secret")
    alpha.publish("s.R.h.alpha", b"3", b"")
    alpha.publish("s.R.m.alpha.unwanted", b"", b"")
    beta.wait(lambda: len(beta.events.messages) == 2)
    gamma.wait(lambda: gamma.events.messages)
    assert beta.events.messages == [("s.R.m.alpha.net.a", b"1/2", body), ("s.R.x.beta.alpha", b"", b"secret")]
    assert gamma.events.messages == [("s.R.h.alpha", b"3", b"")]
    assert alpha.network.counters.messages_out == 3
    assert alpha.events.of("connected") == [()]


def test_order_is_kept_and_overlapping_subscriptions_bring_one_copy(mesh: Mesh) -> None:
    alpha, beta = mesh.connected("alpha", "beta")
    beta.subscribe("s.R.m.alpha.>", "s.R.m.alpha.a.*", "s.R.h.*")
    alpha.settle()

    def publish() -> None:
        for number in range(5_000):
            alpha.network.publish(("s.R.m.alpha.a.b", "s.R.h.alpha")[number % 2], b"", b"%d" % number)

    alpha.call(publish)
    beta.wait(lambda: len(beta.events.messages) == 5_000)
    assert [body for _, _, body in beta.events.messages] == [b"%d" % number for number in range(5_000)]


def test_a_barrier_waits_for_every_host(mesh: Mesh) -> None:
    alpha, beta, gamma = mesh.connected(*HOSTS)
    for each in (beta, gamma):
        each.subscribe("s.R.m.alpha.a")
    alpha.settle()

    def publish() -> None:
        for _ in range(50):
            alpha.network.publish("s.R.m.alpha.a", b"", b"")
        alpha.network.barrier(9)

    alpha.call(publish)
    alpha.wait(lambda: alpha.events.of("barrier"))
    assert alpha.events.of("barrier") == [(9,)]
    assert [len(each.events.messages) for each in (beta, gamma)] == [50, 50]


def test_subscriptions_end_and_are_restored_for_a_host_that_comes_later(mesh: Mesh) -> None:
    alpha, beta = mesh.connected("alpha", "beta")
    beta.subscribe("s.R.m.*.a", "s.R.m.*.b")
    beta.call(lambda: beta.network.unsubscribe("s.R.m.*.a"))
    gamma = mesh.start("gamma", mesh.one_way("gamma"))
    gamma.wait(lambda: len(direct(gamma)._connections) == 2)
    gamma.wait(lambda: len(direct(gamma)._connections["beta"].subjects) == 1)
    gamma.publish("s.R.m.gamma.a", b"", b"")
    gamma.publish("s.R.m.gamma.b", b"", b"")
    beta.wait(lambda: beta.events.messages)
    assert beta.events.messages == [("s.R.m.gamma.b", b"", b"")]
    assert alpha.events.of("connected") == [()]


def test_a_host_that_stops_is_reported_and_reconnected(mesh: Mesh) -> None:
    alpha = mesh.start("alpha", mesh.one_way("alpha"))
    with RunningNetwork(lambda report: DirectNetwork(mesh.one_way("beta"), Gate().writable, report)) as beta:
        beta.wait_for_connection()
        alpha.wait_for_connection()
    alpha.wait(lambda: alpha.events.of("disconnected"))
    assert "host beta is disconnected: " in alpha.events.texts("disconnected")
    beta = mesh.start("beta", mesh.one_way("beta"))
    alpha.wait_for_connection(2)
    beta.wait_for_connection()
    beta.subscribe("s.R.m.alpha.a")
    alpha.settle()
    alpha.publish("s.R.m.alpha.a", b"", b"again")
    beta.wait(lambda: beta.events.messages)


def test_both_ends_notice_a_pulled_cable(tmp_path: Path) -> None:
    require_root()
    require_namespaces()
    addresses = {host: f"{PREFIX}{number}" for number, host in enumerate(HOSTS, 1)}
    with NetnsHosts(1, 2, 3, stem="sbus-direct") as hosts, Mesh(tmp_path, addresses) as mesh:
        alpha, beta, gamma = (mesh.start(host, mesh.one_way(host), namespace=hosts.name(number)) for number, host in enumerate(HOSTS, 1))
        for each in (alpha, beta, gamma):
            each.wait(lambda each=each: len(direct(each)._connections) == 2)  # type: ignore[misc]
        hosts.disconnect(3)
        gamma.wait(lambda: gamma.events.of("disconnected"))
        alpha.wait(lambda: "gamma" not in direct(alpha)._connections)
        assert "it has sent nothing for 6 s" in gamma.events.texts("disconnected")
        assert reported(alpha, "host gamma is disconnected: it has sent nothing for 6 s")
        assert not alpha.events.of("disconnected")  # beta is still there
        hosts.connect(3)
        gamma.wait_for_connection(2)
        gamma.wait(lambda: len(direct(gamma)._connections) == 2)
        gamma.subscribe("s.R.m.alpha.a")
        alpha.settle()
        alpha.publish("s.R.m.alpha.a", b"", b"after the cut")
        gamma.wait(lambda: gamma.events.messages)


def test_a_slow_host_costs_itself_messages_and_not_the_others(mesh: Mesh) -> None:
    gate = Gate()
    alpha = mesh.start("alpha", mesh.one_way("alpha", 1 << 20))
    beta, gamma = mesh.start("beta", mesh.one_way("beta"), gate=gate), mesh.start("gamma", mesh.one_way("gamma"))
    for each in (alpha, beta, gamma):
        each.wait(lambda each=each: len(direct(each)._connections) == 2)  # type: ignore[misc]
    for each in (beta, gamma):
        each.subscribe("s.R.m.alpha.a")
    alpha.settle()
    beta.call(gate.shut)
    for number in range(400):
        alpha.publish("s.R.m.alpha.a", b"%d" % number, bytes(50_000))
        gamma.wait(lambda number=number: len(gamma.events.messages) == number + 1)  # type: ignore[misc]
    of_beta, of_gamma = (direct(alpha).peer_counters[name] for name in ("beta", "gamma"))
    assert of_gamma.dropped == 0
    assert of_beta.dropped > 0
    beta.call(gate.open)
    beta.wait(lambda: len(beta.events.messages) == 400 - of_beta.dropped)
    assert of_beta.messages_out == 400 - of_beta.dropped
    assert [head for _, head, _ in beta.events.messages] == [b"%d" % number for number in range(of_beta.messages_out)]


def test_a_message_over_the_limit_is_refused_before_it_is_sent(mesh: Mesh) -> None:
    alpha, beta = mesh.connected("alpha", "beta")
    beta.subscribe("s.R.m.alpha.a")
    alpha.settle()
    alpha.publish("s.R.m.alpha.a", b"", bytes(1 << 20))
    alpha.publish("s.R.m.alpha.a", b"", bytes(409_600))
    beta.wait(lambda: beta.events.messages)
    assert [len(body) for _, _, body in beta.events.messages if isinstance(body, bytes)] == [409_600]
    assert alpha.network.counters.oversize == 1
    assert "exceeds 1048576" in alpha.events.texts("rejected")


def test_another_hosts_subject_is_refused_and_reported(mesh: Mesh) -> None:
    alpha, gamma = mesh.connected("alpha", "gamma")
    gamma.subscribe("s.R.m.>", "s.R.x.gamma.*", "s.R.h.*")
    alpha.settle()
    forged = ["s.R.m.beta.a", "s.R.x.gamma.beta", "s.R.h.beta"]
    for subject in forged:
        alpha.publish(subject, b"", b"forged")
    alpha.publish("s.R.m.alpha.a", b"", b"honest")
    gamma.wait(lambda: gamma.events.messages)
    assert gamma.events.messages == [("s.R.m.alpha.a", b"", b"honest")]
    alpha.wait(lambda: len(alpha.events.of("rejected")) == 3)
    assert "host gamma said: host alpha may not publish to s.R.m.beta.a" in alpha.events.texts("rejected")
    assert direct(gamma).peer_counters["alpha"].forged == gamma.network.counters.forged == 3


@pytest.mark.parametrize("subject", ["s.R.x.alpha.*", "s.R.x.>", ">", "s.R.>", "s.OTHER.m.>"])
def test_what_is_for_another_host_cannot_be_subscribed_to(mesh: Mesh, subject: str) -> None:
    _, beta, gamma = mesh.connected(*HOSTS)
    gamma.subscribe(subject)
    beta.settle()
    beta.publish("s.R.x.alpha.beta", b"", b"for alpha")
    beta.settle()
    assert gamma.events.messages == []
    assert f"host gamma may not subscribe to {subject}" in gamma.events.texts("rejected")
    assert len(direct(beta)._connections["gamma"].subjects) == 0


@pytest.mark.parametrize(
    ("names", "foreign", "says"),
    [
        (("alpha",), True, "certificate rejected: unable to get local issuer certificate"),
        (("delta",), False, "the certificate names delta, which is not one of the configured peers"),
        (("beta", "alpha"), False, "the certificate names alpha, beta, which is not one"),
        ((), False, "TLS: peer did not return a certificate"),
    ],
    ids=["foreign-authority", "unknown-host", "two-hosts", "no-certificate"],
)
def test_who_is_not_one_host_is_not_admitted(mesh: Mesh, tmp_path: Path, names: tuple[str, ...], foreign: bool, says: str) -> None:
    gamma = mesh.start("gamma", mesh.settings("gamma"))
    gamma.wait(lambda: len(gamma.reports) >= 1)  # it listens, and the others are away
    other = tmp_path / "other"
    other.mkdir()
    signer = Authority(other, "foreign") if foreign else mesh.authority
    certificate = signer.sign(*names, file="other") if names else None
    enemy = mesh.enemy("gamma", certificate)  # TLS 1.3: the other end refuses the certificate only afterwards
    enemy.wait_for_end()
    enemy.close()
    gamma.wait(lambda: any("refused a connection from 127.0.0.1" in each for each in gamma.reports))
    assert any(says.lower() in each.lower() for each in gamma.reports), gamma.reports
    assert gamma.network.counters.refused_connections == 1
    assert not gamma.events.all


@pytest.mark.parametrize(
    ("attack", "says"),
    [
        (b"\xff\xff\xff\xff", "it sent a frame of 4294967295 bytes"),
        (bytes(4), "it sent a frame of 0 bytes"),
        (struct.pack("<IB", 1, 99), "it sent a frame of unknown kind 99"),
        (struct.pack("<IBH", 3, 2, 500), "it sent a message whose subject is longer than the frame"),
        (struct.pack("<IBH", 8, 2, 1) + b"a" + struct.pack("<H", 9) + bytes(2), "it sent a message whose head is longer than the frame"),
        (struct.pack("<IBH", 4, 2, 1) + b"a", "it sent a message that ends before its head"),
        (struct.pack("<IB", 4, 3) + b"a b", "it sent invalid subject b'a b'"),
        (struct.pack("<IB", 2, 5) + b"1", "it sent a ping of 1 bytes"),
        (direct_frames.hello("R"), "it sent a second HELLO"),
        (b"GET / HTTP/1.1\r\n\r\n", "it sent a frame of 542393671 bytes"),
    ],
)
def test_invalid_frames_end_the_connection_of_their_host_only(mesh: Mesh, attack: bytes, says: str) -> None:
    beta, gamma = mesh.connected("beta", "gamma")
    enemy = mesh.enemy("gamma", mesh.certificates["alpha"])
    enemy.greet()
    gamma.wait(lambda: len(direct(gamma)._connections) == 2)
    enemy.send(attack)
    enemy.wait_for_end()
    gamma.wait(lambda: reported(gamma, f"host alpha is disconnected: {says}"))
    gamma.settle()
    assert set(direct(gamma)._connections) == {"beta"}
    assert not beta.events.of("disconnected")
    enemy.close()


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (direct_frames.hello("S"), "it sent realm b'S'; this host is in R"),
        (struct.pack("<IBB", 2, 1, 9), "it sent version 9 of the link protocol"),
        (direct_frames.subscribe("a"), "it sent a frame of kind SUBSCRIBE before HELLO"),
    ],
)
def test_a_wrong_first_frame_ends_the_connection(mesh: Mesh, first: bytes, says: str) -> None:
    gamma = mesh.start("gamma")
    gamma.wait(lambda: gamma.reports)
    enemy = mesh.enemy("gamma", mesh.certificates["alpha"])
    enemy.send(first)
    enemy.wait_for_end()
    gamma.wait(lambda: any(says in each for each in gamma.reports))
    assert not gamma.events.all
    enemy.close()


def test_hosts_that_never_finish_cost_only_themselves(mesh: Mesh) -> None:
    """Connections without a handshake, one that stays silent after it, and one that never finishes a frame."""
    beta, gamma = mesh.connected("beta", "gamma")
    plain = [socket.create_connection(mesh.addresses["gamma"], timeout=60) for _ in range(20)]
    counters = gamma.network.counters
    gamma.wait(lambda: counters.ended_handshakes > 0)  # eight may be pending from one address
    gamma.wait(lambda: counters.ended_handshakes + counters.refused_connections == 20)  # the others have no time left
    for each in plain:
        each.close()
    enemy = mesh.enemy("gamma", mesh.certificates["alpha"])
    enemy.greet()
    gamma.wait(lambda: "alpha" in direct(gamma)._connections)
    enemy.send(struct.pack("<IB", 1_000_000, 2))
    enemy.wait_for_end()
    enemy.close()
    gamma.wait(lambda: reported(gamma, "host alpha is disconnected: it has sent nothing for 6 s"))
    gamma.settle()
    assert not beta.events.of("disconnected")


def test_idle_connections_of_its_address_do_not_keep_a_host_out(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_listener, "HANDSHAKE_SECONDS", 600.0)  # longer than the test waits
    gamma = mesh.start("gamma", mesh.one_way("gamma"))
    gamma.wait(lambda: gamma.network.counters.last_error)  # it listens, and waits for the others
    with ExitStack() as idle:
        for _ in range(direct_listener.MAX_HANDSHAKES_OF_ADDRESS):
            idle.enter_context(closing(socket.create_connection(mesh.addresses["gamma"], timeout=60)))
        beta = mesh.start("beta", mesh.one_way("beta"))
        for each in (beta, gamma):
            each.wait_for_connection()
    assert gamma.network.counters.ended_handshakes >= 1


def test_a_host_that_does_not_read_is_disconnected(mesh: Mesh) -> None:
    """Responses to its pings wait for it, up to a limit."""
    (gamma,) = [mesh.start("gamma", mesh.settings("gamma", max_pending_bytes=1))]
    gamma.wait(lambda: gamma.reports)
    enemy = mesh.enemy("gamma", mesh.certificates["alpha"])
    enemy.greet()
    gamma.wait(lambda: "alpha" in direct(gamma)._connections)
    pings = direct_frames.ping(1) * 10_000
    try:
        while "alpha" in direct(gamma)._connections:
            enemy.send(pings)
    except (ConnectionError, ssl.SSLError):
        pass
    gamma.wait(lambda: reported(gamma, "host alpha is disconnected: it does not read"))
    enemy.close()


def test_a_host_cannot_subscribe_without_limit(mesh: Mesh) -> None:
    gamma = mesh.start("gamma")
    gamma.wait(lambda: gamma.reports)
    enemy = mesh.enemy("gamma", mesh.certificates["alpha"])
    enemy.greet()
    enemy.send(*(direct_frames.subscribe(f"s.R.m.*.{number}") for number in range(5_001)))
    assert b"subscription refused: there are 5000 subscriptions" in enemy.wait_for(direct_frames.FrameKind.REJECTED).content
    enemy.send(direct_frames.subscribe("s.R.m.gamma." + "a." * 30 + "a"))
    assert b"the maximum is 32" in enemy.wait_for(direct_frames.FrameKind.REJECTED).content
    assert len(direct(gamma)._connections["alpha"].subjects) == 5_000
    enemy.close()


def test_the_newer_of_two_connections_from_one_host_is_used(mesh: Mesh) -> None:
    gamma = mesh.start("gamma")
    gamma.wait(lambda: gamma.reports)
    first, second = (mesh.enemy("gamma", mesh.certificates["alpha"]) for _ in range(2))
    first.greet()
    gamma.wait_for_connection()
    gamma.call(lambda: gamma.network.subscribe("s.R.i.*"))
    second.greet()
    assert second.wait_for(direct_frames.FrameKind.SUBSCRIBE).content == b"s.R.i.*"
    first.wait_for_end()
    second.send(direct_frames.message("s.R.i.alpha", b"1", b"2") or b"")
    gamma.wait(lambda: gamma.events.messages)
    assert gamma.events.of("connected") == [()]
    assert not gamma.events.of("disconnected")
    first.close()
    second.close()


@pytest.mark.parametrize("defective", ["alpha", "beta"], ids=["dialler", "listener"])
def test_a_defect_of_the_session_ends_the_adapter(mesh: Mesh, defective: str) -> None:
    hosts = dict(zip(("alpha", "beta"), mesh.connected("alpha", "beta"), strict=True))
    bad = hosts.pop(defective)
    (good,) = hosts.values()

    def fail(subject: str, head: bytes, body: bytes) -> None:
        raise ZeroDivisionError("a defect")

    bad.events.received = fail  # type: ignore[method-assign]
    bad.subscribe("s.R.i.*")
    good.settle()
    good.publish("s.R.i.alpha" if defective == "beta" else "s.R.i.beta", b"", b"")
    good.wait(lambda: bad.error is not None)
    assert isinstance(bad.error, ZeroDivisionError)
    bad.error = None
