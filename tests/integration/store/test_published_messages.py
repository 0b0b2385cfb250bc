"""What the store publishes besides new messages: what a kill kept back, and the ends of last values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbusd.client import Bus, Message, StoredMessage, StoreGap
from sbusd.client.sync.streams import Subscription
from sbusd.config.files import load_settings
from sbusd.config.store import StoreSettings
from sbusd.store.engine.clocks import SystemClock
from sbusd.store.engine.engine import Engine
from sbusd.store.engine.messages import NewMessage, Sender
from tests.support.daemons import Daemon
from tests.support.store_programs import StoreProgram

SECONDS = 60.0
CONFIG = """
[[stream]]
name = "log"
keys = ["log/"]

[[stream]]
name = "state"
keys = ["state/"]
last = 1
on_subscribe = true
"""


@pytest.fixture
def store(bus: Daemon, tmp_path: Path) -> Iterator[StoreProgram]:
    """A store that runs."""
    with StoreProgram(tmp_path, bus.path, CONFIG) as made:
        yield made


def received(subscription: Subscription, count: int) -> list[Message]:
    """Return the next messages."""
    found: list[Message] = []
    while len(found) < count:
        item = subscription.receive(SECONDS)
        if isinstance(item, Message):
            found.append(item)
    return found


def test_what_was_committed_before_a_kill_is_published_after_it(store: StoreProgram) -> None:
    with Bus.connect(store.bus) as bus, bus.subscribe("log/") as subscription:
        bus.store.put("log/a", b"before")
        assert [each.payload for each in received(subscription, 1)] == [b"before"]
        assert store.stop() == 0
        settings = load_settings(store.config, StoreSettings)
        engine = Engine(store.file, settings, SystemClock(print, store.file.with_suffix(".date")))
        engine.put_unpublished(
            "log", [NewMessage(b"log/a", b"%d" % number, Sender(1_234, 5_678, 9), b"%d" % number) for number in range(600)]
        )
        engine.close()
        store.start()
        found = received(subscription, 600)
        assert [each.payload for each in found] == [b"%d" % number for number in range(600)]
        assert {each.sender.origin for each in found if each.sender} == {"!/store/!/cred/5678/1234/9"}
        store.kill()
        store.start()  # nothing is left to publish
        bus.store.put("log/a", b"after")
        assert [each.payload for each in received(subscription, 1)] == [b"after"]


def test_subscribers_learn_that_a_last_value_is_gone(store: StoreProgram) -> None:
    with Bus.connect(store.bus) as bus, bus.subscribe("state/", last=True) as subscription:
        ends: dict[str, Callable[[], object]] = {
            "state/expired": list,
            "state/forgotten": lambda: bus.store.forget("state", "state/forgotten"),
            "state/purged": lambda: bus.store.purge(stream="state", pattern="state/purged"),
        }
        for key, end in ends.items():
            bus.store.put(key, b"here", expire=0.5 if key == "state/expired" else None)
            end()
            values = received(subscription, 2)
            while values[-1].payload:  # a subscriber to on_subscribe can get a value twice
                values += received(subscription, 1)
            assert {each.key for each in values} == {key}
        assert list(bus.store.last("state/")) == []
        bus.store.put("state/new", b"here")
        with Bus.connect(store.bus) as other, other.subscribe("state/") as late:
            assert [each.key for each in received(late, 1)] == ["state/new"]


@pytest.mark.parametrize("removes_all", [True, False])
def test_a_reader_goes_on_after_the_file_of_the_store_was_lost(store: StoreProgram, removes_all: bool) -> None:
    with Bus.connect(store.bus, reconnect=True) as bus:
        for number in range(20):
            bus.store.put("log/a", b"old %d" % number)
        items = bus.store.read("log")
        assert [each.payload for each in (next(items) for _ in range(20)) if isinstance(each, StoredMessage)][-1] == b"old 19"
        assert store.stop() == 0
        names = [each for each in store.file.parent.glob("store.sqlite*") if removes_all or not each.name.endswith(".numbers")]
        for each in names:
            each.unlink()
        store.start()
        for number in range(5):
            bus.store.put("log/a", b"new %d" % number)
        gap = next(items)
        new: list[bytes] = []
        while len(new) < 5:
            new += [each.payload for each in [next(items)] if isinstance(each, StoredMessage)]
        assert isinstance(gap, StoreGap)
        assert gap.reason in {"the stream was begun again", "the file of the store was damaged, removed or replaced by an older copy"}
        assert new == [b"new %d" % number for number in range(5)]
