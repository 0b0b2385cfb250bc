"""The bodies of HTTP responses, which a hostile host may make endless."""

from __future__ import annotations

import aiohttp


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of *response*. Raises ValueError if it has more than *most* bytes; what keeps it from coming is aiohttp's."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            raise ValueError(f"the HTTP response exceeds {most} bytes")
    return bytes(body)
