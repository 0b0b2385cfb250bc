"""The Python client's batches on a real bus: no loss and no reordering, with and without batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from sbus import AsyncBus, Bus, Item, Message, RemoteRefusal, Request
from tests.support.daemons import Daemon

WAIT_SECONDS = 60.0

COUNT = 2_000


SHARES_BUS = True


def plain(path: str) -> None:
    """Publish as any socket can."""
    with Bus.connect(path, batching=False) as bus:
        for number in range(COUNT):
            bus.publish("n/plain", b"%d" % number)
        bus.ping()


def coalescing(path: str) -> None:
    """Publish in scopes of many sizes."""
    with Bus.connect(path) as client:
        number = 0
        while number < COUNT:
            with client.coalesce():
                for _ in range(min(number % 300 + 1, COUNT - number)):
                    client.publish("n/coalescing", b"%d" % number)
                    number += 1
        client.ping()
        assert client.statistics.batches_sent > 0
        assert client.statistics.unsent == client.statistics.batchless == 0


def asynchronous(path: str) -> None:
    """Publish from several tasks of one loop, one after the other."""

    async def main() -> None:
        async with AsyncBus.connect(path) as client:
            for number in range(COUNT):
                await client.publish("n/asynchronous", b"%d" % number)
                if number % 97 == 0:
                    await asyncio.sleep(0)
            await client.ping()
            assert client.statistics.batches_sent > 0
            assert client.statistics.unsent == client.statistics.batchless == 0

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


PUBLISHERS: list[Callable[[str], None]] = [plain, coalescing, asynchronous]

TOTAL = COUNT * len(PUBLISHERS)


def check(items: list[Item]) -> None:
    """Fail unless *items* are all that was published, each publisher's in order."""
    numbers: dict[str, list[int]] = {}
    for item in items:
        assert isinstance(item, Message), f"{item} after {len(numbers)} keys"
        numbers.setdefault(item.key, []).append(int(item.payload))
    assert numbers == {"n/" + publish.__name__: list(range(COUNT)) for publish in PUBLISHERS}


def test_messages_arrive_in_order_with_and_without_batches(bus: Daemon) -> None:
    batched: list[int] = []

    async def subscriber(bus: AsyncBus, ready: threading.Event) -> None:
        async with bus.subscribe("n/") as sub:
            ready.set()
            items: list[Item] = []
            async for item in sub:
                items.append(item)
                if len(items) == TOTAL:
                    break
            check(items)
            batched.append(bus.statistics.batches_received)

    async def aio(ready: threading.Event) -> None:
        async with AsyncBus.connect(bus.path) as client:
            await asyncio.wait_for(subscriber(client, ready), WAIT_SECONDS)

    ready = threading.Event()
    errors: list[BaseException] = []

    def run_aio() -> None:
        try:
            asyncio.run(aio(ready))
        except BaseException as error:  # shown by the test
            errors.append(error)
            ready.set()

    with (
        Bus.connect(bus.path) as one,
        Bus.connect(bus.path, batching=False) as two,
        one.subscribe("n/") as all_of_one,
        two.subscribe("n/") as all_of_two,
        two.subscribe("n/plain") as some_of_two,
    ):
        reader = threading.Thread(target=run_aio)
        reader.start()
        assert ready.wait(WAIT_SECONDS)
        writers = [threading.Thread(target=publish, args=(bus.path,)) for publish in PUBLISHERS]
        for writer in writers:
            writer.start()
        items: list[Item] = []
        while len(items) < TOTAL:
            items += all_of_one.receive_many(timeout=WAIT_SECONDS)
        check(items)
        check([all_of_two.receive(WAIT_SECONDS) for _ in range(TOTAL)])
        assert [some_of_two.receive(0) for _ in range(COUNT)] == [Message(b"n/plain", b"%d" % number) for number in range(COUNT)]
        for thread in (*writers, reader):
            thread.join(WAIT_SECONDS)
        assert not errors
        batched.append(one.statistics.batches_received)
        assert two.statistics.batches_received == 0
        assert sum(batched) > 0, "what was there together came together"


def test_answers_receipts_and_refusals_keep_their_places(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a/") as sub:
        with client.coalesce():
            client.ping()
            assert client.publish("a/1", "x", receipt=True) == 1
            client.publish("a/2", "x")
            client.publish("!/reserved", "x")
            client.publish("a/3", "x")
            assert client.publish("unused", receipt=True) == 0
            with pytest.raises(RemoteRefusal, match="EPERM"):
                client.ping()
            client.tell("echo/off")
            client.publish("a/4", "not to the sender")
            client.tell("echo/on")
            client.publish("a/5", "x")
        items = [sub.receive(WAIT_SECONDS) for _ in range(4)]
        assert [item.key for item in items if isinstance(item, Message)] == ["a/1", "a/2", "a/3", "a/5"]
        assert client.ping() > 0


def test_calls_over_batches(bus: Daemon) -> None:
    async def main() -> None:
        async with AsyncBus.connect(bus.path) as server, AsyncBus.connect(bus.path) as client:

            @server.service("twice")
            async def twice(request: Request) -> bytes:
                await asyncio.sleep(0)
                return request.data * 2

            ready = asyncio.Event()
            serving = asyncio.ensure_future(server.serve(ready=ready.set))
            await ready.wait()
            first = await client.call("twice", b"0")
            assert first == b"00"
            answers = await asyncio.gather(*(client.call("twice", b"%d" % number) for number in range(200)))
            assert answers == [b"%d" % number * 2 for number in range(200)]
            assert client.statistics.batches_sent > 0
            await server.close()
            await serving

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))
