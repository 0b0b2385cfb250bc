"""What the settings of direct links accept; the rest is in tests/integration/link."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sbus_programs.config.certificates import CertificateFiles
from sbus_services.link.network.direct import MAX_PEERS, DirectNetwork, DirectSettings
from tests.support.link_networks import Gate

TLS = CertificateFiles(Path("/c"), Path("/k"), Path("/a"))
HERE = ("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("realm", "host", "peers", "says"),
    [
        ("R.S", "alpha", ["beta"], "invalid realm 'R.S'"),
        ("R", "al pha", ["beta"], "invalid host 'al pha'"),
        ("R", "alpha", ["*"], "invalid peer"),
        ("R", "alpha", ["alpha"], "must differ in more than case"),
        ("R", "alpha", ["Beta", "beta"], "must differ in more than case"),
        ("R", "alpha", [str(number) for number in range(MAX_PEERS + 1)], "the maximum is 64: use a NATS server"),
    ],
)
def test_invalid_settings_are_refused(realm: str, host: str, peers: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DirectSettings(realm, host, HERE, dict.fromkeys(peers, HERE), TLS)


def test_without_connections_nothing_is_sent() -> None:
    async def run() -> DirectNetwork:
        network = DirectNetwork(DirectSettings("R", "alpha", HERE, {"beta": HERE}, TLS), Gate().writable, lambda _: None)
        network.publish("s.R.m.alpha.a", b"", b"")
        network.subscribe("s.R.i.*")
        network.unsubscribe("s.R.i.*")
        await network.drained()
        return network

    assert asyncio.run(run()).counters.messages_out == 0
