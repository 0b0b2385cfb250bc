"""``sbusctl replay``: what is published, what is refused, what is said."""

from __future__ import annotations

import pytest

from sbusd.client import ErrorCode, PayloadTooLarge, RemoteRefusal
from sbusd.ctl.commands.replay import ReplayPublisher
from sbusd.recorder.replay import RecordedMessage


class FakeBus:
    """A bus that takes payloads of up to 10 bytes, and refuses keys that begin with ``x``."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, bytes]] = []
        self._refusals: list[RemoteRefusal] = []

    def publish(self, key: bytes, payload: bytes) -> None:
        if len(payload) > 10:
            raise PayloadTooLarge(len(payload), 10)
        if key.startswith(b"x"):
            self._refusals.append(RemoteRefusal(ErrorCode.EPERM, f"{key.decode()} is closed"))
        else:
            self.taken.append((key, payload))

    def ping(self) -> float:
        if self._refusals:
            raise self._refusals.pop(0)
        return 0.0


@pytest.fixture
def bus() -> FakeBus:
    return FakeBus()


def test_messages_are_published_and_counted(bus: FakeBus) -> None:
    publication = ReplayPublisher(bus)
    told: list[tuple[int, int]] = []
    some = [RecordedMessage(1, b"a", b"1"), RecordedMessage(2, b"b", bytes(11)), RecordedMessage(3, b"c", b"3")]
    publication.publish(some, lambda published, ts: told.append((published, ts)))
    assert bus.taken == [(b"a", b"1"), (b"c", b"3")]
    assert (publication.published, publication.too_large, told) == (2, 1, [(1, 1), (2, 3)])
    assert publication.settle() is None


def test_the_first_refusal_is_kept_and_all_are_heard(bus: FakeBus) -> None:
    publication = ReplayPublisher(bus)
    publication.publish(
        [RecordedMessage(1, b"x1", b""), RecordedMessage(2, b"x2", b""), RecordedMessage(3, b"a", b"")], lambda _published, _ts: None
    )
    assert publication.settle() == "EPERM x1 is closed"
    assert publication.settle() is None
    assert bus.taken == [(b"a", b"")]
