"""What the store publishes besides new messages: what a kill kept back, and the ends of last values."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus import Bus, Message, SbusError, StoredMessage, StoreError, StoreGap
from sbus.sync.streams import Subscription
from sbus_programs.config.loading import load_settings
from sbus_programs.config.store import StoreSettings
from sbus_services.store.engine.clocks import SystemClock
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import NewMessage, Sender
from tests.support.daemons import Daemon, StartDaemon
from tests.support.killed_store import command
from tests.support.relays import wait_for
from tests.support.store_programs import BUS_RIGHTS, StoreCaller, StoreProgram

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

[[stream]]
name = "mail"
keys = ["mail/"]

[[queue]]
name = "mail"
stream = "mail"
dead = "dead/"
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
        with StoreCaller(store.bus) as caller:
            wait_for(lambda: json.loads(caller.bus.call("store/status"))["to_publish"] == 0, "the notes")
        store.kill()
        store.start()  # nothing is left to publish
        bus.store.put("log/a", b"after")
        assert [each.payload for each in received(subscription, 1)] == [b"after"]


def fail_job(bus: Bus) -> None:
    """Make the job a dead letter."""
    (job,) = bus.store.take_many("mail", timeout=SECONDS)
    job.fail("no")


@pytest.mark.parametrize(
    ("key", "payload", "act"),
    [
        ("log/a", b"new", lambda bus: bus.store.put("log/a", b"new")),
        ("state/a", b"", lambda bus: bus.store.forget("state", "state/a")),
        ("dead/mail/a", b"job", fail_job),
    ],
)
def test_a_kill_between_commit_and_publication_loses_nothing(
    bus: Daemon, tmp_path: Path, key: str, payload: bytes, act: Callable[[Bus], object]
) -> None:
    order = tmp_path / "order"
    with StoreProgram(tmp_path, bus.path, CONFIG, command(order)) as store, Bus.connect(store.bus) as client:
        client.store.put("state/a", b"here")
        client.store.put("mail/a", b"job")
        with client.subscribe(key) as subscription:
            order.write_bytes(b"MSG " + key.encode() + b"\0")
            with contextlib.suppress(SbusError):  # the answer can be lost, too
                act(client)
            assert store.process is not None
            store.process.wait(SECONDS)
            store.start()
            values = received(subscription, 1)
            while values[-1].payload != payload:  # a subscriber to on_subscribe gets the value first
                values += received(subscription, 1)


def put_expiring(bus: Bus, key: str) -> None:
    """Put a value that expires soon, but not before a store that is slow has stored it, which would refuse it."""
    for seconds in (0.5, 5.0):
        with contextlib.suppress(StoreError):
            bus.store.put(key, b"here", expire=seconds)
            return
    bus.store.put(key, b"here", expire=50.0)


def test_subscribers_learn_that_a_last_value_is_gone(store: StoreProgram) -> None:
    with Bus.connect(store.bus) as bus, bus.subscribe("state/", last=True) as subscription:
        ends: dict[str, Callable[[], object]] = {
            "state/forgotten": lambda: bus.store.forget("state", "state/forgotten"),
            "state/purged": lambda: bus.store.purge(stream="state", pattern="state/purged"),
        }
        for key in ("state/expired", *ends):
            if key in ends:
                bus.store.put(key, b"here")
                ends[key]()
            else:
                put_expiring(bus, key)
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
        if not removes_all:
            wait_for(lambda: "stream log has lost messages: " in store.log, "the report of the loss")


def test_what_the_bus_refuses_is_counted_and_the_log_has_the_reason(daemon: StartDaemon, tmp_path: Path) -> None:
    bus_path = daemon(config=BUS_RIGHTS + '[[policy]]\nkeys = "dead/"\npublish = "deny"\nsubscribe = "allow"\n').path
    with StoreProgram(tmp_path, bus_path, CONFIG) as store, Bus.connect(store.bus) as bus:
        bus.store.put("mail/a", b"job")
        fail_job(bus)
        wait_for(lambda: json.loads(bus.call("store/status"))["counters"]["publications_refused"] == 1, "the refusal")
        assert "the bus refused what the store publishes: " in store.log
