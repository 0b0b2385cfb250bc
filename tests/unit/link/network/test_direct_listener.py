"""Which host a certificate names, and which connection is ended for a new one."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from sbusd.config.certificates import CertificateFiles, client_context, server_context
from sbusd.link.network import direct_listener
from sbusd.link.network.counters import NetworkCounters
from sbusd.link.network.direct_listener import MAX_HANDSHAKES_OF_ADDRESS, Listener, peer_named
from tests.support.authority import Authority

PEERS = frozenset({"alpha", "beta"})


def _certificate(*names: tuple[str, str]) -> dict[str, object]:
    return {"subject": ((("commonName", "alpha"),),), "subjectAltName": names}


def test_a_certificate_names_one_peer() -> None:
    assert peer_named(_certificate(("DNS", "alpha"), ("DNS", "alpha.example"), ("IP Address", "10.0.0.1")), PEERS) == "alpha"


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        (None, "names no host"),
        (_certificate(), "names no host"),
        (_certificate(("IP Address", "alpha"), ("email", "alpha")), "names no host"),
        (_certificate(("DNS", "gamma")), "names gamma, which is not one"),
        (_certificate(("DNS", "Alpha")), "names Alpha"),
        (_certificate(("DNS", "*")), r"names \*"),
        (_certificate(("DNS", "alpha"), ("DNS", "beta")), "names alpha, beta"),
    ],
)
def test_other_certificates_are_refused(certificate: dict[str, object] | None, says: str) -> None:
    with pytest.raises(ConnectionError, match=says):
        peer_named(certificate, PEERS)


TIMEOUT_SECONDS = 120.0


async def _closed(connection: socket.socket) -> None:
    """Return when the other end has closed *connection*."""
    connection.setblocking(False)
    try:
        assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""
    except ConnectionResetError:
        return


@pytest.mark.slow
def test_a_new_connection_ends_the_oldest_of_its_address_which_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_listener, "HANDSHAKE_SECONDS", 600.0)
    contexts = Mock(side_effect=server_context)
    monkeypatch.setattr(direct_listener, "server_context", contexts)
    authority = Authority(tmp_path)
    ours, theirs = (authority.sign(name) for name in ("gamma", "alpha"))
    counters, reports = NetworkCounters(), list[str]()

    async def run(connections: ExitStack) -> None:
        accepted = asyncio.Event()

        async def accept(name: str, _reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            assert name == "alpha"
            accepted.set()

        files = CertificateFiles(ours.certificate, ours.key, authority.certificate)
        listener = Listener(files, {"alpha": None}, accept, counters, reports.append)
        await listener.start("127.0.0.1", 0)
        # In one turn of the loop, or in a few if the kernel is slow: the first ones are ended before their handshake begins, so no files
        # are read for them.
        idle = [connections.enter_context(socket.create_connection(("127.0.0.1", listener.port))) for _ in range(20)]
        ended = 20 - MAX_HANDSHAKES_OF_ADDRESS
        async with asyncio.timeout(TIMEOUT_SECONDS):
            for each in idle[:ended]:
                await _closed(each)
            assert counters.ended_handshakes == ended
            assert contexts.call_count < len(idle)
            context = client_context(CertificateFiles(theirs.certificate, theirs.key, authority.certificate), "daemon")
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context, server_hostname="gamma")
            await accepted.wait()
            await _closed(idle[ended])  # one that was ended within its handshake
            writer.transport.abort()
        await listener.close()

    with ExitStack() as connections:
        asyncio.run(run(connections))
    assert (counters.ended_handshakes, counters.refused_connections) == (20 - MAX_HANDSHAKES_OF_ADDRESS + 1, 0)
    words = "closed an unverified connection from 127.0.0.1 for a newer one: the maximum is 8 of an address, and 64 in all"
    assert reports == [words] * counters.ended_handshakes
    assert counters.last_error == words


def test_an_ipv6_network_counts_as_one_address_and_a_peer_in_it_by_itself() -> None:
    counters = NetworkCounters()
    made: dict[str, Mock] = {}

    async def run() -> None:
        files = CertificateFiles(Path("/c"), Path("/k"), Path("/a"))
        listener = Listener(files, {"alpha": ("fd00::a", 4223), "beta": None}, AsyncMock(), counters, lambda _: None)
        for address in ("fd00::a", *(f"fd00::1:{number}" for number in range(MAX_HANDSHAKES_OF_ADDRESS)), "fd00:0:0:1::1", "fd00::2:0"):
            transport = made[address] = Mock(spec=asyncio.Transport)
            transport.get_extra_info.return_value = (address, 50_000, 0, 0)
            listener._admit(transport)
        assert [address for address, transport in made.items() if transport.abort.called] == ["fd00::1:0"]
        await listener.close()

    asyncio.run(run())
    assert counters.ended_handshakes == 1
    assert "closed an unverified connection from fd00::/64 for a newer one" in counters.last_error
