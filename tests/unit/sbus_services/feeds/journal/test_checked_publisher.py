"""The publisher on a fake bus: its access checks, its publications, and reconnection."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest

from sbus import Disconnected, ErrorCode, NoBus, PayloadTooLarge, RemoteRefusal, Statistics
from sbus.protocol import controls
from sbus_services.feeds.journal.checked_publisher import AccessCheckError, BusConnection, CheckedPublisher

NOTHING = Statistics()
BATCH = [("journal/a.service/info", b"1"), ("journal/b.service/info", b"2")]


class FakeBus:
    """A bus with fixed results; it disconnects after ``life`` publications."""

    def __init__(self, *, is_open: bool = False, may_publish: bool = True, life: int | None = None) -> None:
        self.statistics = NOTHING
        self.is_open = is_open
        self.may_publish = may_publish
        self.life = life
        self.questions: list[bytes] = []
        self.published: list[bytes] = []
        self.to_refuse: list[RemoteRefusal] = []
        self.answer: bytes | RemoteRefusal | None = None
        self.is_closed = False

    def publish(self, key: str, payload: bytes) -> None:
        if payload == b"huge":
            raise PayloadTooLarge(10, 5)
        if self.life is not None and len(self.published) >= self.life:
            raise Disconnected("here")
        self.published.append(payload)

    def coalesce(self) -> AbstractContextManager[None]:
        return nullcontext()

    def control(self, key: bytes, payload: bytes) -> bytes:
        assert key == controls.EXPLAIN
        self.questions.append(payload)
        if isinstance(self.answer, RemoteRefusal):
            raise self.answer
        if self.answer is not None:
            return self.answer
        return json.dumps({"allowed": self.is_open if b"\0subscribe\0" in payload else self.may_publish}).encode()

    def ping(self) -> float:
        if self.life is not None and len(self.published) >= self.life:
            raise Disconnected("here")
        if self.to_refuse:
            self.statistics = replace(self.statistics, refusals=self.statistics.refusals + 1)
            raise self.to_refuse.pop()
        return 0.0

    def close(self) -> None:
        self.is_closed = True


class FakeBuses:
    """Buses for successive connections; None is a failed attempt to connect."""

    def __init__(self, *buses: FakeBus | None) -> None:
        self.buses = list(buses)
        self.said: list[str] = []
        self.slept: list[float] = []
        self.now = 0.0

    def connect(self) -> BusConnection:
        bus = self.buses.pop(0)
        if bus is None:
            raise NoBus("/there", "absent")
        return bus

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def publisher(self, *, is_public: bool = False) -> CheckedPublisher:
        return CheckedPublisher(self.connect, self.said.append, is_public=is_public, sleep=self.sleep, clock=lambda: self.now)


def test_batch_is_published_after_both_questions() -> None:
    bus = FakeBus()
    publisher = FakeBuses(bus).publisher()
    publisher.open()
    assert publisher.deliver(BATCH) == 0
    assert bus.published == [b"1", b"2"]
    public, own = (question.split(b"\0") for question in bus.questions[-2:])
    assert (public[0], public[1]) == (b"", b"subscribe")
    assert own[0].isdigit()
    assert own[1] == b"publish"
    assert public[2].startswith(b"journal/")
    assert public[2] not in (question.split(b"\0")[2] for question in bus.questions[:2]), "no rule can be about the key that is asked for"


def test_nothing_is_published_on_an_open_bus_by_default() -> None:
    with pytest.raises(AccessCheckError, match="every user of this bus can subscribe to journal/"):
        FakeBuses(FakeBus(is_open=True)).publisher().open()
    bus = FakeBus(is_open=True)
    publisher = FakeBuses(bus).publisher(is_public=True)
    publisher.open()
    publisher.deliver(BATCH)
    assert bus.published == [b"1", b"2"]


def test_nothing_more_is_published_on_a_bus_that_becomes_open() -> None:
    bus = FakeBus()
    publisher = FakeBuses(bus).publisher()
    publisher.open()
    publisher.deliver(BATCH[:1])
    bus.is_open = True
    with pytest.raises(AccessCheckError):
        publisher.deliver(BATCH[1:])
    assert bus.published == [b"1"]


def test_nothing_is_published_on_a_bus_that_returns_open() -> None:
    before, after = FakeBus(life=1), FakeBus(is_open=True)
    publisher = FakeBuses(before, after).publisher()
    publisher.open()
    with pytest.raises(AccessCheckError):
        publisher.deliver(BATCH)
    assert after.published == []


def test_bus_that_refuses_the_feed() -> None:
    with pytest.raises(AccessCheckError, match="do not allow the feed to publish"):
        FakeBuses(FakeBus(may_publish=False)).publisher(is_public=True).open()


@pytest.mark.parametrize(
    "answer",
    [RemoteRefusal(ErrorCode.ENOSYS, "unknown"), RemoteRefusal(ErrorCode.EINVAL, "uid"), b"", b"[]", b"{}", b'{"allowed":"no"}', b"\xff"],
)
def test_a_bus_that_cannot_explain_access_is_rejected(answer: bytes | RemoteRefusal) -> None:
    bus = FakeBus()
    bus.answer = answer
    with pytest.raises(AccessCheckError) as error:
        FakeBuses(bus).publisher().open()
    assert len(str(error.value).splitlines()) == 1


def test_possibly_unrouted_entries_are_published_again() -> None:
    before, after = FakeBus(life=1), FakeBus()
    buses = FakeBuses(before, None, None, after)
    publisher = buses.publisher()
    publisher.open()
    assert publisher.deliver(BATCH) == 0
    assert (before.published, after.published) == ([b"1"], [b"1", b"2"])
    assert before.is_closed
    assert publisher.reconnects == 1
    assert sum(buses.slept) > 0, "tries that fail are not made at once"
    assert buses.said == ["disconnected from here; publishing the last batch of entries again", "reconnected to the bus"]


def test_rejected_publications_are_counted_and_logged_rarely() -> None:
    bus = FakeBus()
    buses = FakeBuses(bus)
    publisher = buses.publisher()
    publisher.open()
    bus.to_refuse = [RemoteRefusal(ErrorCode.EMSGSIZE, "too long")] * 30
    assert publisher.deliver([("journal/a/info", b"huge"), *BATCH]) == 31
    assert bus.published == [b"1", b"2"]
    assert [line[-11:] for line in buses.said] == ["(1 so far)"[-11:].rjust(11), "(10 so far)"] or len(buses.said) == 2
    assert publisher.deliver(BATCH) == 0


def test_no_bus_at_first_is_an_error() -> None:
    with pytest.raises(NoBus):
        FakeBuses(None).publisher().open()
