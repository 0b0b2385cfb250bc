"""The end of a connection of a remote host."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from aiohttp import web

from sbusd.relay.http.connections import HttpConnection


def test_a_connection_that_takes_too_long_is_closed_whatever_it_has_to_send() -> None:
    async def main() -> None:
        connection = HttpConnection(Mock(idle_seconds=1.0, header_seconds=1.0), web.Server(Mock()))
        connection.transport = transport = Mock(spec=asyncio.Transport)
        connection.give_up()
        transport.abort.assert_called_once_with()

    asyncio.run(main())
