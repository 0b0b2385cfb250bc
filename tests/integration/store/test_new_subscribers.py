"""A plain client that subscribes receives the last values first, and the newest value of each key last."""

from __future__ import annotations

import threading

from sbus import Message
from sbus.protocol import controls
from tests.integration.store.conftest import MakeCaller
from tests.support.daemons import Daemon
from tests.support.store_programs import StoreCaller
from tests.support.users import FIRST, SECOND

SECONDS = 60.0


def test_a_new_subscriber_gets_the_last_values_of_their_publisher(alice: StoreCaller, caller: MakeCaller) -> None:
    alice.put("net/a", b"old")
    alice.put("net/a", b"1")
    alice.put("net/b", b"2")
    alice.put("log/a", b"no value")
    reader = caller(SECOND)
    reader.bus.tell(controls.SENDER_ON)
    with reader.bus.subscribe("net/") as values:
        items = [values.receive(SECONDS) for _ in range(2)]
        assert [(each.key, each.payload) for each in items if isinstance(each, Message)] == [("net/a", b"1"), ("net/b", b"2")]
        for each in items:
            assert isinstance(each, Message)
            assert each.sender is not None
            assert each.sender.origin.startswith(f"!/store/!/cred/{FIRST.gid}/{FIRST.uid}/")
        alice.put("net/a", b"3")
        live = values.receive(SECONDS)
    assert isinstance(live, Message)
    assert live.payload == b"3"


def test_others_do_not_receive_what_is_sent_to_a_new_subscriber(alice: StoreCaller, caller: MakeCaller) -> None:
    alice.put("net/a", b"1")
    first, second = caller(FIRST), caller(SECOND)
    with first.bus.subscribe("net/") as mine:
        assert isinstance(mine.receive(SECONDS), Message)
        with second.bus.subscribe("net/") as other:
            assert isinstance(other.receive(SECONDS), Message)
            alice.put("net/end", b"")
            item = mine.receive(SECONDS)
    assert isinstance(item, Message)
    assert item.key == "net/end"


def test_the_last_message_of_each_key_is_its_newest_value(alice: StoreCaller, caller: MakeCaller, bus: Daemon) -> None:
    for number in range(50):
        alice.put(f"net/{number}", b"0")
    stop = threading.Event()
    publisher = caller(FIRST)
    newest: dict[str, bytes] = {}

    def publish() -> None:
        value = 0
        while not stop.is_set():
            value += 1
            for number in range(0, 50, 5):
                newest[f"net/{number}"] = b"%d" % value
                publisher.bus.publish(f"net/{number}", b"%d" % value)
            publisher.bus.ping()
            stop.wait(0.01)

    thread = threading.Thread(target=publish)
    thread.start()
    found: dict[str, bytes] = {}
    try:
        with caller(SECOND).bus.subscribe("net/") as values:
            while len(found) < 50:
                item = values.receive(SECONDS)
                assert isinstance(item, Message)
                found[item.key] = item.payload
            stop.set()
            thread.join(SECONDS)
            publisher.bus.publish("net/end", "")
            while "net/end" not in found or any(found[key] != value for key, value in newest.items()):
                item = values.receive(SECONDS)
                assert isinstance(item, Message)
                found[item.key] = item.payload
    finally:
        stop.set()
        thread.join(SECONDS)
    assert {key: found[key] for key in newest} == newest
