"""Questions of one link to another, each with one answer: the way on which blobs are pulled. Both ends have limits for each host.

A question is a JSON object, an answer one with at most one frame of bytes. Answers share the network with messages: a host sends one only
while little waits for the network, and answers the hosts in turns. What is lost is asked again by the host that wants it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sbus.protocol.errors import ProtocolError
from sbus.protocol.framed_data import framed_data, parse_framed_data
from sbus.protocol.printable import printable

ASK_SECONDS = 10.0
"""A question without an answer in this time is lost."""

MAX_ASKS = 16
"""Questions to one host that wait for their answers. Further ones wait here, in their order."""

MAX_QUESTION_BYTES = 1_024

MAX_QUESTIONS = 64
"""Questions of one host that wait for their turn here. Further ones are dropped, and counted."""

MAX_CONCURRENT = 4
"""Hosts whose questions are answered at the same time."""

MAX_BACKLOG_BYTES = 512 << 10
"""An answer is sent only while less than this waits for the network: so messages wait behind it for at most a few of them."""

PAUSE_SECONDS = 0.005
"""Pause before the network is looked at again."""

MAX_WORDS = 300
"""Longest error of another host that is shown."""


EXCHANGE_COUNTERS = (
    "asks",
    "asks_lost",
    "malformed_answers",
    "stray_answers",
    "questions",
    "refused_questions",
    "dropped_questions",
)


class ExchangeError(Exception):
    """A question has failed: *code* such as ``ENOENT``, ``EAGAIN`` if it can be asked again; *words* say why."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"{code} {words}")
        self.code = code
        self.words = words


class Carrier(Protocol):
    """Carries questions and answers to other hosts."""

    def ask(self, host: str, number: int, body: bytes) -> bool:
        """Send a question; return False if *host* is not alive."""

    def answer(self, host: str, epoch: int, number: int, body: bytes) -> None:
        """Send the answer to the question *number* of *host*, which has *epoch*."""


Answer = Callable[[str, dict[str, Any]], Awaitable[bytes]]
"""Returns the answer to a question of a host, as framed data. Raises ExchangeError."""


@dataclass(slots=True)
class _Question:
    """A question of another host that waits for its turn."""

    epoch: int
    number: int
    body: bytes


class LinkExchange:
    """The questions in both directions. *answer* answers those of other hosts; *backlog* returns the bytes that wait for a host."""

    def __init__(self, carrier: Carrier, answer: Answer, backlog: Callable[[str], int]) -> None:
        self.counters: Counter[str] = Counter()
        self._carrier = carrier
        self._answer = answer
        self._backlog = backlog
        self._last = 0
        self._asked: dict[tuple[str, int], asyncio.Future[bytes]] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._wanted: Counter[str] = Counter()
        self._questions: dict[str, deque[_Question]] = {}
        self._turns = asyncio.Semaphore(MAX_CONCURRENT)
        self._tasks: set[asyncio.Task[None]] = set()

    # Questions of this host

    async def ask(self, host: str, question: dict[str, object]) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer of *host*: its object and its frames. Raises ExchangeError."""
        slots = self._slots.setdefault(host, asyncio.Semaphore(MAX_ASKS))
        self._wanted[host] += 1
        try:
            async with slots:
                return await self._asked_once(host, question)
        finally:
            self._wanted[host] -= 1
            if not self._wanted[host]:
                del self._wanted[host], self._slots[host]

    def answered(self, host: str, number: int, body: bytes) -> None:
        """Handle an answer of *host*."""
        waiting = self._asked.get((host, number))
        if waiting is None or waiting.done():
            self.counters["stray_answers"] += 1  # it came too late, or was never asked for
            return
        waiting.set_result(body)

    async def _asked_once(self, host: str, question: dict[str, object]) -> tuple[dict[str, Any], list[bytes]]:
        """Send a question, and wait for the answer."""
        self._last += 1
        place = (host, self._last)
        waiting = self._asked[place] = asyncio.get_running_loop().create_future()
        try:
            self.counters["asks"] += 1
            if not self._carrier.ask(host, self._last, framed_data(question)):
                raise ExchangeError("EAGAIN", f"host {host} is not connected")
            async with asyncio.timeout(ASK_SECONDS):
                body = await waiting
        except TimeoutError:
            self.counters["asks_lost"] += 1
            raise ExchangeError("EAGAIN", f"host {host} did not answer within {ASK_SECONDS:g} s") from None
        finally:
            del self._asked[place]
        try:
            head, frames = parse_framed_data(body)
        except ProtocolError as error:
            self.counters["malformed_answers"] += 1
            raise ExchangeError("EPROTO", f"the answer of host {host} is malformed: {error.words}") from None
        if "error" in head:
            code = str(head["error"])
            code = code if code.isascii() and code.isalnum() and code.startswith("E") and len(code) < 20 else "EPROTO"
            raise ExchangeError(code, f"host {host}: {printable(str(head.get('reason')), MAX_WORDS)}")
        return head, frames

    # Questions of other hosts

    def asked(self, host: str, epoch: int, number: int, body: bytes) -> None:
        """Handle a question of *host*, whatever it contains."""
        waiting = self._questions.get(host)
        if len(body) > MAX_QUESTION_BYTES or (waiting is not None and len(waiting) >= MAX_QUESTIONS):
            self.counters["dropped_questions"] += 1
            return
        question = _Question(epoch, number, body)
        if waiting is not None:
            waiting.append(question)
            return
        self._questions[host] = deque([question])
        task = asyncio.get_running_loop().create_task(self._answer_all(host))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Answer nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer_all(self, host: str) -> None:
        """Answer the questions of *host*, one after another, until none waits. Other hosts take turns with it."""
        questions = self._questions[host]
        try:
            while questions:
                async with self._turns:
                    question = questions.popleft()
                    body = await self._answered(host, question.body)
                    while self._backlog(host) > MAX_BACKLOG_BYTES:
                        await asyncio.sleep(PAUSE_SECONDS)
                    self._carrier.answer(host, question.epoch, question.number, body)
        finally:
            del self._questions[host]

    async def _answered(self, host: str, body: bytes) -> bytes:
        """Return the answer to a question, or the error."""
        self.counters["questions"] += 1
        try:
            head, _ = parse_framed_data(body)
            return await self._answer(host, head)
        except ProtocolError as error:
            code, words = "EINVAL", error.words
        except ExchangeError as error:
            code, words = error.code, error.words
        self.counters["refused_questions"] += 1
        return framed_data({"error": code, "reason": words})
