"""Notifications are sent in time with a correct status, and wake up an idle bus only for the watchdog."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sbusd.systemd.heartbeat import RETRY_SECONDS, STATUS_SECONDS, Heartbeat, Traffic
from sbusd.systemd.service_manager import ServiceManager

WATCHDOG_SECONDS = 20.0


class FakeManager(ServiceManager):
    """A service manager that keeps the notifications, or rejects them. It has a clock and the traffic of the bus."""

    def __init__(self, watchdog_seconds: float) -> None:
        super().__init__("", 0.0)
        self.watchdog_seconds = watchdog_seconds
        self.heard: list[tuple[float, str]] = []
        self.failures = 0
        self.now = 1_000.0
        self.traffic = Traffic(0, 0)
        self.is_deaf = False

    @property
    def is_there(self) -> bool:
        return True

    def offer(self, state: str) -> bool:
        if not self.is_deaf:
            self.heard.append((self.now, state))
        return not self.is_deaf

    def failed(self) -> None:
        self.failures += 1

    def pass_time(self, milliseconds: int) -> None:
        """Move the clock, without rounding."""
        self.now = (round(self.now * 1000) + milliseconds) / 1000

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self, lambda: self.traffic, self.failed, clock=lambda: self.now)

    def idle(self, heartbeat: Heartbeat, seconds: float) -> int:
        """Let the loop wait as long as possible, and return how often it wakes up in *seconds* without traffic."""
        end, wakes = self.now + seconds, 0
        while True:
            wait_ms = heartbeat.beat()
            assert wait_ms != 0
            if wait_ms < 0 or self.now + wait_ms / 1000 > end:
                self.now = end
                return wakes
            self.pass_time(wait_ms)
            wakes += 1


@pytest.fixture
def systemd() -> FakeManager:
    return FakeManager(WATCHDOG_SECONDS)


def test_an_idle_bus_wakes_up_only_every_half_watchdog_interval(systemd: FakeManager) -> None:
    heartbeat = systemd.heartbeat()
    systemd.idle(heartbeat, 30)
    systemd.heard.clear()
    assert systemd.idle(heartbeat, 1_000) <= 1_000 / (WATCHDOG_SECONDS / 2) + 1
    assert {state for _, state in systemd.heard} == {"WATCHDOG=1"}


def test_an_idle_bus_without_a_watchdog_does_not_wake_up() -> None:
    systemd = FakeManager(0.0)
    heartbeat = systemd.heartbeat()
    assert systemd.idle(heartbeat, 1_000) == 1
    assert systemd.heard == [(1_000.0 + STATUS_SECONDS, "STATUS=0 clients, 0 messages/s")]
    # It is asked again, so something has happened; then it rests again.
    assert systemd.idle(heartbeat, 1_000) <= 1
    assert len(systemd.heard) == 1


def test_a_status_without_traffic_is_correct_until_the_loop_returns() -> None:
    systemd = FakeManager(0.0)
    heartbeat = systemd.heartbeat()
    systemd.pass_time(int(STATUS_SECONDS) * 1_000)
    assert heartbeat.beat() == -1
    settled = [heartbeat.is_settled]
    systemd.pass_time(1)
    assert 0 < heartbeat.beat() <= STATUS_SECONDS * 1_000
    settled.append(heartbeat.is_settled)
    assert settled == [True, False]


def test_without_a_service_manager_the_loop_may_wait_without_limit() -> None:
    calls: list[int] = []
    heartbeat = Heartbeat(ServiceManager("", 0.0), lambda: Traffic(0, 0), lambda: calls.append(1))
    assert [heartbeat.beat() for _ in range(3)] == [-1, -1, -1]
    assert calls == []


def test_a_busy_loop_notifies_the_watchdog_in_time(systemd: FakeManager) -> None:
    heartbeat = systemd.heartbeat()
    for _ in range(100_000):
        systemd.pass_time(1)
        heartbeat.beat()
    alive = [when for when, state in systemd.heard if "WATCHDOG=1" in state]
    assert len(alive) == 100 // (WATCHDOG_SECONDS / 2)
    assert all(later - earlier <= WATCHDOG_SECONDS / 2 + 0.01 for earlier, later in pairwise(alive))


def test_the_status_has_the_rate_since_the_last_one_and_ends_with_0(systemd: FakeManager) -> None:
    heartbeat = systemd.heartbeat()
    systemd.idle(heartbeat, STATUS_SECONDS + 1)
    systemd.heard.clear()
    for _ in range(int(STATUS_SECONDS) * 10):
        systemd.pass_time(100)
        systemd.traffic = Traffic(12, systemd.traffic.messages + 340)
        heartbeat.beat()
    systemd.idle(heartbeat, 60)
    told = [state.partition("STATUS=")[2] for _, state in systemd.heard if "STATUS=" in state]
    assert told[-1] == "12 clients, 0 messages/s"
    assert told[0].startswith("12 clients, ")
    rates = [int(words.split()[2]) for words in told]
    assert max(rates) == pytest.approx(3_400, rel=0.25)
    assert len(told) == len(set(told))


def test_the_status_is_not_sent_for_each_message(systemd: FakeManager) -> None:
    heartbeat = systemd.heartbeat()
    for number in range(100_000):
        systemd.pass_time(1)
        systemd.traffic = Traffic(1, number * number)
        heartbeat.beat()
    told = [when for when, state in systemd.heard if "STATUS=" in state]
    assert len(told) == 100 // STATUS_SECONDS


@pytest.mark.parametrize("watchdog_seconds", [0.0, 2.0, WATCHDOG_SECONDS])
def test_a_client_that_connects_at_any_time_is_in_the_status(watchdog_seconds: float) -> None:
    for tenths in range(250):
        systemd = FakeManager(watchdog_seconds)
        heartbeat = systemd.heartbeat()
        systemd.idle(heartbeat, 30 + tenths / 10)
        systemd.traffic = Traffic(1, 0)
        systemd.idle(heartbeat, max(STATUS_SECONDS, watchdog_seconds / 2) + 1)
        assert [state for _, state in systemd.heard if "STATUS=" in state][-1].endswith("STATUS=1 client, 0 messages/s")


def test_one_message_is_singular(systemd: FakeManager) -> None:
    heartbeat = systemd.heartbeat()
    systemd.traffic = Traffic(1, 5)
    systemd.now += STATUS_SECONDS
    heartbeat.beat()
    assert systemd.heard == [(1_000.0 + STATUS_SECONDS, "STATUS=1 client, 1 message/s")]


def test_a_rejected_notification_is_sent_again_soon(systemd: FakeManager) -> None:
    heartbeat = systemd.heartbeat()
    systemd.idle(heartbeat, 30)
    systemd.is_deaf = True
    systemd.idle(heartbeat, WATCHDOG_SECONDS / 2 + 1)
    failures = systemd.failures
    assert 1 <= failures <= 1 + 1 / RETRY_SECONDS + 1
    systemd.is_deaf = False
    systemd.heard.clear()
    systemd.idle(heartbeat, RETRY_SECONDS * 2)
    assert systemd.heard[0][1].startswith("WATCHDOG=1")
    assert systemd.failures == failures


def test_a_warning_is_in_the_status_while_it_lasts() -> None:
    systemd, warnings = FakeManager(0.0), ["configuration faults: 1 (50-lab.toml)"]
    heartbeat = Heartbeat(systemd, lambda: systemd.traffic, systemd.failed, warning=lambda: warnings[0], clock=lambda: systemd.now)
    systemd.idle(heartbeat, 100)
    warnings[0] = ""
    systemd.idle(heartbeat, 100)
    assert [state for _, state in systemd.heard] == [
        "STATUS=0 clients, 0 messages/s; configuration faults: 1 (50-lab.toml)",
        "STATUS=0 clients, 0 messages/s",
    ]
