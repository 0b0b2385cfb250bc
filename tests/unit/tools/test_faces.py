"""The modules of the blocking client that are made from those of the client for asyncio."""

from __future__ import annotations

import pytest

from tools import faces


@pytest.mark.parametrize("module", faces.MODULES)
def test_made_from_that_of_asyncio(module: str) -> None:
    assert faces.path(module).read_text() == faces.made(module), "run make faces"


def test_what_a_blocking_program_is_made_of() -> None:
    asynchronous = '''"""Text for ``async with`` and asyncio.AsyncBus."""

from sbus.asyncio.link import AsyncLink


class AsyncOne(AsyncOther):
    """One."""

    # In sync:
    # The first line: ``with``.
    #
    # The second.

    async def each(self) -> Coroutine[None, None, str]:  # await stays in a comment
        """Await it."""
        async for one in await self.found("await"):
            raise StopAsyncIteration
'''
    blocking = '''"""Text for ``async with`` and asyncio.AsyncBus."""

from sbus.sync.link import SyncLink


class One(Other):
    """The first line: ``with``.

    The second.
    """

    def each(self) -> str:  # await stays in a comment
        """Await it."""
        for one in self.found("await"):
            raise StopIteration
'''
    assert faces.blocking(asynchronous) == blocking
