"""Presence as typed events, decoded messages, and wrong arguments."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import warnings
from typing import Any, cast

import pytest

from sbus import (
    AsyncBus,
    Bus,
    Change,
    Gap,
    Message,
    MessagesMissing,
    Peer,
    PresenceEvent,
    ProtocolError,
    Replaced,
    TimedOut,
    raise_missing,
)
from sbus.items import TapRecord, presence_item, tap_item
from sbus.protocol.credentials import vouched_peer
from tests.support.minibus import WAIT_SECONDS, MiniBus

PAYLOAD = b'{"id":7,"cred":"!/cred/100/1000/42","time":1500000000}'
PEER = Peer(7, 1000, 100, 42, b"!/cred/100/1000/42")


@pytest.mark.parametrize(
    ("key", "event"),
    [
        (b"!/event/connect/7", PresenceEvent(Change.CONNECT, PEER, 1.5)),
        (b"!/event/disconnect/7", PresenceEvent(Change.DISCONNECT, PEER, 1.5)),
        (b"!/event/subscribe/7/a/*/\xff/", PresenceEvent(Change.SUBSCRIBE, PEER, 1.5, "a/*/\udcff/")),
        (b"!/event/unsubscribe/7/", PresenceEvent(Change.UNSUBSCRIBE, PEER, 1.5, "")),
    ],
)
def test_events(key: bytes, event: PresenceEvent) -> None:
    assert presence_item(Message(key, PAYLOAD)) == event


ORIGIN = "!/host/alpha/!/cred/0/0/1"


@pytest.mark.parametrize(
    ("member", "sender"), [("", PEER), (f',"vouched":"{ORIGIN}"', vouched_peer(PEER, ORIGIN.encode())), (',"vouched":7', PEER)]
)
def test_the_message_of_a_record_has_its_author_and_the_record_its_connection(member: str, sender: Peer) -> None:
    line = b'{"kind":"message","time":1500000000,"id":7,"cred":"!/cred/100/1000/42"%b}' % member.encode()
    record = tap_item(Message(b"", line + b"\nMSG a\0hi"))
    assert isinstance(record, TapRecord)
    assert record.peer == PEER
    assert record.message == Message(b"a", b"hi", sender)


def test_missing_events_are_returned_as_a_gap() -> None:
    assert presence_item(Gap(3)) == Gap(3)


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"id":"x","cred":"!/cred/1/1/1","time":1}', b'{"id":7,"cred":5,"time":1}'])
def test_what_no_bus_sends(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        presence_item(Message(b"!/event/connect/7", payload))
    with pytest.raises(ProtocolError):
        presence_item(Message(b"!/event/other/7", PAYLOAD))


def test_the_member_list_is_requested_after_the_subscription(mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address) as watcher, watcher.presence() as presence:
        there = {peer.connection for peer in watcher.members("group")}
        with Bus.connect(mini_bus.address) as other, other.subscribe("group"):
            while True:
                event = presence.receive(WAIT_SECONDS)
                assert isinstance(event, PresenceEvent)
                if (event.change, event.pattern) == (Change.SUBSCRIBE, "group"):
                    there.add(event.peer.connection)
                    break
            assert there == {peer.connection for peer in watcher.members("group")} == {2}
        for event in presence:
            assert isinstance(event, PresenceEvent)
            if event.change is Change.DISCONNECT:
                break
        with pytest.raises(TimedOut):
            presence.receive(0)


def test_the_same_on_asyncio(mini_bus: MiniBus) -> None:
    async def main() -> list[Change]:
        changes = []
        async with AsyncBus.connect(mini_bus.address) as watcher, watcher.presence() as presence:
            other = await AsyncBus.connect(mini_bus.address)
            await other.close()
            async for event in presence:
                assert isinstance(event, PresenceEvent)
                if event.peer.connection == 2:
                    changes.append(event.change)
                if event.change is Change.DISCONNECT:
                    break
        return changes

    assert asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS)) == [Change.CONNECT, Change.DISCONNECT]


def test_a_message_has_its_payload_decoded() -> None:
    message = Message(b"k", '{"é": [1]}'.encode())
    assert message.text == '{"é": [1]}'
    assert message.json() == {"é": [1]}
    with pytest.raises(UnicodeDecodeError):
        Message(b"k", b"\xff").text  # noqa: B018 - the property raises
    with pytest.raises(ValueError, match="Expecting value"):
        Message(b"k", b"x").json()


@pytest.mark.parametrize(
    ("name", "known"), [("data", "payload"), ("body", "payload"), ("subject", "key"), ("topic", "key"), ("channel", "key")]
)
def test_an_attribute_of_another_library_names_the_one_here(name: str, known: str) -> None:
    message: Any = Message(b"k", b"x")
    with pytest.raises(AttributeError, match=f"'Message' object has no attribute '{name}': its name here is '{known}'"):
        getattr(message, name)


def test_another_missing_attribute_has_no_hint() -> None:
    message: Any = Message(b"k", b"x")
    with pytest.raises(AttributeError, match=r"^'Message' object has no attribute 'sub'$"):
        _ = message.sub


def test_messages_can_be_copied_and_pickled() -> None:
    message = Message(b"k", b"x", PEER)
    assert copy.deepcopy(message) == pickle.loads(pickle.dumps(message)) == message


def test_wrong_arguments_are_named(mini_bus: MiniBus) -> None:
    wrong: Any = "1"
    text: Any = b"sync"
    with pytest.raises(ValueError, match="invalid scope 'sys': must be 'system' or 'user'"):
        Bus.connect(scope=cast("Any", "sys"))
    with Bus.connect(mini_bus.address) as bus:
        with pytest.raises(TypeError, match="command must be str, not bytes"):
            bus.call(text)
        with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not str"):
            bus.call("sync", timeout=wrong)


def test_a_forgotten_await_of_connect_is_named(mini_bus: MiniBus) -> None:
    async def main() -> None:
        bus = AsyncBus.connect(mini_bus.address)
        for use in (bus.publish("a", "b"), bus.ping()):
            with pytest.raises(RuntimeError, match="the bus is not connected: use 'async with AsyncBus"):
                await use

    asyncio.run(main())


def test_a_forgotten_await_of_a_subscription_is_a_warning(mini_bus: MiniBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(mini_bus.address) as bus:
            with pytest.warns(RuntimeWarning, match=r"the subscription to 'a/\*', 'b' was never awaited, so it never began"):
                bus.subscribe("a/*", "b")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await bus.subscribe("a")
                async with bus.subscribe("b"):
                    pass
                gc.collect()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (Gap(0), "an unknown number of messages is missing"),
        (Gap(1), "1 message is missing"),
        (Gap(2), "2 messages are missing"),
        (Replaced(1), "1 message was replaced by a newer one with the same key"),
        (Replaced(2), "2 messages were replaced by newer ones with the same keys"),
    ],
)
def test_words_for_each_number_of_missing_messages(item: Gap | Replaced, words: str) -> None:
    with pytest.raises(MessagesMissing) as caught:
        raise_missing(item)
    assert str(caught.value) == words
