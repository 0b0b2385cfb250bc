"""What the settings of NATS accept, and what the adapter does without a connection; the rest is in tests/integration/link."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sbus_programs.config.certificates import CertificateFiles
from sbus_services.link.network.nats import MAX_SUBJECT_BYTES, NatsNetwork, NatsSettings
from tests.support.link_networks import Gate

TLS = CertificateFiles(Path("/c"), Path("/k"), Path("/a"))


@pytest.mark.parametrize("server", ["nats://a", "nats://10.0.0.1:4222", "tls://[::1]:4222", "tls://nats-1"])
def test_servers_are_urls(server: str) -> None:
    assert NatsSettings("alpha", (server,), TLS).servers == (server,)


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("a:4222", "invalid server 'a:4222': it must be a URL"),
        ("ws://a:4222", "it must be a URL"),
        ("tls://", "it must be a URL"),
        ("tls://a:0", "it must be a URL"),
        ("tls://a:x", "it must be a URL"),
        ("tls://a/b", "it must be a URL"),
        ("tls://a b", "it must be a URL"),
        ("tls://user:secret@a", "store the password in password_file"),
    ],
)
def test_other_servers_are_refused(server: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        NatsSettings("alpha", (server,), TLS)
    assert "secret" not in str(caught.value)


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="name at least one"):
        NatsSettings("alpha", (), TLS)
    with pytest.raises(ValueError, match="needs certificate, key and authority"):
        NatsSettings("alpha", ("tls://a",))
    with pytest.raises(ValueError, match="exclude each other"):
        NatsSettings("alpha", ("nats://a",), password_file=Path("/p"), nkey_file=Path("/n"))


def test_without_a_connection_messages_are_counted_and_nothing_else_happens() -> None:
    async def run() -> NatsNetwork:
        network = NatsNetwork(NatsSettings("alpha", ("nats://a",)), Gate().writable, lambda _: None)
        network.publish("a", b"", b"")
        network.subscribe("a")
        network.unsubscribe("a")
        network.barrier(1)
        await network.drained()
        return network

    network = asyncio.run(run())
    assert (network.counters.dropped, network.counters.messages_out, network.state.server_version) == (1, 0, "")


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB b 0", "é", "a" * (MAX_SUBJECT_BYTES + 1), "a\0"])
def test_a_subject_cannot_bring_commands_with_it(subject: str) -> None:
    network = NatsNetwork(NatsSettings("alpha", ("nats://a",)), Gate().writable, lambda _: None)
    with pytest.raises(ValueError, match="invalid subject"):
        network.publish(subject, b"", b"")
    with pytest.raises(ValueError, match="invalid subject"):
        network.subscribe(subject)


def test_a_head_is_one_line() -> None:
    network = NatsNetwork(NatsSettings("alpha", ("nats://a",)), Gate().writable, lambda _: None)
    with pytest.raises(ValueError, match="must be one line"):
        network.publish("a", b"1\r\n\r\n", b"")
