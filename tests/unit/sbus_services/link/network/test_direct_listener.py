"""Which host a certificate names, and which connection is ended for a new one."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_programs.config.certificates import CertificateFiles, client_context, server_context
from sbus_services.link.network import direct_listener
from sbus_services.link.network.counters import NetworkCounters
from sbus_services.link.network.direct_listener import MAX_HANDSHAKES_OF_ADDRESS, Handshakes, Listener, peer_named
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


MOST, MOST_OF_ADDRESS = 6, 3

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.sampled_from("abcdefgh")), max_size=80)
"""Whether a handshake begins or a number is released, that number, and the address."""


class Model:
    """All handshakes, oldest first."""

    def __init__(self) -> None:
        self.all: list[tuple[int, str]] = []

    def admit(self, number: int, address: str) -> int | None:
        """Add a handshake; return the one that is ended."""
        ended = self._victim(address)
        self.release(ended)
        self.all.append((number, address))
        return ended

    def release(self, number: int | None) -> bool:
        """Remove a handshake."""
        before = len(self.all)
        self.all = [each for each in self.all if each[0] != number]
        return len(self.all) < before

    def _victim(self, address: str) -> int | None:
        of = Counter(each for _, each in self.all)
        if of[address] == MOST_OF_ADDRESS:
            return self._oldest({address})
        if len(self.all) < MOST:
            return None
        busiest = {each for each in of if of[each] == max(of.values())}
        return self._oldest({address} if address in busiest else busiest)

    def _oldest(self, addresses: set[str]) -> int:
        return next(number for number, address in self.all if address in addresses)


@given(STEPS)
def test_the_ended_handshake_is_that_of_a_plain_list(steps: list[tuple[bool, int, str]]) -> None:
    model, handshakes = Model(), Handshakes[int](MOST, MOST_OF_ADDRESS)
    for number, (begins, old, address) in enumerate(steps):
        if begins:
            assert handshakes.admit(number, address) == model.admit(number, address)
        else:
            assert handshakes.release(number - old) == model.release(number - old)
        assert len(handshakes) == len(model.all) <= MOST


def test_one_address_cannot_end_the_handshakes_of_others() -> None:
    handshakes = Handshakes[int](MOST, MOST_OF_ADDRESS)
    for number, address in enumerate("abcdef"):
        assert handshakes.admit(number, address) is None
    ended = [handshakes.admit(number, "a") for number in range(10, 20)]
    assert ended == [0, *range(10, 19)]
