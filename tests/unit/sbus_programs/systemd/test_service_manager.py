"""The notifications that a service manager receives, in time and with a correct status; a socket of the test takes its place."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from sbus_programs.systemd import service_manager
from sbus_programs.systemd.service_manager import (
    EXTEND_INTERVAL_SECONDS,
    EXTEND_SECONDS,
    RETRY_SECONDS,
    STATUS_SECONDS,
    DescriptorStoreError,
    Heartbeat,
    ServiceManager,
    ServiceManagerError,
    StatusReporter,
    Traffic,
)

MINUTE = f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1e6:.0f}".encode()

WATCHDOG_SECONDS = 20.0


@pytest.fixture
def manager(systemd: socket.socket) -> Iterator[ServiceManager]:
    with closing(ServiceManager.of_environment()) as made:
        yield made


def fill(address: str) -> None:
    """Leave no room for another datagram at *address*."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as anybody:
        anybody.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                anybody.sendto(b"x", address)


def test_each_notification_has_its_text(systemd: socket.socket, manager: ServiceManager) -> None:
    manager.ready("it is\nready")
    assert systemd.recv(1000) == rb"READY=1" + b"\nWATCHDOG=1\n" + rb"STATUS=it is\x0aready"
    manager.alive()
    assert systemd.recv(1000) == b"WATCHDOG=1"
    manager.alive("one\nrule")
    assert systemd.recv(1000) == b"WATCHDOG=1\n" + rb"STATUS=one\x0arule"
    manager.reloading()
    reported, when = systemd.recv(1000).split(b"\nMONOTONIC_USEC=")
    assert reported == b"RELOADING=1"
    assert int(when) > 0
    manager.reloaded()
    assert systemd.recv(1000) == b"READY=1"
    manager.stopping()
    assert systemd.recv(1000) == b"STOPPING=1\n" + MINUTE


def test_a_long_start_sends_few_notifications(systemd: socket.socket) -> None:
    now = 100.0
    with closing(ServiceManager(systemd.getsockname(), 0.0, clock=lambda: now)) as manager:
        for _ in range(1_000):
            manager.extend_timeout()
        assert systemd.recv(1000) == MINUTE + b"\nWATCHDOG=1"
        now += EXTEND_INTERVAL_SECONDS
        manager.extend_timeout()
        assert systemd.recv(1000) == MINUTE + b"\nWATCHDOG=1"
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(1000)


def test_an_abstract_address_works() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind("")  # the kernel chooses an abstract name
        received.settimeout(30)
        with closing(ServiceManager("@" + received.getsockname()[1:].decode(), 0.0)) as manager:
            assert manager.offer("STATUS=well")
        assert received.recv(1000) == b"STATUS=well"


def test_an_offer_never_blocks(systemd: socket.socket, manager: ServiceManager) -> None:
    """Every user can fill the queue of systemd's socket, and must not block the bus."""
    fill(systemd.getsockname())
    assert not manager.offer("WATCHDOG=1")
    systemd.recv(1000)
    assert manager.offer("WATCHDOG=1")


def test_no_notification_waits_for_ever(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose service manager does not read must end nevertheless."""
    monkeypatch.setattr(service_manager, "NOTIFY_SECONDS", 1)
    monkeypatch.setattr(service_manager, "START_SECONDS", 0.0)
    with closing(ServiceManager.of_environment()) as manager:
        fill(systemd.getsockname())
        assert [each() for each in (manager.stopping, manager.reloading, manager.reloaded)] == [False] * 3
        with pytest.raises(ServiceManagerError, match=r"NOTIFY_SOCKET: its queue is full; "):
            manager.ready("ready")
        with pytest.raises(DescriptorStoreError, match=r"NOTIFY_SOCKET: its queue is full$"):
            service_manager.store_descriptors(0, [0] * len(service_manager.CONNECTION_STORE))
        for _ in range(2):
            systemd.recv(1000)
        assert manager.stopping()
        manager.ready("ready")


def test_an_offer_without_a_receiver_fails(systemd: socket.socket, manager: ServiceManager) -> None:
    address = systemd.getsockname()
    systemd.close()
    assert not manager.offer("WATCHDOG=1")
    os.unlink(address)
    assert not manager.offer("WATCHDOG=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as again:
        again.bind(address)
        assert manager.offer("WATCHDOG=1")


def test_a_missing_socket_is_an_error_of_ready_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "none"))
    with closing(ServiceManager.of_environment()) as manager:
        with pytest.raises(
            ServiceManagerError, match=r"^cannot notify systemd through \$NOTIFY_SOCKET: No such file or directory; unset it"
        ):
            manager.ready("ready")
        manager.reloading()
        manager.reloaded()
        manager.stopping()


def test_without_systemd_notifications_have_no_effect() -> None:
    manager = ServiceManager.of_environment({"WATCHDOG_USEC": "1000000"})
    assert not manager.is_there
    assert manager.watchdog_seconds == 0
    assert manager.offer("WATCHDOG=1")
    manager.extend_timeout()
    manager.close()


def test_after_close_notifications_have_no_effect(systemd: socket.socket, manager: ServiceManager) -> None:
    manager.close()
    manager.close()
    manager.stopping()
    assert not manager.is_there
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(1000)


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "20000000"}, 20.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "0"}, 0.0),
    ],
)
def test_the_watchdog_of_another_process_is_ignored(systemd: socket.socket, environment: dict[str, str], seconds: float) -> None:
    with closing(ServiceManager.of_environment({"NOTIFY_SOCKET": systemd.getsockname(), **environment})) as manager:
        assert manager.watchdog_seconds == seconds


@pytest.mark.parametrize("environment", [{"WATCHDOG_USEC": "soon\n"}, {"WATCHDOG_USEC": "-1"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "²"}])
def test_an_invalid_watchdog_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(ServiceManagerError) as raised:
        ServiceManager.of_environment(environment)
    assert str(raised.value).startswith("invalid $WATCHDOG_")
    assert str(raised.value).isprintable()


class FakeManager(ServiceManager):
    """A service manager that keeps the notifications, or rejects them. It has a clock and the traffic of the bus."""

    def __init__(self, watchdog_seconds: float) -> None:
        super().__init__("", 0.0)
        self.watchdog_seconds = watchdog_seconds
        self.received: list[tuple[float, str]] = []
        self.failures = 0
        self.now = 1_000.0
        self.traffic = Traffic(0, 0)
        self.is_deaf = False

    @property
    def is_there(self) -> bool:
        return True

    def offer(self, state: str) -> bool:
        if not self.is_deaf:
            self.received.append((self.now, state))
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
def fake() -> FakeManager:
    return FakeManager(WATCHDOG_SECONDS)


def test_an_idle_bus_wakes_up_only_every_half_watchdog_interval(fake: FakeManager) -> None:
    heartbeat = fake.heartbeat()
    fake.idle(heartbeat, 30)
    fake.received.clear()
    assert fake.idle(heartbeat, 1_000) <= 1_000 / (WATCHDOG_SECONDS / 2) + 1
    assert {state for _, state in fake.received} == {"WATCHDOG=1"}


def test_an_idle_bus_without_a_watchdog_does_not_wake_up() -> None:
    fake = FakeManager(0.0)
    heartbeat = fake.heartbeat()
    assert fake.idle(heartbeat, 1_000) == 1
    assert fake.received == [(1_000.0 + STATUS_SECONDS, "STATUS=0 clients, 0 messages/s")]
    # It is asked again, so something has happened; then it rests again.
    assert fake.idle(heartbeat, 1_000) <= 1
    assert len(fake.received) == 1


def test_a_status_without_traffic_is_correct_until_the_loop_returns() -> None:
    fake = FakeManager(0.0)
    heartbeat = fake.heartbeat()
    fake.pass_time(int(STATUS_SECONDS) * 1_000)
    assert heartbeat.beat() == -1
    settled = [heartbeat.is_settled]
    fake.pass_time(1)
    assert 0 < heartbeat.beat() <= STATUS_SECONDS * 1_000
    settled.append(heartbeat.is_settled)
    assert settled == [True, False]


def test_without_a_service_manager_the_loop_may_wait_without_limit() -> None:
    calls: list[int] = []
    heartbeat = Heartbeat(ServiceManager("", 0.0), lambda: Traffic(0, 0), lambda: calls.append(1))
    assert [heartbeat.beat() for _ in range(3)] == [-1, -1, -1]
    assert calls == []


def test_a_busy_loop_notifies_the_watchdog_in_time(fake: FakeManager) -> None:
    heartbeat = fake.heartbeat()
    for _ in range(100_000):
        fake.pass_time(1)
        heartbeat.beat()
    alive = [when for when, state in fake.received if "WATCHDOG=1" in state]
    assert len(alive) == 100 // (WATCHDOG_SECONDS / 2)
    assert all(later - earlier <= WATCHDOG_SECONDS / 2 + 0.01 for earlier, later in pairwise(alive))


def test_the_status_has_the_rate_since_the_last_one_and_ends_with_0(fake: FakeManager) -> None:
    heartbeat = fake.heartbeat()
    fake.idle(heartbeat, STATUS_SECONDS + 1)
    fake.received.clear()
    for _ in range(int(STATUS_SECONDS) * 10):
        fake.pass_time(100)
        fake.traffic = Traffic(12, fake.traffic.messages + 340)
        heartbeat.beat()
    fake.idle(heartbeat, 60)
    reported = [state.partition("STATUS=")[2] for _, state in fake.received if "STATUS=" in state]
    assert reported[-1] == "12 clients, 0 messages/s"
    assert reported[0].startswith("12 clients, ")
    rates = [int(words.split()[2]) for words in reported]
    assert max(rates) == pytest.approx(3_400, rel=0.25)
    assert len(reported) == len(set(reported))


def test_the_status_is_not_sent_for_each_message(fake: FakeManager) -> None:
    heartbeat = fake.heartbeat()
    for number in range(100_000):
        fake.pass_time(1)
        fake.traffic = Traffic(1, number * number)
        heartbeat.beat()
    reported = [when for when, state in fake.received if "STATUS=" in state]
    assert len(reported) == 100 // STATUS_SECONDS


@pytest.mark.parametrize("watchdog_seconds", [0.0, 2.0, WATCHDOG_SECONDS])
def test_a_client_that_connects_at_any_time_is_in_the_status(watchdog_seconds: float) -> None:
    for tenths in range(250):
        fake = FakeManager(watchdog_seconds)
        heartbeat = fake.heartbeat()
        fake.idle(heartbeat, 30 + tenths / 10)
        fake.traffic = Traffic(1, 0)
        fake.idle(heartbeat, max(STATUS_SECONDS, watchdog_seconds / 2) + 1)
        assert [state for _, state in fake.received if "STATUS=" in state][-1].endswith("STATUS=1 client, 0 messages/s")


def test_one_message_is_singular(fake: FakeManager) -> None:
    heartbeat = fake.heartbeat()
    fake.traffic = Traffic(1, 5)
    fake.now += STATUS_SECONDS
    heartbeat.beat()
    assert fake.received == [(1_000.0 + STATUS_SECONDS, "STATUS=1 client, 1 message/s")]


def test_a_rejected_notification_is_sent_again_soon(fake: FakeManager) -> None:
    heartbeat = fake.heartbeat()
    fake.idle(heartbeat, 30)
    fake.is_deaf = True
    fake.idle(heartbeat, WATCHDOG_SECONDS / 2 + 1)
    failures = fake.failures
    assert 1 <= failures <= 1 + 1 / RETRY_SECONDS + 1
    fake.is_deaf = False
    fake.received.clear()
    fake.idle(heartbeat, RETRY_SECONDS * 2)
    assert fake.received[0][1].startswith("WATCHDOG=1")
    assert fake.failures == failures


def test_a_warning_is_in_the_status_while_it_lasts() -> None:
    fake, warnings = FakeManager(0.0), ["configuration faults: 1 (50-lab.toml)"]
    heartbeat = Heartbeat(fake, lambda: fake.traffic, fake.failed, warning=lambda: warnings[0], clock=lambda: fake.now)
    fake.idle(heartbeat, 100)
    warnings[0] = ""
    fake.idle(heartbeat, 100)
    assert [state for _, state in fake.received] == [
        "STATUS=0 clients, 0 messages/s; configuration faults: 1 (50-lab.toml)",
        "STATUS=0 clients, 0 messages/s",
    ]


def test_a_reporter_notifies_the_watchdog_in_half_its_time_and_a_changed_status(systemd: socket.socket) -> None:
    now = 100.0
    systemd.setblocking(False)
    with closing(ServiceManager(systemd.getsockname(), 20.0)) as manager:
        reporter = StatusReporter(manager, lambda: now)
        assert reporter.due == 110.0
        for words, seconds in (("1 row", 0.0), ("2 rows", 0.0), ("3 rows", STATUS_SECONDS), ("3 rows", STATUS_SECONDS)):
            now += seconds
            reporter.turn(words.__str__)
        assert reporter.due == 120.0
    assert [systemd.recv(100) for _ in range(3)] == [b"STATUS=1 row", b"STATUS=3 rows", b"WATCHDOG=1"]
    with pytest.raises(BlockingIOError):
        systemd.recv(100)


def test_a_reporter_without_a_watchdog_is_never_due() -> None:
    with closing(ServiceManager("/nowhere")) as manager:
        assert StatusReporter(manager).due is None
    StatusReporter(ServiceManager()).turn(lambda: pytest.fail("computed"))
