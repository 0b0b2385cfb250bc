"""The loop of the shipper: what it counts, logs and repeats."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbus_archive.record.index import read_index
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.shipped import ListHeader, ListWriter
from sbus_archive.shipping import service
from sbus_archive.shipping.destination import Expiry, expired_list
from sbus_archive.shipping.log_messages import FAILED, LOST, RESUMED, UNREADABLE
from sbus_archive.shipping.service import Heartbeat, Shipper
from sbus_archive.shipping.upload import Outcome
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.store import LocalStore
from sbus_programs.systemd.log_records import LogMessage
from sbus_programs.systemd.service_manager import ServiceManager
from sbus_programs.wall_clock import Clocks, WallClock
from tests.support.records import NOON, message
from tests.support.traffic import deliver

HEADER = ListHeader("s3://bucket/x", "alpha", "1")


class _Uploader:
    """An uploader that does what *act* does."""

    def __init__(self, act: Callable[[str], Outcome]) -> None:
        self.bytes = 0
        self.names: list[str] = []
        self._act = act

    def ship(self, name: str, _now_ns: int) -> Outcome:
        self.names.append(name)
        return self._act(name)


class _Log:
    """A log that keeps what is recorded."""

    def __init__(self) -> None:
        self.records: list[tuple[LogMessage, dict[str, Any]]] = []

    def record(self, message: LogMessage, **facts: Any) -> None:
        self.records.append((message, facts))


class Bench:
    """A shipper of three segments of alpha and one of beta."""

    def __init__(self, folder: Path, act: Callable[[str], Outcome], *, clock: WallClock | None = None, keep: float = 0.0) -> None:
        archive = folder / "archive"
        for seq in (3, 1, 2):
            deliver(archive, "alpha", [message(seq)])
        deliver(archive, "beta", [message(1)])
        self.uploader, self.log, self.path = _Uploader(act), _Log(), folder / "shipped"
        self.done = ListWriter(self.path, HEADER)
        self.claims = 0
        expiry = Expiry(LocalStore(archive), self.done, expired_list(folder / "expired", HEADER), keep)
        self.shipper = Shipper(archive, "alpha", self.uploader, expiry, self.done, log=self.log, claim=self.claim, clock=clock)  # type: ignore[arg-type]

    def claim(self) -> None:
        self.claims += 1

    def sequence(self) -> list[int]:
        """Return the first positions of the segments that the uploader got."""
        return [int(name.split(".")[-2]) for name in self.uploader.names]


@pytest.mark.parametrize("days", [40, 73 * 365])
def test_a_jump_of_the_date_removes_nothing_in_the_destination(tmp_path: Path, days: int) -> None:
    error = 0
    lines: list[str] = []
    clock = WallClock(lines.append, clocks=Clocks(lambda: NOON + error, lambda: HOUR_NS))
    bench = Bench(tmp_path, lambda _: Outcome.SHIPPED, clock=clock, keep=30 * 86_400.0)
    bench.shipper.turn()
    error = days * 24 * HOUR_NS
    bench.shipper.turn()
    assert not any(entry.is_removed for entry in read_index(tmp_path / "archive"))
    assert len(lines) == 1
    assert bench.shipper.status(0).endswith("; the date jumped, see the log")


def test_segments_of_this_host_are_shipped_once_the_oldest_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda _: Outcome.SHIPPED)
    for _ in range(2):
        bench.shipper.run(1.0, once=True)
    assert (bench.sequence(), bench.shipper.counts.shipped, bench.shipper.counts.waiting, bench.claims) == ([1, 2, 3], 3, 0, 1)
    assert len(bench.path.read_bytes().splitlines()) == 4
    assert bench.shipper.status(7) == "3 segments shipped, 0 MiB; 0 waiting; retries: 7"


def test_a_damaged_segment_does_not_stop_the_others(tmp_path: Path) -> None:
    def act(name: str) -> Outcome:
        if name.endswith("2.json"):
            raise RecordError(Path("/x"), "damaged")
        return Outcome.LOST

    bench = Bench(tmp_path, act)
    bench.shipper.run(1.0, once=True)
    counts = bench.shipper.counts
    assert (counts.lost, counts.unreadable, counts.waiting, len(bench.done)) == (2, 1, 1, 2)
    assert [(message, facts["count"]) for message, facts in bench.log.records] == [(LOST, 1), (UNREADABLE, 1)]
    assert bench.shipper.status(0) == "0 segments shipped, 0 MiB; 1 waiting; lost: 2; unreadable: 1"
    bench.shipper.run(1.0, once=True)
    assert bench.sequence() == [1, 2, 3, 2]


def test_failures_are_repeated_counted_and_logged_ever_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [12]

    def act(_: str) -> Outcome:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return Outcome.SHIPPED

    bench = Bench(tmp_path, act)
    delays: list[float] = []

    def wait(seconds: float) -> None:
        delays.append(seconds)
        if not left[0] and bench.shipper.counts.shipped:
            bench.shipper.stop()

    monkeypatch.setattr(bench.shipper, "_wait", wait)
    bench.shipper.run(5.0)
    assert bench.sequence() == [1] * 12 + [1, 2, 3]
    assert [(message, facts["count"]) for message, facts in bench.log.records] == [(FAILED, 1), (FAILED, 10), (RESUMED, 12)]
    assert delays.pop() == 5.0
    for place, delay in enumerate(delays):
        most = min(service.FIRST_DELAY_SECONDS * 2**place, service.LONGEST_DELAY_SECONDS)
        assert most / 2 <= delay <= most
    assert bench.shipper.counts.failures == 12


def test_what_was_removed_before_shipping_began_is_counted_but_not_logged(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda _: Outcome.EARLIER)
    bench.shipper.run(1.0, once=True)
    assert (bench.shipper.counts.earlier, len(bench.done), bench.log.records) == (3, 3, [])
    assert bench.shipper.status(0) == "0 segments shipped, 0 MiB; 0 waiting; removed before shipping began: 3"


def test_what_cannot_expire_is_in_the_status(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda _: Outcome.SHIPPED)
    bench.shipper._expiry.unreadable = 3
    assert bench.shipper.status(0) == "0 segments shipped, 0 MiB; 0 waiting; expired but unreadable: 3"


def test_a_failure_ends_a_run_that_was_to_ship_once(tmp_path: Path) -> None:
    def act(_: str) -> Outcome:
        raise OSError(errno.EIO, "Input/output error")

    bench = Bench(tmp_path, act)
    with pytest.raises(OSError, match="Input/output error"):
        bench.shipper.run(1.0, once=True)


def test_a_heartbeat_is_sent_at_most_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    said: list[str] = []
    manager = ServiceManager()
    monkeypatch.setattr(ServiceManager, "is_there", True)
    monkeypatch.setattr(manager, "alive", said.append)
    heartbeat = Heartbeat(manager, lambda: now[0])
    heartbeat.status = lambda: f"at {now[0]:g}"
    for step in (0.0, 1.0, service.STATUS_SECONDS - 1.0, 1.0):
        now[0] += step
        heartbeat.beat()
    assert said == ["at 100", f"at {100 + service.STATUS_SECONDS:g}"]
