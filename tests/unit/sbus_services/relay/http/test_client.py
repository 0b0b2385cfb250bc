"""Which responses the HTTP client trusts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sbus.protocol.errors import SbusError
from sbus_programs.config.relay import RelaySettings
from sbus_services.relay.http.client import MAX_RESPONSE_BYTES, PASSING, HttpClient, PeerRejectedError, PeerUnreachableError
from sbus_services.relay.http.credentials import SIGNATURE, SignatureHeaders, read_signature_headers, request_signature, response_signature

KEY = b"0123456789abcdef"

Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]


def send(serve: Serve, keys: dict[int, bytes], seconds: float = 60.0) -> SbusError | None:
    """Send a message from host 1001 to a host 1002 that is *serve*; return the error."""

    async def run() -> SbusError | None:
        application = web.Application()
        application.router.add_post("/zbus-remote", serve)
        async with TestServer(application) as server:
            client = HttpClient(1001, RelaySettings(request_timeout=seconds), keys, tls=lambda: None)
            try:
                await client.send(1002, f"127.0.0.1:{server.port}", "/zbus-remote", b"{}")
            except SbusError as error:
                return error
            finally:
                await client.close()
        return None

    return asyncio.run(run())


def answer(status: int, body: bytes, key: bytes | None) -> Serve:
    """Return a host that sends this response, signed with *key*."""

    async def serve(request: web.Request) -> web.StreamResponse:
        signed = read_signature_headers(request.headers)
        if key is not None:
            assert signed is not None
            assert signed.signature == request_signature(KEY, signed, 1002, "/zbus-remote", await request.read())
        headers = {} if key is None or signed is None else {SIGNATURE: response_signature(key, signed, status, body)}
        return web.Response(status=status, body=body, headers=headers)

    return serve


def test_response_with_a_valid_signature_is_trusted() -> None:
    assert send(answer(200, b"{}", KEY), {1002: KEY}) is None


@pytest.mark.parametrize("key", [None, b"x" * 16])
def test_attacker_cannot_confirm_a_delivery(key: bytes | None) -> None:
    error = send(answer(200, b"{}", key), {1002: KEY})
    assert isinstance(error, PeerUnreachableError)
    assert "is not signed by host 1002" in str(error)


@pytest.mark.parametrize("status", [400, 403, 404, 405, 410, 413])
def test_nor_that_it_is_refused(status: int) -> None:
    """But the text is kept for the administrator."""
    error = send(answer(status, b'{"error": "go away"}', None), {1002: KEY})
    assert isinstance(error, PeerUnreachableError)
    assert f"status {status} is not signed by host 1002; its error: go away" in str(error)


def test_a_response_to_another_request_is_not_believed() -> None:
    """Not even to one with the same nonce, which the relay has signed for an attacker."""

    async def serve(request: web.Request) -> web.StreamResponse:
        signed = read_signature_headers(request.headers)
        assert signed is not None
        other = SignatureHeaders(signed.twin, signed.time, signed.nonce, "0" * 64)
        return web.Response(status=404, body=b"{}", headers={SIGNATURE: response_signature(KEY, other, 404, b"{}")})

    assert isinstance(send(serve, {1002: KEY}), PeerUnreachableError)


def test_host_without_a_key_gets_no_message() -> None:
    assert isinstance(send(answer(200, b"{}", None), {1003: KEY}), PeerRejectedError)


@pytest.mark.parametrize("status", [*sorted(PASSING), 500, 503])
def test_temporary_errors_are_retried(status: int) -> None:
    error = send(answer(status, b'{"error": "later"}', KEY), {1002: KEY})
    assert isinstance(error, PeerUnreachableError)
    assert f"status {status}: later" in str(error)


@pytest.mark.parametrize("status", [201, 302, 400, 403, 404, 410, 413])
def test_permanent_errors_are_refusals(status: int) -> None:
    error = send(answer(status, b"not of a relay\n\x1b", KEY), {1002: KEY})
    assert isinstance(error, PeerRejectedError)
    assert str(error).isprintable()


def test_an_endless_answer_is_cut_off() -> None:
    async def serve(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * (MAX_RESPONSE_BYTES + 1))

    error = send(serve, {})
    assert isinstance(error, PeerUnreachableError)
    assert f"exceeds {MAX_RESPONSE_BYTES} bytes" in str(error)


def test_an_answer_that_does_not_come_is_away() -> None:
    async def serve(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    error = send(serve, {}, 1.0)
    assert isinstance(error, PeerUnreachableError)
    assert "no response in time" in str(error)
