"""Questions between links: bounds, turns, lost answers, and answers without a question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sbus.protocol.framed_data import framed_data
from sbus_services.link import exchange
from sbus_services.link.exchange import MAX_ASKS, MAX_BACKLOG_BYTES, MAX_QUESTION_BYTES, MAX_QUESTIONS, ExchangeError, LinkExchange

Handle = Callable[[str, dict[str, Any]], Awaitable[bytes]]


class Wire:
    """Records what is sent; tests answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, bytes]] = []
        self.answered: list[tuple[str, int, int, bytes]] = []
        self.is_alive = True

    def ask(self, host: str, number: int, body: bytes) -> bool:
        self.asked.append((host, number, body))
        return self.is_alive

    def answer(self, host: str, epoch: int, number: int, body: bytes) -> None:
        self.answered.append((host, epoch, number, body))


async def echo(host: str, question: dict[str, Any]) -> bytes:
    """Answer with the question and its host."""
    if "fail" in question:
        raise ExchangeError("ENOENT", "nothing there")
    return framed_data({"host": host} | question)


def made(wire: Wire, handle: Handle = echo, backlog: Callable[[str], int] = lambda _: 0) -> LinkExchange:
    """Return an exchange on *wire*."""
    return LinkExchange(wire, handle, backlog)


async def settle() -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def failure(asking: Awaitable[object]) -> ExchangeError:
    """Return the error of a question."""
    try:
        await asking
    except ExchangeError as error:
        return error
    raise AssertionError("it did not fail")


def test_a_question_and_its_answer() -> None:
    async def run() -> None:
        wire = Wire()
        link = made(wire)
        asking = asyncio.ensure_future(link.ask("alpha", {"ask": "open"}))
        await settle()
        ((host, number, body),) = wire.asked
        assert (host, body) == ("alpha", b'{"ask":"open"}')
        link.answered("beta", number, b"{}")  # not the host that was asked
        link.answered("alpha", number + 1, b"{}")
        assert link.counters["stray_answers"] == 2
        link.answered("alpha", number, framed_data({"size": 5}, [b"chunk"]))
        link.answered("alpha", number, b"{}")
        assert await asking == ({"size": 5}, [b"chunk"])
        assert link.counters["stray_answers"] == 3

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"\xff", "EPROTO", "the answer of host alpha is malformed"),
        (b"[]", "EPROTO", "malformed"),
        (b"{}\0\xff\xff\xff\xff", "EPROTO", "malformed"),
        (framed_data({"error": "ENOENT", "reason": "gone"}), "ENOENT", "host alpha: gone"),
        (framed_data({"error": "E\x1b[31m", "reason": "\x1b[31m" * 1000}), "EPROTO", "host alpha: "),
        (framed_data({"error": ["EAGAIN"], "reason": None}), "EPROTO", "host alpha: None"),
    ],
)
def test_answers_that_are_errors(body: bytes, code: str, words: str) -> None:
    async def run() -> ExchangeError:
        wire = Wire()
        link = made(wire)
        asking = asyncio.ensure_future(failure(link.ask("alpha", {})))
        await settle()
        link.answered("alpha", wire.asked[0][1], body)
        return await asking

    error = asyncio.run(run())
    assert error.code == code
    assert words in error.words
    assert error.words.isprintable()
    assert len(error.words) < 600


def test_a_lost_answer_and_a_host_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ASK_SECONDS", 0.01)

    async def run() -> None:
        wire = Wire()
        link = made(wire)
        assert "did not answer" in (await failure(link.ask("alpha", {}))).words
        wire.is_alive = False
        error = await failure(link.ask("alpha", {}))
        assert (error.code, error.words) == ("EAGAIN", "host alpha is not connected")
        assert link.counters["asks_lost"] == 1

    asyncio.run(run())


def test_questions_beyond_the_bound_wait_and_other_hosts_do_not() -> None:
    async def run() -> None:
        wire = Wire()
        link = made(wire)
        asking = [asyncio.ensure_future(link.ask("alpha", {"n": number})) for number in range(MAX_ASKS + 3)]
        other = asyncio.ensure_future(link.ask("beta", {}))
        await settle()
        assert [host for host, _, _ in wire.asked] == ["alpha"] * MAX_ASKS + ["beta"]
        for host, number, body in list(wire.asked):
            link.answered(host, number, body)
        await settle()
        assert len(wire.asked) == MAX_ASKS + 4
        for host, number, body in wire.asked[-3:]:
            link.answered(host, number, body)
        assert [head["n"] for head, _ in await asyncio.gather(*asking)] == list(range(MAX_ASKS + 3))
        await other
        assert not link._slots

    asyncio.run(run())


def test_questions_of_other_hosts_are_answered() -> None:
    async def run() -> None:
        wire = Wire()
        link = made(wire)
        link.asked("beta", 7, 1, b'{"ask":"open"}')
        link.asked("beta", 7, 2, b'{"fail":1}')
        link.asked("beta", 7, 3, b"\xff")
        link.asked("beta", 7, 4, bytes(MAX_QUESTION_BYTES + 1))
        await settle()
        assert [each[:3] for each in wire.answered] == [("beta", 7, 1), ("beta", 7, 2), ("beta", 7, 3)]
        assert wire.answered[0][3] == b'{"host":"beta","ask":"open"}'
        assert wire.answered[1][3] == b'{"error":"ENOENT","reason":"nothing there"}'
        assert b'"error":"EINVAL"' in wire.answered[2][3]
        assert (link.counters["questions"], link.counters["refused_questions"], link.counters["dropped_questions"]) == (3, 2, 1)

    asyncio.run(run())


def test_a_flood_is_dropped_and_other_hosts_have_their_turns() -> None:
    async def run() -> None:
        wire = Wire()
        gate = asyncio.Event()

        async def slow(host: str, question: dict[str, Any]) -> bytes:
            if host == "beta":
                await gate.wait()
            return await echo(host, question)

        link = made(wire, slow)
        for number in range(2 * MAX_QUESTIONS):
            link.asked("beta", 1, number, b"{}")
        link.asked("gamma", 1, 1, b"{}")
        await settle()
        assert [each[0] for each in wire.answered] == ["gamma"]
        gate.set()
        while len(wire.answered) < MAX_QUESTIONS + 1:
            await asyncio.sleep(0)
        assert link.counters["dropped_questions"] == MAX_QUESTIONS
        await link.close()

    asyncio.run(run())


def test_an_answer_waits_while_much_waits_for_the_network() -> None:
    async def run() -> None:
        wire = Wire()
        waiting = [MAX_BACKLOG_BYTES + 1]
        link = made(wire, backlog=lambda _: waiting[0])
        link.asked("beta", 1, 1, b"{}")
        await asyncio.sleep(0.05)
        assert not wire.answered
        waiting[0] = MAX_BACKLOG_BYTES
        while not wire.answered:
            await asyncio.sleep(0.005)
        await link.close()

    asyncio.run(run())
