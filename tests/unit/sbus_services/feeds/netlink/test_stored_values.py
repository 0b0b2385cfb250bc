"""What the feed does with last values, with a store that is made up; tests/integration/store/test_stored_feed.py has a real one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, cast

from sbus import Bus, Closed, Message
from sbus.store.errors import StoreError
from sbus.store.items import StoredMessage
from sbus_services.feeds.netlink import stored_values
from sbus_services.feeds.netlink.stored_values import PublishedKeys, StoredValues


class MadeUpBus:
    """A bus with states of a store, and its last values; a context for its own subscription."""

    def __init__(self, states: list[bytes], values: list[StoredMessage], on_forget: Callable[[], None] = lambda: None) -> None:
        self.forgotten: list[str] = []
        self.published: list[str] = []
        self.failure: Exception | None = None
        self._states = states
        self._values = values
        self._on_forget = on_forget
        self.store = self

    def subscribe(self, _key: str, **_options: object) -> MadeUpBus:
        return self

    def __enter__(self) -> MadeUpBus:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def items(self) -> Iterator[Message]:
        for state in self._states:
            yield Message(b"store/state", state, None)
        raise Closed("the bus")

    def last(self, *_patterns: str) -> Iterator[StoredMessage]:
        if self.failure is not None:
            raise self.failure
        yield from self._values

    def forget(self, stream: str, *keys: str) -> None:
        assert stream == "net"
        self.forgotten += keys
        self._on_forget()

    def publish(self, key: str, _payload: bytes) -> None:
        self.published.append(key)

    def close(self) -> None:
        pass


def value(key: str, payload: object, uid: int | None = None) -> StoredMessage:
    """Return a last value of this user, or of *uid*."""
    owner = os.geteuid() if uid is None else uid
    return StoredMessage("net", 1, 0.0, key.encode(), json.dumps(payload).encode(), owner, 0, 1)


def state(started: float) -> bytes:
    """Return a state of a store that was *started* then."""
    return json.dumps({"started": started}).encode()


def keys(*names: str) -> PublishedKeys:
    """Return published keys after the first snapshot."""
    made = PublishedKeys()
    for name in names:
        made.note(name, is_removed=False)
    made.is_complete = True
    return made


def run(bus: MadeUpBus, published: PublishedKeys, monkeypatch: Any, namespace: str | None = None) -> list[str]:
    """Let the thread handle all states, and return what it logs."""
    monkeypatch.setattr(stored_values, "LEAST_SECONDS", 0.0)
    said: list[str] = []
    made = StoredValues(cast("Bus", bus), published, said.append, namespace=namespace, request="net/request")
    made._thread.join(60)
    made.close()
    return said


def test_values_of_entries_that_do_not_exist_are_removed_and_others_stay(monkeypatch: Any) -> None:
    stored = [
        value("net/link/lo", {}),
        value("net/link/gone", {"event": "remove"}),
        value("net/link/elsewhere", {"namespace": "other"}),
        value("net/link/odd", "text"),
        value("net/link/theirs", {}, os.geteuid() + 1),
    ]
    bus = MadeUpBus([state(1)], stored)
    assert run(bus, keys("net/link/lo"), monkeypatch) == []
    assert (bus.forgotten, bus.published) == (["net/link/gone"], [])


def test_missing_values_are_requested(monkeypatch: Any) -> None:
    bus = MadeUpBus([state(1)], [value("net/link/eth0", {}, os.geteuid() + 1)])
    run(bus, keys("net/link/eth0", "net/route/main/default"), monkeypatch)
    assert bus.published == ["net/request"]


def test_an_entry_that_returns_while_its_value_is_removed_is_stored_again(monkeypatch: Any) -> None:
    published = keys()
    bus = MadeUpBus([state(1)], [value("net/link/eth0", {})], lambda: published.note("net/link/eth0", is_removed=False))
    run(bus, published, monkeypatch)
    assert (bus.forgotten, bus.published) == (["net/link/eth0"], ["net/request"])


def test_values_are_compared_twice_after_a_start_and_then_not_at_all(monkeypatch: Any) -> None:
    stored = [value("net/link/gone", {})]
    bus = MadeUpBus([state(1)] * 5, stored)
    run(bus, keys(), monkeypatch)
    assert bus.forgotten == ["net/link/gone"] * stored_values.ROUNDS
    bus = MadeUpBus([state(1), state(1), state(1), state(2)], stored)
    run(bus, keys(), monkeypatch)
    assert len(bus.forgotten) == stored_values.ROUNDS + 1


def test_nothing_is_removed_before_the_first_snapshot(monkeypatch: Any) -> None:
    bus = MadeUpBus([state(1)], [value("net/link/lo", {})])
    run(bus, PublishedKeys(), monkeypatch)
    assert bus.forgotten == []


def test_invalid_states_and_a_store_without_the_stream_are_ignored(monkeypatch: Any) -> None:
    bus = MadeUpBus([b"", b"[", b"[]", b"{}", state(1)], [])
    bus.failure = StoreError("store/last", "ENOENT", "no stream has this key")
    assert run(bus, keys("net/link/lo"), monkeypatch) == []
    assert bus.published == []
    bus = MadeUpBus([state(1)], [])
    bus.failure = StoreError("store/last", "EACCES", "no")
    assert len(run(bus, keys("net/link/lo"), monkeypatch)) == 1
