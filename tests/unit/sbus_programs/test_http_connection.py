"""The time limit of an HTTP connection, and whose error is which."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp import web

from sbus_programs.http_connection import LimitedConnection


class Noted(LimitedConnection):
    """A connection that keeps its errors, and the event of its end."""

    def __init__(self) -> None:
        super().__init__(web.Server(Mock()), idle_seconds=60.0)
        self.notes: list[tuple[str, bool]] = []
        self.is_over = asyncio.Event()

    def note(self, reason: str, *, is_of_peer: bool) -> None:
        """Keep the error."""
        self.notes.append((reason, is_of_peer))

    def give_up(self) -> None:
        """Note the end of the time."""
        super().give_up()
        self.is_over.set()


def test_the_last_time_limit_holds() -> None:
    async def main() -> None:
        connection = Noted()
        connection.transport = transport = Mock(spec=asyncio.Transport)
        connection.wait(0.0)
        connection.wait(3_600.0)
        connection.stop_waiting()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        transport.abort.assert_not_called()
        connection.wait(0.0)
        await connection.is_over.wait()
        transport.abort.assert_called_once_with()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "reason", "is_of_peer"),
    [
        (ConnectionResetError("it went"), "ConnectionResetError: it went", True),
        (web.RequestPayloadError("cut off"), "RequestPayloadError: cut off", True),
        (ZeroDivisionError("two\nlines"), r"ZeroDivisionError: two\x0alines", False),
        (None, "words of aiohttp", False),
    ],
)
def test_an_error_is_one_line_about_the_peer_or_the_program(error: BaseException | None, reason: str, is_of_peer: bool) -> None:
    async def main() -> None:
        connection = Noted()
        response = connection.handle_error(Mock(), 500, error, "words of aiohttp")
        connection.log_exception("words of aiohttp", exc_info=error)
        assert connection.notes == [(reason, is_of_peer)] * 2
        assert isinstance(response, web.Response)
        assert (response.text, response.keep_alive) == ("internal error\n", False)  # it reveals nothing

    asyncio.run(main())
