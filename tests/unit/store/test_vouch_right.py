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
        self.error: SbusError = RemoteRefusal(ErrorCode.EPERM, "only users with the vouch right can report losses")
        self.asked: list[tuple[bytes, bytes]] = []
        self.reports: list[str] = []
        self.now = 0.0
        self.features = b"units\nvouch"
        self.right = VouchRight(self.ask, self.reports.append, lambda: self.now)

    async def ask(self, key: bytes, payload: bytes) -> bytes:
        self.asked.append((key, payload))
        if key == b"!/bus/features":
            return self.features
        raise self.error

    def problem(self) -> str:
        return asyncio.run(self.right.problem())


def test_the_answer_is_kept_and_reported_once() -> None:
    bus = Bus()
    assert "vouch = { users = [" in bus.problem()
    assert bus.problem() in bus.reports
    assert (bus.asked, len(bus.reports)) == ([(b"!/bus/features", b""), (b"lost/for", b"0\0store/no-loss")], 1)
    bus.now = CACHE_SECONDS
    assert bus.problem()
    assert (len(bus.asked), len(bus.reports)) == (4, 1)
    bus.error = RemoteRefusal(ErrorCode.EINVAL, "no pattern")
    bus.right.forget()
    assert bus.problem() == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [(Unanswered("CMSG"), ""), (RemoteRefusal(ErrorCode.EPERM, "rule 1 denies it"), ""), (Closed("the bus"), "")],
)
def test_what_the_bus_can_say(error: SbusError, words: str) -> None:
    bus = Bus()
    bus.error = error
    assert bus.problem().endswith(words)
    assert bool(bus.problem()) is bool(words)


def test_a_bus_without_the_right_is_named() -> None:
    bus = Bus()
    bus.features = b"units"
    assert bus.problem().endswith("restart it with a newer sbusd")


def test_calls_at_the_same_time_cause_one_question() -> None:
    bus = Bus()

    async def ask_all() -> set[str]:
        first = asyncio.ensure_future(bus.right.problem())
        others = [asyncio.ensure_future(bus.right.problem()) for _ in range(30)]
        await asyncio.sleep(0)
        first.cancel()
        return set(await asyncio.gather(*others))

    assert len(asyncio.run(ask_all())) == 1
    assert [key for key, _ in bus.asked] == [b"!/bus/features", b"lost/for"]
