"""How the store finds out whether it may publish: it asks the bus, and keeps the answer for some seconds."""

from __future__ import annotations

import asyncio

import pytest

from sbusd.client.errors import Closed, RemoteRefusal, SbusError, Unanswered
from sbusd.protocol.errors import ErrorCode
from sbusd.store.access import CACHE_SECONDS
from sbusd.store.vouch_right import VouchRight


class Bus:
    """Answers with an error."""

    def __init__(self) -> None:
        self.error: SbusError = RemoteRefusal(ErrorCode.EPERM, "no right")
        self.asked: list[tuple[bytes, bytes]] = []
        self.reports: list[str] = []
        self.now = 0.0
        self.right = VouchRight(self.ask, self.reports.append, lambda: self.now)

    async def ask(self, key: bytes, payload: bytes) -> bytes:
        self.asked.append((key, payload))
        raise self.error

    def problem(self) -> str:
        return asyncio.run(self.right.problem())


def test_the_answer_is_kept_and_reported_once() -> None:
    bus = Bus()
    assert "vouch = { users = [" in bus.problem()
    assert bus.problem() in bus.reports
    assert (bus.asked, len(bus.reports)) == ([(b"lost/for", b"")], 1)
    bus.now = CACHE_SECONDS
    assert bus.problem()
    assert (len(bus.asked), len(bus.reports)) == (2, 1)
    bus.error = RemoteRefusal(ErrorCode.EINVAL, "no pattern")
    bus.right.forget()
    assert bus.problem() == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [(Unanswered("CMSG"), "restart it with a newer sbusd"), (RemoteRefusal(ErrorCode.EINVAL, "no pattern"), ""), (Closed("the bus"), "")],
)
def test_what_the_bus_can_say(error: SbusError, words: str) -> None:
    bus = Bus()
    bus.error = error
    assert bus.problem().endswith(words)
    assert bool(bus.problem()) is bool(words)
