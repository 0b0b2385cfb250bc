"""Requests to close the segment: what each waits for, how often they are served, and which failures they report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from sbus_archive.recorder.converter import Converter
from sbus_archive.recorder.recording import Recording
from sbus_archive.recorder.segment_closing import INTERVAL_SECONDS, READING_SECONDS, Closing, ClosingError, SegmentCloser
from sbus_archive.recorder.tap import RecorderTap


@dataclass
class Parts:
    """A tap, a recording and a converter that do what a test says."""

    now: float = 100.0
    has_ended: bool = True
    is_connected: bool = True
    requests: int = 0
    outage: str | None = None
    rows: int = 7
    rotations: int = 0
    submitted: int = 0
    finished: int = 0
    problem: str | None = None
    closer: SegmentCloser = field(init=False)

    def __post_init__(self) -> None:
        self.closer = SegmentCloser(cast("RecorderTap", self), cast("Recording", self), cast("Converter", self), lambda: self.now)

    def request_end(self) -> None:
        self.requests += 1
        self.has_ended = False

    def fileno(self) -> int | None:
        return 5 if self.is_connected else None

    def rotate(self) -> int:
        self.rotations += 1
        self.submitted += 1
        return self.rows

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.closer.turn()


def is_answered(closing: Closing) -> bool:
    try:
        closing.wait(0)
    except ClosingError as error:
        return "is not in the archive after" not in str(error)
    return True


def test_it_waits_for_the_bus_and_then_for_the_converter() -> None:
    parts = Parts()
    assert parts.closer.due is None
    closing = parts.closer.request()
    parts.turn()
    assert (parts.requests, parts.rotations) == (1, 0)
    assert parts.closer.due == pytest.approx(parts.now, abs=0.1)
    parts.has_ended = True
    parts.turn()
    assert (parts.rotations, is_answered(closing)) == (1, False)
    parts.finished = 1
    parts.turn()
    assert closing.wait(0) == 7
    assert parts.closer.due is None


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_bus_that_does_not_respond_delays_it_by_a_bounded_time(is_connected: bool) -> None:
    parts = Parts(is_connected=is_connected)
    closing = parts.closer.request()
    parts.turn()
    assert parts.rotations == (0 if is_connected else 1)
    parts.turn(READING_SECONDS)
    assert parts.rotations == (0 if is_connected else 1)
    if is_connected:
        with pytest.raises(ClosingError, match="the bus did not send what it had queued within 30 s; the recorder continues with it"):
            closing.wait(0)
        assert parts.closer.due is None


def test_requests_make_one_segment_in_an_interval() -> None:
    parts = Parts(finished=99)
    closings = [parts.closer.request() for _ in range(3)]
    for number, closing in enumerate(closings):
        parts.turn()
        parts.has_ended = True
        parts.turn()
        assert (is_answered(closing), parts.rotations) == (True, number + 1)
        parts.turn(INTERVAL_SECONDS / 2)
        assert parts.rotations == number + 1
        parts.now += INTERVAL_SECONDS / 2


@pytest.mark.parametrize(
    ("outage", "problem", "says"),
    [
        ("No space left on device", None, "recording is suspended: No space left on device; see the log of sbus-recorder"),
        (None, "[Errno 28] full", "cannot write to the archive: [Errno 28] full; see the log of sbus-recorder"),
    ],
)
def test_a_disk_that_cannot_be_written_is_reported(outage: str | None, problem: str | None, says: str) -> None:
    parts = Parts(outage=outage, problem=problem, is_connected=False)
    closing = parts.closer.request()
    parts.turn()
    with pytest.raises(ClosingError) as caught:
        closing.wait(0)
    assert str(caught.value) == says


def test_the_end_of_the_recorder_answers_every_request() -> None:
    parts = Parts()
    closings = [parts.closer.request() for _ in range(2)]
    parts.turn()
    parts.closer.stop()
    for closing in (*closings, parts.closer.request()):
        with pytest.raises(ClosingError, match=r"^the recorder stopped$"):
            closing.wait(0)


def test_a_wait_that_is_too_short_says_so() -> None:
    with pytest.raises(ClosingError, match=r"^the segment is not in the archive after 0 s; the recorder continues with it$"):
        Parts().closer.request().wait(0)
