"""The services of the system count the ids of a user together."""

from __future__ import annotations

import asyncio
import re

import pytest

from sbus import Request
from sbus.asyncio.service_bus import ServiceBus
from tests.support.minibus import MiniBus
from tools.imports import module_of, part_of
from tools.stage import ROOT, house_files

USER_PROGRAMS = {"sbus", "sbusctl"}
"""Parts that serve as a program of a user does: each uid is a user there."""

OF_ROOT = {"sbus_archive.recorder"}
"""Services that permit no other caller than root and their own user."""


def test_a_request_counts_for_the_user_that_is_charged(mini_bus: MiniBus) -> None:
    async def main() -> None:
        async with ServiceBus.connect(mini_bus.address) as serving, ServiceBus.connect(mini_bus.address) as caller:
            ready = asyncio.Event()
            serving.service("party")(_party)
            running = asyncio.ensure_future(serving.serve_all(lambda uid: uid + 7_000, ready.set))
            await asyncio.wait([running, asyncio.ensure_future(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
            uid = int(await caller.call("party"))
            running.cancel()
            assert uid >= 7_000

    asyncio.run(main())


def _party(request: Request) -> str:
    assert request.party == (request.caller.uid + 7_000, 0)
    return str(request.party[0])


@pytest.mark.parametrize("part", sorted({part_of(module_of(path.relative_to(ROOT))) for path in house_files(".py")}))
def test_each_service_of_the_system_says_who_is_charged(part: str) -> None:
    """``AsyncBus.serve`` and ``Bus.serve`` charge the uid itself."""
    if part not in USER_PROGRAMS | OF_ROOT:
        for path in [path for path in house_files(".py") if part_of(module_of(path.relative_to(ROOT))) == part]:
            assert not re.search(r"\bbus\.serve\(|AsyncServer\(|\bDispatcher\(\)", path.read_text()), path
