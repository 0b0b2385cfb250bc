"""What is committed is published: with a bus that is away, full or does not answer, and after a kill between the two.

The table in docs/store.md names the kinds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from sbus.errors import Closed
from sbus_programs.config.store import QueueSettings, StoreSettings, StreamSettings
from sbus_programs.config.users import ChargedUsers
from sbus_services.store.access import Access, VouchRight
from sbus_services.store.bus_connections import ServingBus
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.committer import Committer
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, NewMessage, PutResult, Sender, Worker
from sbus_services.store.operation_queue import SERVICE, OperationQueue
from sbus_services.store.publications import Routes, StorePublisher
from sbus_services.store.sweeper import Sweeper
from tests.support.store_clocks import OneClock

T = TypeVar("T")

ALICE = Sender(1000, 1000, 7)
WORKER = Worker(5, 1000)
SETTINGS = StoreSettings(
    streams=(StreamSettings("log", ("log/",)), StreamSettings("state", ("state/",), last=1), StreamSettings("mail", ("mail/",))),
    queues=(QueueSettings("mail", "mail", dead="dead/"),),
)
LATER = 10_000_000_000_000
SECONDS = 60.0


class FakeBus(ServingBus):
    """A connection with room for *room* packets, whose bus takes nothing if it does not *answer*."""

    def __init__(self, room: int = 1 << 30, *, answers: bool = True, limit: int = 1 << 20) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        self.room = room
        self.freed = asyncio.Event()
        self.answers = answers
        self.limit = limit

    @property
    def packet_limit(self) -> int:
        return self.limit

    def __repr__(self) -> str:
        return f"<FakeBus {self.sent}>"

    def send(self, packet: bytes) -> bool:
        if len(self.sent) >= self.room:
            return False
        key, _, payload = packet.rpartition(b"MSG ")[2].partition(b"\0")
        self.sent.append((key, payload))
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        yield

    async def send_later(self, packet: bytes) -> None:
        while not self.send(packet):
            self.freed.clear()
            await self.freed.wait()

    async def ping(self) -> float:
        if not self.answers:
            await asyncio.Event().wait()
        return 0.0


async def until(condition: Callable[[], bool]) -> None:
    """Return when *condition* is true."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def no_answer(_key: bytes, _payload: bytes) -> bytes:
    raise Closed("the bus")


class Run:
    """One run of a store with the file *path*, without its calls."""

    def __init__(self, path: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.logged: list[bytes] = []
        engine = Engine(path, SETTINGS, OneClock(lambda: LATER), 0)
        charged = ChargedUsers()
        self.operations: OperationQueue[Engine] = OperationQueue(Committer(engine), charged)
        self.messages, self.calls = StorePublisher(self.counts, print), StorePublisher(self.counts, print)
        self.sweeper = Sweeper(self.calls, lambda letter: self.logged.append(letter.key), print)
        self.context = StoreContext(
            self.operations,
            Access(no_answer, print, charged),
            VouchRight(no_answer, print),
            routes=Routes(SETTINGS),
            publisher=self.messages,
            report=print,
            counts=self.counts,
            clock=engine.clock,
            run=lambda: engine.run,
            schedule_sweep=self.sweeper.schedule,
            charged=charged,
        )

    async def do(self, operation: Callable[[Engine], T], committed: Callable[[T], object] = lambda _: None) -> T:
        """Perform an operation."""
        return await self.operations.run(SERVICE, operation, committed=committed)

    def connect(self, messages: FakeBus, calls: FakeBus) -> None:
        """Connect to the bus."""
        self.messages.connected(messages)
        self.calls.connected(calls)
        self.context.publications.connected()
        self.sweeper.connected()

    async def disconnect(self) -> None:
        """Lose the connections."""
        self.messages.disconnected()
        self.calls.disconnected()
        await self.context.publications.disconnected()

    async def put(self, key: bytes, *payloads: bytes) -> None:
        """Put messages, as the call does."""
        stream, messages = key.split(b"/")[0].decode(), [NewMessage(key, each, ALICE) for each in payloads]

        def committed(found: Sequence[PutResult | EngineError]) -> None:
            pairs = zip(messages, found, strict=True)
            self.context.publications.committed(stream, [(put.seq, message) for message, put in pairs if isinstance(put, PutResult)])

        await self.do(lambda engine: engine.put_unpublished(stream, messages), committed)

    async def act(self) -> None:
        """Put messages, end a value, and let a job die."""
        await self.put(b"log/a", *[b"%d" % number for number in range(5)])
        await self.put(b"state/a", b"here")
        await self.do(lambda engine: engine.forget("state", b"state/a"))
        await self.put(b"mail/a", b"job")
        (job,) = (await self.do(lambda engine: engine.take("mail", WORKER, 1, 1_000))).jobs
        await self.do(lambda engine: engine.fail("mail", [job.lease], WORKER, "no"))
        self.sweeper.schedule(0)
        await until(lambda: self.logged == [b"mail/a"])

    async def notes(self) -> int:
        """Return how many notes the file has."""
        tables = ("unpublished", "ended", "dead_letter")
        return await self.do(lambda engine: sum(engine.database.execute(f"SELECT COUNT(*) FROM {each}").fetchone()[0] for each in tables))

    async def all_noted(self) -> None:
        """Return when all notes are removed."""
        async with asyncio.timeout(SECONDS):
            while await self.notes():
                self.sweeper.schedule(0)
                await asyncio.sleep(0.02)


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Run]:
    """A run that ends as by a kill: nothing is noted at its end."""
    run = Run(path)
    sweeps = asyncio.ensure_future(run.sweeper.run(run.context))
    try:
        yield run
    finally:
        sweeps.cancel()
        await run.disconnect()
        await asyncio.wait([sweeps])
        await run.operations.drained()
        committer = run.operations._committer
        assert isinstance(committer, Committer)
        committer.close()
        committer._engine.close()


LOG = [(b"log/a", b"%d" % number) for number in range(5)]
ENDED = (b"state/a", b"")
LETTER = (b"dead/mail/a", b"job")


def check(messages: FakeBus, calls: FakeBus) -> None:
    """Check that everything was published, each stream in order; *calls* is the connection for dead letters."""
    assert [each for each in messages.sent if each[0] == b"log/a"] == LOG
    assert [each for each in messages.sent if each[0] == b"state/a"][-1] == ENDED
    assert calls.sent == [LETTER]


def buses(kind: str) -> tuple[FakeBus, FakeBus]:
    """Return two connections to a bus that takes nothing, or not all."""
    if kind == "full":
        return FakeBus(2, answers=False), FakeBus(0)
    return FakeBus(answers=False), FakeBus(answers=False)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("kind", ["away", "full", "without an answer"])
def test_what_the_bus_has_not_taken_is_published_by_the_next_connection(tmp_path: Path, kind: str, is_killed: bool) -> None:
    async def scenario() -> None:
        path = tmp_path / "store.sqlite"
        async with running(path) as run:
            if kind != "away":
                run.connect(*buses(kind))
                await until(lambda: run.context.publications.is_live)
            await run.act()
            assert await run.notes() >= 4
            if not is_killed:
                await run.disconnect()
                run.connect(messages := FakeBus(), calls := FakeBus())
                await run.all_noted()
                check(messages, calls)
                assert run.logged == [b"mail/a"]  # once
        async with running(path) as run:
            assert (await run.do(lambda engine: engine.statistics())).to_publish == (7 if is_killed else 0)
            run.connect(messages := FakeBus(), calls := FakeBus())
            await run.all_noted()
            if is_killed:
                check(messages, calls)
            else:
                assert (messages.sent, calls.sent) == ([], [])

    asyncio.run(scenario())


def test_what_had_no_room_is_published_once_and_in_order_when_there_is_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "store.sqlite") as run:
            messages, calls = FakeBus(2), FakeBus(0)
            run.connect(messages, calls)
            await until(lambda: run.context.publications.is_live)
            await run.act()
            for room in (3, 4, 1 << 30):
                messages.room = calls.room = room
                messages.freed.set()
            await until(lambda: ENDED in messages.sent and run.context.publications.is_live)
            await run.put(b"log/b", b"live")
            await run.all_noted()
            assert messages.sent[-1] == (b"log/b", b"live")
            check(messages, calls)
            statistics = await run.do(lambda engine: engine.statistics())
            assert (statistics.to_publish, statistics.unpublished) == (0, 1)  # the value that ended before it was published

    asyncio.run(scenario())


def test_what_can_never_be_published_is_counted_over_restarts(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "store.sqlite"
        for number in range(1, 3):
            async with running(path) as run:
                run.connect(messages := FakeBus(limit=1_000), FakeBus())
                await run.put(b"log/a", b"x" * 1_000)
                await run.put(b"log/a", b"short")
                await run.all_noted()
                assert messages.sent == [(b"log/a", b"short")]
                assert (await run.do(lambda engine: engine.statistics())).unpublished == number

    asyncio.run(scenario())
