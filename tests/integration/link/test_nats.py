"""The link's network on real NATS servers: what arrives, in which order, and what the server refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sbus_services.link.network.nats import NatsNetwork, NatsSettings
from sbus_services.link.network.nats_connection import NatsConnection
from tests.integration.link.conftest import Realm
from tests.support.authority import Authority
from tests.support.link_networks import Gate, RunningNetwork


def test_a_message_arrives_with_head_and_body_as_they_were(realm: Realm) -> None:
    alpha, beta = realm.connected("alpha", "beta")
    beta.subscribe("s.R.m.*.net.>", "s.R.x.beta.*")
    body = bytes(range(256)) * 8
    alpha.publish("s.R.m.alpha.net.=FF", b"1/2/3", body)
    alpha.publish("s.R.x.beta.alpha", b"", b"")
    beta.wait(lambda: len(beta.events.messages) == 2)
    assert beta.events.messages == [("s.R.m.alpha.net.=FF", b"1/2/3", body), ("s.R.x.beta.alpha", b"", b"")]
    assert (beta.network.counters.messages_in, beta.network.counters.bytes_in) == (2, 5 + len(body))
    assert (alpha.network.counters.messages_out, alpha.network.counters.bytes_out) == (2, 5 + len(body))


def test_nobody_receives_its_own_messages(realm: Realm) -> None:
    (alpha,) = realm.connected("alpha")
    alpha.subscribe("s.R.m.>")
    alpha.publish("s.R.m.alpha.a", b"", b"1")
    alpha.settle()
    assert alpha.events.messages == []


def test_order_is_kept_across_subscriptions(realm: Realm) -> None:
    alpha, beta = realm.connected("alpha", "beta")
    beta.subscribe("s.R.m.alpha.a.>", "s.R.m.alpha.b.>", "s.R.h.*")
    count = 3_000

    def publish() -> None:
        for number in range(count):
            subject = ("s.R.m.alpha.a.x", "s.R.m.alpha.b.x", "s.R.h.alpha")[number % 3]
            alpha.network.publish(subject, b"", b"%d" % number)

    alpha.call(publish)
    beta.wait(lambda: len(beta.events.messages) == count)
    assert [body for _, _, body in beta.events.messages] == [b"%d" % number for number in range(count)]


def test_a_subscription_ends(realm: Realm) -> None:
    alpha, beta = realm.connected("alpha", "beta")
    beta.subscribe("s.R.m.alpha.a", "s.R.m.alpha.b")
    beta.call(lambda: beta.network.unsubscribe("s.R.m.alpha.a"))
    beta.settle()
    alpha.publish("s.R.m.alpha.a", b"", b"no")
    alpha.publish("s.R.m.alpha.b", b"", b"yes")
    beta.wait(lambda: beta.events.messages)
    assert beta.events.messages == [("s.R.m.alpha.b", b"", b"yes")]


@pytest.mark.parametrize(
    "subject", ["s.R.m.beta.a", "s.R.h.beta", "s.R.i.beta", "s.R.x.gamma.beta", "s.OTHER.m.alpha.a", "$SYS.REQ.SERVER.PING"]
)
def test_another_hosts_subject_is_refused_and_reported(realm: Realm, subject: str) -> None:
    alpha, gamma = realm.connected("alpha", "gamma")
    gamma.subscribe("s.R.m.>", "s.R.h.*", "s.R.i.*", "s.R.x.gamma.*")
    alpha.publish(subject, b"", b"forged")
    alpha.publish("s.R.m.alpha.a", b"", b"honest")
    alpha.wait(lambda: alpha.events.of("rejected"))
    gamma.wait(lambda: gamma.events.messages)
    assert [body for _, _, body in gamma.events.messages] == [b"honest"]
    assert f'Permissions Violation for Publish to "{subject}"' in alpha.events.texts("rejected")
    assert alpha.network.counters.rejected == 1
    assert not alpha.events.of("disconnected")


@pytest.mark.parametrize("subject", ["s.R.x.alpha.*", "s.R.x.>", "s.R.>", ">", "s.*.m.>", "s.OTHER.m.>"])
def test_what_is_for_another_host_cannot_be_subscribed_to(realm: Realm, subject: str) -> None:
    alpha, beta, gamma = realm.connected("alpha", "beta", "gamma")
    gamma.subscribe(subject, "s.R.x.gamma.*")
    beta.publish("s.R.x.alpha.beta", b"", b"for alpha")
    beta.publish("s.R.x.gamma.beta", b"", b"for gamma")
    gamma.wait(lambda: gamma.events.messages)
    assert gamma.events.messages == [("s.R.x.gamma.beta", b"", b"for gamma")]
    assert "Permissions Violation for Subscription" in gamma.events.texts("rejected")
    assert not alpha.events.messages


def test_the_longest_subjects_of_keys_arrive(realm: Realm) -> None:
    """24 tokens of 97 characters, and as long as the adapter permits."""
    alpha, beta = realm.connected("alpha", "beta")
    longest = "s.R.m.alpha." + ".".join(["=h" + "a" * 95] * 24) + ".=c"
    limit = "s.R.m.alpha." + "b" * (3_900 - 12)
    beta.subscribe(longest, limit)
    alpha.publish(longest, b"1", b"")
    alpha.publish(limit, b"2", b"")
    beta.wait(lambda: len(beta.events.messages) == 2)
    assert [head for _, head, _ in beta.events.messages] == [b"1", b"2"]
    with pytest.raises(ValueError, match="invalid subject"):
        alpha.publish(limit + "b", b"", b"")
    assert not alpha.events.of("disconnected")


def test_a_message_over_the_servers_limit_is_refused_before_it_is_sent(realm: Realm) -> None:
    alpha, beta = realm.connected("alpha", "beta")
    beta.subscribe("s.R.m.alpha.a")
    most = (1 << 20) - len(b"NATS/1.0\r\nS: h\r\n\r\n")
    alpha.publish("s.R.m.alpha.a", b"h", bytes(most + 1))
    alpha.publish("s.R.m.alpha.a", b"h", bytes(most))
    beta.wait(lambda: beta.events.messages)
    assert [len(body) for _, _, body in beta.events.messages if isinstance(body, bytes)] == [most]
    assert alpha.network.counters.oversize == 1
    assert f"a message of {most + 2} bytes to s.R.m.alpha.a exceeds the server's 1048576" in alpha.events.texts("rejected")
    assert not alpha.events.of("disconnected")


def test_a_barrier_is_passed_after_the_messages_before_it(realm: Realm) -> None:
    alpha, beta = realm.connected("alpha", "beta")
    beta.subscribe("s.R.m.alpha.a")

    def publish() -> None:
        for number in range(100):
            alpha.network.publish("s.R.m.alpha.a", b"", b"%d" % number)
        alpha.network.barrier(7)

    alpha.call(publish)
    alpha.wait(lambda: alpha.events.of("barrier"))
    beta.settle()  # the server has sent beta everything that it had got from alpha
    assert len(beta.events.messages) == 100
    assert alpha.events.of("barrier") == [(7,)]


def test_a_full_local_bus_stalls_the_server_and_loses_nothing(program: Path, tmp_path: Path) -> None:
    realm = Realm(program, tmp_path)
    # This test must not depend on how long the stall lasts.
    realm.replace_configuration(lambda text: text.replace('"5s"', '"600s"').replace('"2s"', '"600s"'))
    with realm:
        gate = Gate()
        beta = realm.host("beta", gate=gate)
        beta.wait_for_connection()
        beta.subscribe("s.R.m.alpha.a")
        (alpha,) = realm.connected("alpha")
        beta.call(gate.shut)
        count, body = 600, bytes(50_000)
        for _ in range(count):
            alpha.publish("s.R.m.alpha.a", b"", body)  # 30 MB, more than the sockets hold
            alpha.wait(lambda: _connection(alpha).pending_bytes < 4 << 20)
        alpha.settle()
        assert len(beta.events.messages) < 20
        reader = _connection(beta)._reader
        assert reader is not None
        assert len(reader._buffer) < 1 << 20  # type: ignore[attr-defined]
        beta.call(gate.open)
        beta.wait(lambda: len(beta.events.messages) == count)
        assert beta.network.counters.stalls >= 1
        assert beta.network.counters.stalled_seconds > 0
        assert not beta.events.of("disconnected")


def _connection(host: RunningNetwork) -> NatsConnection:
    assert isinstance(host.network, NatsNetwork)
    assert host.network._connection is not None
    return host.network._connection


def test_what_exceeds_the_pending_limit_is_counted(realm: Realm) -> None:
    settings = replace(realm.nats_settings("alpha"), max_pending_bytes=100_000)
    alpha = realm.host("alpha", settings=settings)
    alpha.wait_for_connection()
    (beta,) = realm.connected("beta")
    beta.subscribe("s.R.m.alpha.a")

    def publish() -> None:
        for _ in range(20):
            alpha.network.publish("s.R.m.alpha.a", b"", bytes(10_000))

    alpha.call(publish)
    alpha.settle()
    beta.settle()
    counters = alpha.network.counters
    assert 0 < counters.dropped < 20
    assert len(beta.events.messages) == counters.messages_out == 20 - counters.dropped
    assert [report for report in alpha.reports if "messages are lost" in report]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s, _: replace(s, tls=None, servers=(s.servers[0].replace("tls:", "nats:"),)), "the server requires TLS"),
        (lambda s, r: replace(s, tls=r.files(r.authority.sign("delta"))), "authorization violation"),
        (lambda s, r: replace(s, servers=(f"tls://localhost.localdomain:{r.port}", s.servers[0].replace("127.0.0.1", "localhost"))), ""),
    ],
    ids=["no-tls", "unknown-host", "second-server"],
)
def test_who_is_not_a_host_is_not_admitted(realm: Realm, change: Callable[[NatsSettings, Realm], NatsSettings], says: str) -> None:
    other_host = realm.host("alpha", settings=change(realm.nats_settings("alpha"), realm))
    if not says:
        other_host.wait_for_connection()  # one bad server of several does not matter
        return
    other_host.wait(lambda: len(other_host.reports) >= 2)
    other_host.wait(lambda: any(says in each.lower() or says in each for each in other_host.reports))
    assert other_host.network.counters.connect_failures >= 2
    assert not other_host.events.all


def test_certificates_of_another_authority_are_refused_by_both_sides(realm: Realm, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    foreign = Authority(other, "foreign")
    certificate = foreign.sign("alpha")
    settings = realm.nats_settings("alpha")
    ours = replace(settings, tls=realm.files(certificate))
    theirs = replace(settings, tls=realm.files(realm.authority.sign("alpha"), foreign.certificate))
    not_us, not_them = realm.host("alpha", settings=ours), realm.host("alpha", settings=theirs)
    not_us.wait(lambda: not_us.reports)
    not_them.wait(lambda: any("certificate rejected: " in each for each in not_them.reports))
    assert "cannot connect to tls://" in not_us.reports[0]  # the alert of TLS, or a connection that the server has closed or reset
    assert not not_us.events.all
    assert not not_them.events.all


def test_a_name_that_the_certificate_of_the_server_does_not_have_is_refused(realm: Realm) -> None:
    settings = replace(realm.nats_settings("alpha"), servers=(f"tls://127.0.0.2:{realm.port}",))
    alpha = realm.host("alpha", settings=settings)
    alpha.wait(lambda: alpha.reports)
    assert not alpha.events.all


def test_a_defect_of_the_session_ends_the_adapter(realm: Realm) -> None:
    alpha, beta = realm.connected("alpha", "beta")
    beta.subscribe("s.R.m.alpha.a")

    def fail(subject: str, head: bytes, body: bytes) -> None:
        raise ZeroDivisionError("a defect")

    beta.events.received = fail  # type: ignore[method-assign]
    alpha.publish("s.R.m.alpha.a", b"", b"")
    while beta.error is None:
        alpha.settle()
    assert isinstance(beta.error, ZeroDivisionError)
    beta.error = None
