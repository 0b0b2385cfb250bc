"""The Python client on a real bus."""

from __future__ import annotations

import asyncio
import os

import pytest

from sbus import (
    AsyncBus,
    Bus,
    Disconnected,
    ErrorCode,
    Gap,
    Message,
    RemoteRefusal,
    TimedOut,
)
from sbus.protocol.packets import MAX_PACKET_BYTES
from tests.support.daemons import Daemon

WAIT_SECONDS = 20.0


SHARES_BUS = True


def test_publish_and_subscribe(bus: Daemon) -> None:
    with Bus.connect(bus.path) as one, Bus.connect(bus.path) as two, one.subscribe("a/*/c", "net/") as sub:
        two.publish("a/b/c", "x")
        two.publish("a/b/d", "not this")
        two.publish("net/link/eth0", b"\0\xff")
        assert sub.receive(WAIT_SECONDS) == Message(b"a/b/c", b"x")
        assert sub.receive(WAIT_SECONDS) == Message(b"net/link/eth0", b"\0\xff")
        one.unsubscribe("net/")
        one.ping()
        two.publish("net/link/eth0")
        two.ping()
        one.ping()
        with pytest.raises(TimedOut):
            sub.receive(0)


def test_the_largest_packet(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("k") as sub:
        payload = os.urandom(MAX_PACKET_BYTES - len(b"MSG k\0"))
        client.publish("k", payload)
        assert sub.receive(WAIT_SECONDS) == Message(b"k", payload)


def test_a_secret_of_ones_own(bus: Daemon) -> None:
    with Bus.connect(bus.path) as one, Bus.connect(bus.path) as two:
        me = one.whoami()
        assert me == f"!/cred/{os.getgid()}/{os.getuid()}/{os.getpid()}"
        with one.subscribe(me + "/answers") as sub:
            two.publish(me + "/answers", "s3cret")
            assert sub.receive(WAIT_SECONDS) == Message(me.encode() + b"/answers", b"s3cret")


def test_a_private_key_of_another_user(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client:
        with pytest.raises(RemoteRefusal) as caught:
            client.subscribe("ordinary", "!/cred/77/77/77/x")
        assert caught.value.code is ErrorCode.EACCES
        assert caught.value.request == "SUB '!/cred/77/77/77/x'"
        with pytest.raises(Disconnected, match="EACCES"):
            client.ping()


def test_refusals_are_raised_in_the_affected_calls(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a") as sub:
        client.publish("!/event/x", "forged")
        assert client.whoami()
        refused: list[RemoteRefusal] = []
        client.on_refused = refused.append
        with pytest.raises(TimedOut):
            sub.receive(0)
        assert [(refusal.code, refusal.request, refusal.key) for refusal in refused] == [(ErrorCode.EPERM, "", "!/event/x")]
        with pytest.raises(RemoteRefusal) as asked:
            client.control("!/bus/nothing")
        assert (asked.value.code, asked.value.request) == (ErrorCode.ENOSYS, "CMSG '!/bus/nothing'")
        with pytest.raises(RemoteRefusal) as subscribing:
            client.subscribe("b", "!/bus/")
        assert subscribing.value.code is ErrorCode.EPERM
        client.publish("a", "still here")
        assert sub.receive(WAIT_SECONDS) == Message(b"a", b"still here")


def test_a_misspelled_setting_is_refused(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a") as sub:
        refused: list[RemoteRefusal] = []
        client.on_refused = refused.append
        client.tell("order/lastest")
        client.publish("a")
        assert isinstance(sub.receive(WAIT_SECONDS), Message)
        with pytest.raises(RemoteRefusal, match="unknown control message order/lastest"):
            client.control("order/lastest")
        with pytest.raises(RemoteRefusal, match="CMSG 'order/lastest': ENOSYS"):
            client.control("order/lastest")
        client.tell("ech/off")
        with pytest.raises(RemoteRefusal, match="ENOSYS unknown control message ech/off"):
            client.ping()
        assert [each.said for each in refused] == ["ENOSYS unknown control message order/lastest"]


def test_echo_can_be_turned_off(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a") as sub:
        client.tell("echo/off")
        client.publish("a")
        client.ping()
        with pytest.raises(TimedOut):
            sub.receive(0)


def test_a_loss_is_reported_in_its_place(bus: Daemon) -> None:
    """A subscriber that does not read loses messages and is notified of their number: received and lost add up to sent."""
    count, payload = 25_000, b"x" * 4_000
    with Bus.connect(bus.path) as slow, Bus.connect(bus.path) as fast, slow.subscribe("a") as sub:
        slow.tell("blocking/hard/discard")
        slow.ping()
        for _ in range(count):
            fast.publish("a", payload)
        fast.ping()
        received = lost = 0
        while received + lost < count:
            match sub.receive(WAIT_SECONDS):
                case Message():
                    received += 1
                case Gap(missing):
                    lost += missing
                case other:
                    raise AssertionError(other)
        assert received + lost == count
        assert lost > 0
        assert slow.statistics.lost_remote == lost
        assert slow.ping() > 0


def test_the_end_of_the_bus(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a") as sub:
        client.publish("a", "last")
        client.ping()
        bus.stop()
        assert sub.receive(WAIT_SECONDS) == Message(b"a", b"last")
        with pytest.raises(Disconnected):
            sub.receive(WAIT_SECONDS)


def test_two_tasks_on_a_real_bus(bus: Daemon) -> None:
    count = 2_000

    async def main() -> None:
        async with AsyncBus.connect(bus.path) as one, AsyncBus.connect(bus.path) as two, one.subscribe("a/") as sub:

            async def publish() -> None:
                for number in range(count):
                    await two.publish(f"a/{number}", "x")
                    if number % 100 == 0:
                        await two.ping()

            publishing = asyncio.ensure_future(publish())
            seen = []
            async for item in sub:
                assert isinstance(item, Message)
                seen.append(item.key)
                if len(seen) == count:
                    break
            await publishing
            assert seen == [f"a/{number}" for number in range(count)]
            assert await one.whoami() == await two.whoami()

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS * 3))
