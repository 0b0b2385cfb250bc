"""Alerts are published in order; a refused one is dropped, and any other error keeps those that follow."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sbus.errors import RemoteRefusal
from sbus.protocol.errors import ErrorCode
from sbus.store.errors import StoreError, StoreNotRunning
from sbus.store.items import Put
from sbus.sync.bus import Bus
from sbus_archive.pipeline.errors import PermanentError
from sbus_archive.pipeline.live import publication
from sbus_archive.pipeline.live.alerts import Alert
from sbus_archive.pipeline.live.live_state import Decided
from sbus_archive.pipeline.live.publication import WAIT_SECONDS, AlertPublisher, Published, publish_decided
from sbus_archive.pipeline.source.outbox import Outbox, Publish


class RefusingBus:
    """A bus that refuses the keys in ``refused``."""

    def __init__(self, refused: dict[str, ErrorCode]) -> None:
        self.refused = refused
        self.received: list[str] = []
        self.connections = 0

    @contextlib.contextmanager
    def connect(self) -> Iterator[Publish]:
        """Give a connection, which a refusal closes."""
        self.connections += 1
        closed = False

        def publish(messages: list[tuple[bytes, bytes]]) -> None:
            nonlocal closed
            assert not closed
            for key, _ in messages:
                if (code := self.refused.get(key.decode())) is not None:
                    closed = True
                    raise RemoteRefusal(code, "words")
                self.received.append(key.decode())

        yield publish


def decided(*keys: str, first: int = 1) -> list[Decided]:
    """Return alerts with these keys."""
    return [Decided(number, key, "{}") for number, key in enumerate(keys, first)]


def test_refused_alerts_are_dropped_and_leave_no_file(tmp_path: Path) -> None:
    bus = RefusingBus(dict.fromkeys(("b", "c"), ErrorCode.EPERM))
    result = publish_decided(Outbox(tmp_path, 1, "repeat"), "s", decided("a", "b", "c", "d"), bus.connect)
    assert result == Published(4, [], ["the bus refused a packet: EPERM words"] * 2)
    assert (bus.received, bus.connections) == (["a", "d"], 3)
    assert {path.name for path in tmp_path.iterdir()} == {"done.json", ".lock"}
    assert json.loads((tmp_path / "done.json").read_bytes()) == {"s": 4}


def test_a_refusal_that_passes_is_tried_again(tmp_path: Path) -> None:
    bus, outbox = RefusingBus({"b": ErrorCode.EDQUOT}), Outbox(tmp_path, 1, "repeat")
    result = publish_decided(outbox, "s", decided("a", "b", "c"), bus.connect)
    assert (result.last, result.refused, result.problem) == (1, [], "the bus refused a packet: EDQUOT words")
    bus.refused.clear()
    assert publish_decided(outbox, "s", decided("b", "c", first=2), bus.connect) == Published(3, ["b"])
    assert bus.received == ["a", "b", "c"]


def test_a_new_series_begins_with_number_one(tmp_path: Path) -> None:
    """A state that was removed begins with number 1 again, while the outbox remains."""
    bus, outbox = RefusingBus({}), Outbox(tmp_path, 1, "repeat")
    publish_decided(outbox, "first", decided("a", "b"), bus.connect)
    publish_decided(outbox, "second", decided("c"), bus.connect)
    assert bus.received == ["a", "b", "c"]


def test_a_damaged_outbox_is_permanent(tmp_path: Path) -> None:
    (tmp_path / "done.json").write_text("[]")
    with pytest.raises(PermanentError, match=r"done\.json: damaged file: not a JSON object"):
        publish_decided(Outbox(tmp_path, 1, "repeat"), "s", decided("a"), RefusingBus({}).connect)


class FakeBus:
    """A bus whose store gives ``outcome`` to each put."""

    def __init__(self, outcome: Put | Exception) -> None:
        self.outcome = outcome
        self.ids: list[str] = []
        self.published: list[bytes] = []
        self.store = SimpleNamespace(put=self._put)

    def _put(self, _key: bytes, _payload: bytes, *, id: str) -> Put:
        self.ids.append(id)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def tell(self, _command: str) -> None:
        """Accept a setting."""

    def publish(self, key: bytes, _payload: bytes) -> None:
        """Note an ordinary message."""
        self.published.append(key)

    def ping(self) -> None:
        """Return at once."""


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> FakeBus:
    """The bus of all connections; its store has a stream for alerts."""
    made = FakeBus(Put(1, False))

    @contextlib.contextmanager
    def connect(_address: str | None) -> Iterator[FakeBus]:
        yield made

    monkeypatch.setattr(Bus, "connect", connect)
    return made


def send(publisher: AlertPublisher, minutes_ago: int = 1) -> None:
    """Publish one alert of a minute in the past."""
    alert = Alert("r", "s", True, "messages", 1, 1, int(time.time() // 60) - minutes_ago)
    with publisher.connect() as publish:
        publish([(alert.key(), alert.payload("h"))])


def test_a_put_has_the_id_of_the_alert(bus: FakeBus) -> None:
    publisher = AlertPublisher(None)
    send(publisher)
    send(publisher)
    assert (publisher.stored, publisher.not_stored, publisher.problem, bus.published) == (2, 0, "", [])
    assert publisher.had_store
    assert publisher.is_repeat_harmless
    assert [len(each) for each in bus.ids] == [32, 32]


@pytest.mark.parametrize(("is_duplicate", "minutes", "is_harmless"), [(False, 59, True), (False, 63, False), (True, 63, True)])
def test_the_store_forgets_an_id_after_an_hour(bus: FakeBus, is_duplicate: bool, minutes: int, is_harmless: bool) -> None:
    bus.outcome = Put(1, is_duplicate)
    publisher = AlertPublisher(None)
    send(publisher, minutes)
    assert publisher.is_repeat_harmless is is_harmless


def test_what_the_store_refuses_is_published_and_counted(bus: FakeBus) -> None:
    bus.outcome = StoreError("store/put", "ENOENT", "no stream has the key")
    publisher = AlertPublisher(None, had_store=True)
    send(publisher)
    assert (publisher.stored, publisher.not_stored, bus.published) == (0, 1, [b"alert/r/s"])
    assert publisher.problem.startswith("store/put failed: ENOENT: no stream has the key")
    assert not publisher.is_repeat_harmless


def test_a_store_that_had_alerts_is_waited_for(bus: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    bus.outcome = StoreNotRunning("store/put")
    now = [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    publisher = AlertPublisher(None, had_store=True)
    with pytest.raises(StoreNotRunning):
        send(publisher)
    now[0] += WAIT_SECONDS
    send(publisher)
    assert (publisher.not_stored, len(bus.published)) == (1, 1)
    bus.outcome = Put(1, False)
    send(publisher)
    bus.outcome = StoreNotRunning("store/put")
    with pytest.raises(StoreNotRunning):
        send(publisher)


def test_no_store_is_not_waited_for(bus: FakeBus) -> None:
    bus.outcome = StoreNotRunning("store/put")
    publisher = AlertPublisher(None)
    send(publisher)
    assert (publisher.not_stored, len(bus.published)) == (1, 1)


def test_the_end_of_the_minute_is_read_from_the_payload() -> None:
    payload = Alert("r", "s", True, "messages", 1, 1, 100).payload("h")
    _, ended = publication._identity(payload)
    assert datetime.datetime.fromtimestamp(ended, datetime.UTC) == datetime.datetime(1970, 1, 1, 1, 41, tzinfo=datetime.UTC)
