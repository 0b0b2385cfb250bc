"""Sends messages to remote hosts by HTTP and returns when they are in the remote Redis. Spec: sbus-relay(8), "Between hosts"."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping

import aiohttp

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_programs.config.relay import RelaySettings
from sbus_services.relay.http.credentials import (
    SIGNATURE,
    TIME,
    is_same,
    read_signature_headers,
    response_signature,
    signed_headers,
    twin_name,
)

MAX_RESPONSE_BYTES = 4_096
"""A response is one line."""

MAX_WORDS = 500
"""Longest error text that is kept, in characters."""

PASSING = {401, 408, 421, 425, 429}
"""Statuses besides 5xx that may change: a clock is set, a key or a certificate is renewed, a host moves."""


class PeerUnreachableError(SbusError, ConnectionError):
    """The remote host is unreachable, or cannot take the message now: the message is sent again later."""


class PeerRejectedError(SbusError, ValueError):
    """The remote host rejected the message for good: the call fails."""


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of *response*, which a hostile host may make endless.

    Raises:
        ValueError: the body has more than *most* bytes.
        aiohttp.ClientError: the body could not be read.
    """
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            raise ValueError(f"the HTTP response exceeds {most} bytes")
    return bytes(body)


class HttpClient:
    """Sends messages to remote hosts. Create it within a running loop; close it at the end."""

    def __init__(self, twin: int, settings: RelaySettings, keys: Mapping[int, bytes], *, tls: Callable[[], ssl.SSLContext | None]) -> None:
        """*keys* by host. *tls* returns the TLS context of a new connection, None for plain HTTP."""
        self._twin = twin
        self._keys = keys
        self._tls = tls
        timeout = aiohttp.ClientTimeout(total=settings.request_timeout)
        # Connections are reused; the sender limits their number for each host.
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)

    async def send(self, twin: int, address: str, path: str, body: bytes) -> None:
        """Return when the relay of *twin*, at *address*, has stored *body* in its Redis.

        Raises:
            PeerUnreachableError: the host is unreachable, or may accept the message later.
            PeerRejectedError: the host rejects the message for good.
        """
        key = self._keys.get(twin)
        if self._keys and key is None:
            raise PeerRejectedError(f"no key for host {twin}: set its key_file under [[peers]]")
        headers = {"Content-Type": "application/json", TIME: str(int(time.time()))}
        if key is not None:
            headers |= signed_headers(key, self._twin, twin, path, body, now=time.time())
        tls = self._tls()
        url = f"{'https' if tls else 'http'}://{address}{path}"
        name = twin_name(twin) if tls else None
        try:
            async with self._session.post(
                url, data=body, headers=headers, ssl=tls or True, server_hostname=name, allow_redirects=False
            ) as response:
                content = await read_body(response, MAX_RESPONSE_BYTES)
                status, signature = response.status, response.headers.get(SIGNATURE, "")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PeerUnreachableError(printable(f"{address}: {_words(error)}")) from None
        if key is not None and not _is_signed(key, headers, status, content, signature):
            # An attacker may have written this response. It decides nothing, but its error may help to find the cause.
            words = f"the HTTP response with status {status} is not signed by host {twin}"
            raise PeerUnreachableError(printable(f"{address}: {words}; its error: {_error_in(content)}", MAX_WORDS))
        _judge(address, status, content)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


def _judge(address: str, status: int, content: bytes) -> None:
    """Return if the message was accepted, else raise."""
    if status == 200:
        return
    text = printable(f"{address}: status {status}: {_error_in(content)}", MAX_WORDS)
    if status >= 500 or status in PASSING:
        raise PeerUnreachableError(text)
    raise PeerRejectedError(text)


def _is_signed(key: bytes, headers: Mapping[str, str], status: int, content: bytes, signature: str) -> bool:
    """Return whether *signature* is valid for a response to the request with *headers*."""
    signed = read_signature_headers(headers)
    return signed is not None and is_same(response_signature(key, signed, status, content), signature)


def _error_in(content: bytes) -> str:
    """Return the error text of a response."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return "unrecognized response body"


def _words(error: BaseException) -> str:
    """Return why a message could not be sent."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"certificate rejected: {error.certificate_error}"
    return str(error) or type(error).__name__
