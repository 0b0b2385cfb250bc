"""Attempts to connect leave no transport, at whatever time they are cancelled."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sbus_services.link.network.counters import NetworkCounters
from sbus_services.link.network.streams import MAX_WORDS, Stall, error_words, open_streams
from tests.support.authority import Authority

pytestmark = pytest.mark.slow

SECONDS = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def port(authority: Authority) -> Iterator[int]:
    """The port of a server that agrees on TLS, and then neither reads nor closes."""
    certificate = authority.sign("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                plain, _ = listener.accept()
                try:
                    accepted.append(context.wrap_socket(plain, server_side=True))
                except OSError:  # the other side is gone
                    plain.close()
                    if is_over.is_set():
                        return

        is_over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        is_over.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join(SECONDS)
    for each in accepted:
        each.close()


def client_context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    """Return a list, which has the warnings at the end of the context, with those of garbage."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as gathered:
        warnings.simplefilter("always")
        yield texts
        gc.collect()
    texts += [str(each.message) for each in gathered]


def test_tls_that_is_established_when_the_attempt_is_cancelled_is_aborted(
    authority: Authority, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.StreamReaderProtocol.connection_made
    cancellations = 0

    async def connect() -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel(self: asyncio.StreamReaderProtocol, transport: asyncio.BaseTransport) -> None:
            nonlocal cancellations
            made(self, transport)
            cancellations += 1
            task.cancel()

        monkeypatch.setattr(asyncio.StreamReaderProtocol, "connection_made", cancel)
        await open_streams("127.0.0.1", port, ssl=client_context(authority), server_hostname="localhost")

    with recorded_warnings() as gathered, pytest.raises(asyncio.CancelledError):
        asyncio.run(connect())
    assert cancellations == 1
    assert gathered == []


@pytest.mark.parametrize("turns", range(12))
def test_an_attempt_can_be_cancelled_in_each_turn_of_the_loop(authority: Authority, port: int, turns: int) -> None:
    async def connect() -> None:
        attempt = asyncio.ensure_future(open_streams("127.0.0.1", port, ssl=client_context(authority), server_hostname="localhost"))
        for _ in range(turns):
            await asyncio.sleep(0)
        attempt.cancel()
        try:
            _, writer = await attempt
        except asyncio.CancelledError:
            return
        writer.transport.abort()

    with recorded_warnings() as gathered:
        asyncio.run(connect())
    assert gathered == []


def test_the_streams_are_those_of_the_connection(authority: Authority, port: int) -> None:
    async def connect() -> tuple[object, bool]:
        reader, writer = await open_streams("127.0.0.1", port, ssl=client_context(authority), server_hostname="localhost", limit=100)
        try:
            return writer.get_extra_info("peername"), reader.at_eof()
        finally:
            writer.transport.abort()

    assert asyncio.run(connect()) == (("127.0.0.1", port), False)


def test_a_wait_is_counted() -> None:
    async def run() -> tuple[NetworkCounters, bool]:
        gate, counters = asyncio.Event(), NetworkCounters()

        async def writable() -> None:
            await gate.wait()

        stall = Stall(writable, counters)
        waiting = [asyncio.create_task(stall.end()) for _ in range(2)]
        await asyncio.sleep(0)  # both have begun
        await asyncio.sleep(0.02)
        assert stall.is_active
        waiting[0].cancel()
        await asyncio.wait([waiting[0]])
        assert stall.is_active  # another connection still waits
        gate.set()
        await waiting[1]
        return counters, stall.is_active

    counters, is_active = asyncio.run(run())
    assert not is_active
    assert counters.stalls >= 2
    assert counters.stalled_seconds >= 0.02


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)"), "Connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (TimeoutError(), "no response in time"),
        (ValueError("nats: 'two\nlines'"), r"'two\x0alines'"),
        (ValueError(), "ValueError"),
        (ssl.SSLError(1, "[SSL] text"), "[SSL] text"),
    ],
)
def test_the_reason_is_short(error: Exception, says: str) -> None:
    assert error_words(error) == says


def test_the_text_of_another_host_is_bounded() -> None:
    assert len(error_words(ValueError("\x00" * 10_000))) < 5 * MAX_WORDS
