"""Steps of the wall clock, sleep and restarts: what is counted by which clock of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_programs.config.store import QueueSettings, StoreSettings, StreamSettings
from sbus_programs.wall_clock import Clocks
from sbus_services.store.engine.clocks import MS, SystemClock
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import NewMessage, Sender, Worker

ALICE = Sender(1000, 1000, 7)
WORKER, OTHER = Worker(5, 1000), Worker(6, 1000)
DAY = 86_400.0
STEPS = {"an hour": 3_600.0, "an hour back": -3_600.0, "a year": 365 * DAY, "to 1970": -56 * 365 * DAY}
SETTINGS = StoreSettings(
    streams=(StreamSettings("log", ("log/",), retain=7 * DAY), StreamSettings("mail", ("mail/",))),
    queues=(QueueSettings("mail", "mail", lease=60.0, backoff=(2.0,), tries=3),),
)


class Machine:
    """A machine with a store that sweeps once a second."""

    def __init__(self, folder: Path) -> None:
        self.wall, self.boot, self.boot_id = 1_700_000_000.0, 5_000.0, "first"
        self.path = folder / "store.sqlite"
        self.log: list[str] = []
        self.start()

    def start(self) -> None:
        clocks = Clocks(lambda: round(self.wall * 1000) * MS, lambda: round(self.boot * 1000) * MS, lambda: self.boot_id)
        self.engine = Engine(self.path, SETTINGS, SystemClock(self.log.append, self.path.with_suffix(".date"), clocks), 0)

    def step(self, seconds: float) -> None:
        """Set the wall clock."""
        self.wall += seconds

    def pass_over(self, seconds: float) -> None:
        """Let time pass in which the store does not run: the machine sleeps, or the process is stopped."""
        self.wall += seconds
        self.boot += seconds

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.pass_over(1)
            self.engine.sweep()

    def put(self, key: bytes, payload: bytes = b"", delay: float = 0, at: float = 0, expire: float = 0) -> None:
        now = self.engine.clock.now()
        due, expires = now + round(delay * 1000) if delay else 0, now + round(expire * 1000) if expire else 0
        self.engine.put(key.partition(b"/")[0].decode(), NewMessage(key, payload, ALICE, b"", due, expires, round(at * 1000)))

    def take(self, worker: Worker = OTHER) -> list[bytes]:
        return [each.stored.payload for each in self.engine.take("mail", worker, 9, 1 << 20).jobs]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_ends_no_lease_and_prolongs_none(machine: Machine, step: float) -> None:
    machine.put(b"mail/a", b"job")
    (job,) = machine.engine.take("mail", WORKER, 1, 1_000).jobs
    for _ in range(4):
        machine.step(step)
        machine.run(10)
        assert machine.take() == []
    assert machine.engine.extend("mail", [job.lease], WORKER) == [True]
    machine.run(59)
    assert machine.take() == []
    machine.run(1)
    (again,) = machine.engine.take("mail", OTHER, 1, 1_000).jobs
    assert again.tries == 2
    assert machine.engine.ack("mail", [job.lease], WORKER) == [False]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_delays_backoffs_and_expiry_are_durations(machine: Machine, step: float) -> None:
    machine.put(b"mail/delayed", b"delayed", delay=20)
    machine.put(b"mail/failed", b"failed")
    machine.engine.retry("mail", [each.lease for each in machine.engine.take("mail", WORKER, 1, 1_000).jobs], WORKER, 10_000)
    machine.put(b"log/a", b"expires", expire=30)
    machine.step(step)
    found = []
    for second in range(40):
        found += [(second, each) for each in machine.take()]
        if len(machine.engine.read("log", 0, 9, 1_000).items) == 0:
            found.append((second, b"expired"))
            break
        machine.run(1)
    assert found == [(10, b"failed"), (20, b"delayed"), (30, b"expired")]


def test_a_job_with_a_date_is_ready_at_that_date(machine: Machine) -> None:
    machine.put(b"mail/a", b"dated", at=machine.wall + 3_600)
    assert [each.at_ms / 1000 for each in machine.engine.jobs("mail", "delayed")] == [machine.wall + 3_600]
    machine.step(-600)
    machine.run(60)
    machine.step(600 + 3_600 - 61)
    machine.run(1)
    assert machine.take() == [b"dated"]


@pytest.mark.parametrize("times", [1, 6])
def test_time_in_which_the_store_does_not_run_ends_no_lease_and_uses_up_no_try(machine: Machine, times: int) -> None:
    machine.put(b"mail/a", b"job")
    machine.put(b"mail/b", b"later", delay=1_000)
    (job,) = machine.engine.take("mail", WORKER, 1, 1_000).jobs
    for _ in range(times):
        machine.pass_over(30 * 60)  # a laptop that is closed
        machine.run(5)
    assert machine.take() == [b"later"]  # sleep counts for delays
    assert machine.engine.ack("mail", [job.lease], WORKER) == [True]
    assert machine.engine.jobs("mail", "dead") == []


@pytest.mark.parametrize("step", [8 * DAY, 365 * DAY])
def test_a_wrong_date_removes_nothing_that_is_kept_by_age(machine: Machine, step: float) -> None:
    for _ in range(10):
        machine.put(b"log/a")
    machine.step(step)
    machine.run(8)
    assert machine.engine.statistics().is_date_doubted
    machine.put(b"log/a", b"with the wrong date")
    machine.step(-step)
    machine.run(8)
    assert not machine.engine.statistics().is_date_doubted
    assert len(machine.engine.read("log", 1, 99, 1 << 20).items) == 11
    assert any("the date jumped" in line for line in machine.log)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_clocks_continue_at_a_restart_of_the_store(machine: Machine, step: float) -> None:
    machine.put(b"mail/a", b"job")
    (job,) = machine.engine.take("mail", WORKER, 1, 1_000).jobs
    machine.put(b"log/a", b"kept", expire=3_000)
    machine.pass_over(100)
    machine.run(3)
    machine.engine.close()
    machine.step(step)
    machine.pass_over(20)
    machine.start()
    machine.run(30)
    assert machine.engine.extend("mail", [job.lease], WORKER) == [True]
    assert len(machine.engine.read("log", 1, 99, 1 << 20).items) == 1


def test_a_reboot_with_a_wrong_date_is_doubted(machine: Machine) -> None:
    machine.put(b"log/a", b"kept")
    machine.put(b"log/b", b"expires", expire=3 * DAY)
    machine.run(60)
    machine.engine.close()
    machine.boot, machine.boot_id = 20.0, "second"
    machine.step(40 * DAY)
    machine.start()
    machine.run(10)
    assert len(machine.engine.read("log", 1, 99, 1 << 20).items) == 2


def test_dates_of_leases_are_shown_by_the_wall_clock(machine: Machine) -> None:
    machine.put(b"mail/a", b"job")
    machine.step(3_600)
    (job,) = machine.engine.take("mail", WORKER, 1, 1_000).jobs
    (listed,) = machine.engine.jobs("mail", "leased")
    assert job.until_ms == listed.at_ms == round((machine.wall + 60) * 1000)
