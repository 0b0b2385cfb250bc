"""Messages that wait for slow recipients, from the Python client through a real bus, as two real users."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading

import pytest

from sbus import AsyncBus, Bus, Gap, Item, Message
from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import FIRST, SECOND
from tools.stage import Stage

pytestmark = pytest.mark.usefixtures("needs_root")

WAIT_SECONDS = 120.0

COUNT = 3_000
PAYLOAD = bytes(2_000)
"""So that a queue holds a tenth of all, and a socket a few hundred."""

CONFIG = """
[limits]
queue_bytes = "1MiB"
pace_limit = "1s"
block_timeout = "1h"
progress_timeout = "1h"
"""


@pytest.fixture
def long_timeouts(daemon: StartDaemon) -> Daemon:
    """A bus with small queues whose publishers wait for as long as it takes, so that a slow machine changes nothing."""
    return daemon(config=CONFIG)


def publish_blocking(path: str, ways: str) -> None:
    """Publish as the second user; *ways* says whether the connection waits, or each message, and what leaves together."""
    with Bus.connect(path, pace=ways == "connection", timeout=WAIT_SECONDS) as bus:
        if ways == "coalesced":
            with bus.coalesce():
                for number in range(COUNT):
                    bus.publish("a", b"%d " % number + PAYLOAD, wait=True)
        else:
            for number in range(COUNT):
                bus.publish("a", b"%d " % number + PAYLOAD, wait=ways == "message")
        bus.ping()


def publish_with_asyncio(path: str, ways: str) -> None:
    async def main() -> None:
        async with AsyncBus.connect(path, pace=ways == "connection", timeout=WAIT_SECONDS) as bus:
            for number in range(COUNT):
                await bus.publish("a", b"%d " % number + PAYLOAD, wait=ways == "message")
            await bus.ping()

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


def numbers(items: list[Item]) -> list[int]:
    return [int(item.payload.partition(b" ")[0]) for item in items if isinstance(item, Message)]


def lost(items: list[Item]) -> int:
    return sum(item.lost for item in items if isinstance(item, Gap))


@pytest.mark.parametrize(
    ("publish", "ways"),
    [
        (publish_blocking, "connection"),
        (publish_blocking, "message"),
        (publish_blocking, "coalesced"),
        (publish_with_asyncio, "connection"),
        (publish_with_asyncio, "message"),
    ],
)
def test_nothing_is_lost_to_a_slow_recipient_of_another_user(long_timeouts: Daemon, publish: object, ways: str) -> None:
    """It reads nothing until the bus says that the publisher is blocked, and all of it then."""
    assert callable(publish)
    with (
        Bus.connect(long_timeouts.path, timeout=WAIT_SECONDS) as slow,
        slow.subscribe("a") as sub,
        Bus.connect(long_timeouts.path) as owner,
    ):
        # The publisher is another user: a child that takes that on before it connects.
        done = threading.Thread(target=lambda: SECOND.call(lambda: publish(long_timeouts.path, ways), WAIT_SECONDS))
        done.start()
        while not (blocks := counters(owner)["blocks"]):
            done.join(0.01)
            assert done.is_alive(), "it was to wait"
        received: list[Item] = []
        while len(received) < COUNT:
            received += sub.receive_many(timeout=WAIT_SECONDS)
        done.join(WAIT_SECONDS)
        assert not done.is_alive()
        assert numbers(received) == list(range(COUNT))
        assert counters(owner)["lost_packets"] == 0
        assert blocks


def test_without_blocking_the_same_messages_are_lost_and_no_publisher_waits(long_timeouts: Daemon) -> None:
    with (
        Bus.connect(long_timeouts.path, timeout=WAIT_SECONDS) as slow,
        slow.subscribe("a") as sub,
        Bus.connect(long_timeouts.path) as owner,
    ):
        SECOND.call(lambda: publish_blocking(long_timeouts.path, "none"), WAIT_SECONDS)
        assert counters(owner)["blocks"] == 0
        received: list[Item] = []
        while len(numbers(received)) + lost(received) < COUNT:
            received += sub.receive_many(timeout=WAIT_SECONDS)
        assert lost(received) > 0
        assert numbers(received) == sorted(numbers(received))


def counters(owner: Bus) -> dict[str, int]:
    found = json.loads(owner.control("!/bus/stats"))["counters"]
    assert isinstance(found, dict)
    return found


def test_users_do_not_learn_whose_connection_they_wait_for(long_timeouts: Daemon) -> None:
    """The second user sees that it waits, for how long, and nothing of the first."""
    reader, publisher, same_user = long_timeouts.client(FIRST), long_timeouts.client(SECOND), long_timeouts.client(SECOND)
    reader.subscribe(b"a")
    reader.barrier()
    publisher.control(b"pace/on")
    publisher.barrier()
    publisher.socket.setblocking(False)
    waits: list[dict[str, object]] = []
    while not waits:
        with contextlib.suppress(BlockingIOError):
            publisher.send(b"MSG a\0" + PAYLOAD)
        reported = json.loads(same_user.ask(b"!/bus/connections"))
        waits = [wait for each in reported["connections"] for wait in each["blocked_by"]]
    assert [(wait["id"], wait["uid"], wait["paced"]) for wait in waits] == [(None, None, True)]
    assert b"%d" % FIRST.uid not in same_user.ask(b"!/bus/connections") + same_user.ask(b"!/bus/users") + same_user.ask(b"!/bus/stats")
    (named,) = json.loads(long_timeouts.client().ask(b"!/bus/stats"))["waits"]
    assert (named["publisher_uid"], named["recipient_uid"]) == (SECOND.uid, FIRST.uid)


def test_sbusctl_pub_blocks_if_requested(long_timeouts: Daemon, stage: Stage) -> None:
    command = stage.program("sbusctl", "-a", long_timeouts.path, "pub", "--wait", "--lines", "a")
    lines = b"".join(b"%d %b\n" % (number, b"x" * len(PAYLOAD)) for number in range(COUNT))
    with (
        Bus.connect(long_timeouts.path, timeout=WAIT_SECONDS) as slow,
        slow.subscribe("a") as sub,
        Bus.connect(long_timeouts.path) as owner,
    ):
        feeder = threading.Thread(target=lambda: subprocess.run(command, input=lines, check=True, timeout=WAIT_SECONDS))
        feeder.start()
        while not counters(owner)["blocks"]:
            feeder.join(0.01)
            assert feeder.is_alive(), "it was to wait"
        received: list[Item] = []
        while len(received) < COUNT:
            received += sub.receive_many(timeout=WAIT_SECONDS)
        feeder.join(WAIT_SECONDS)
        assert numbers(received) == list(range(COUNT))
