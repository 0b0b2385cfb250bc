"""The clients' methods for stored messages, against sbus-store on a bus: the same tests for blocking programs and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import AsyncBus, Bus, Disconnected, NewMessage, Put, QueuedJob, StoredMessage, StoreError, StoreNotRunning, TimedOut
from tests.support.daemons import Daemon, StartDaemon
from tests.support.store_programs import StoreProgram
from tools.stage import ROOT

CONFIGURATION = """
[[stream]]
name = "state"
keys = ["net/"]
last = 1

[[stream]]
name = "notes"
keys = ["note/"]

[[stream]]
name = "mail"
keys = ["mail/"]

[[queue]]
name = "mail"
stream = "mail"
tries = 2
backoff = ["0s"]
"""


RIGHTS = "[rights]\nvouch = { users = [0] }\npresence = { users = [0] }\n"


@pytest.fixture(scope="module")
def bus_configuration() -> str:
    return RIGHTS


@pytest.fixture
def program(shared_bus: Daemon, tmp_path: Path) -> Iterator[StoreProgram]:
    """A store with streams and a queue."""
    with StoreProgram(tmp_path, shared_bus.path, CONFIGURATION) as made:
        yield made


@pytest.fixture
def bus(program: StoreProgram) -> Iterator[Bus]:
    """A connection."""
    with Bus.connect(program.bus) as made:
        yield made


def test_without_a_store_the_error_says_what_to_start(daemon: StartDaemon) -> None:
    with Bus.connect(daemon().path) as bus, pytest.raises(StoreNotRunning, match="sbus-store is not running on this bus; start it"):
        bus.store.put("note/a", b"1")


def test_a_store_that_may_not_publish_says_so(daemon: StartDaemon, tmp_path: Path, needs_root: None) -> None:
    text = CONFIGURATION.replace('name = "notes"', 'name = "notes"\npublish = false')
    with StoreProgram(tmp_path, daemon().path, text) as program, Bus.connect(program.bus) as bus:
        assert bus.store.put("note/a", b"1").seq
        with pytest.raises(StoreError, match=r'EACCES: user 0, .*right vouch.* add "\[rights\]" and "vouch = { users = \[0\] }"') as caught:
            bus.store.put("mail/a", b"1")
        assert caught.value.code == "EACCES"
        assert bus.store.peek(stream="mail") == []
        assert "does not have the right vouch, so it cannot publish messages" in program.log


def test_puts_are_numbered_and_known_by_their_id(bus: Bus) -> None:
    first = bus.store.put("note/a", b"1", id="x")
    assert bus.store.put("note/a", b"1", id="x") == Put(first.seq, is_duplicate=True)
    assert bus.store.put("note/a", b"2").seq > first.seq


def test_one_wrong_message_of_many_has_its_error(bus: Bus) -> None:
    good, wrong = bus.store.put_many([NewMessage("note/a", b"1"), NewMessage("elsewhere", b"2")])
    assert isinstance(good, Put)
    assert isinstance(wrong, StoreError)
    assert (wrong.code, wrong.call) == ("ENOENT", "store/put")
    assert str(wrong).endswith("; see [[stream]] in store.toml(5)")


def test_more_messages_than_one_call_takes(bus: Bus) -> None:
    outcomes = bus.store.put_many(NewMessage("note/a", b"%d" % number) for number in range(600))
    numbers = [outcome.seq for outcome in outcomes if isinstance(outcome, Put)]
    assert len(numbers) == 600
    assert numbers == sorted(set(numbers))
    payloads = [each.payload for each in bus.store.read("notes", follow=False) if isinstance(each, StoredMessage)]
    assert payloads == [b"%d" % number for number in range(600)]


def test_last_values_of_more_keys_than_one_response_has(bus: Bus) -> None:
    bus.store.put_many(NewMessage(f"net/{number:03}", b"%d" % number) for number in range(300))
    bus.store.put("net/007", b"new")
    values = {each.key: each.payload for each in bus.store.last("net/")}
    assert len(values) == 300
    assert values["net/007"] == b"new"


def test_a_reader_continues_after_what_its_loop_has_done(bus: Bus) -> None:
    bus.store.put_many(NewMessage("note/a", b"%d" % number) for number in range(5))
    for item in bus.store.read("notes", reader="me"):
        assert isinstance(item, StoredMessage)
        if item.payload == b"2":
            break
    rest = [each.payload for each in bus.store.read("notes", reader="me", start="first", follow=False) if isinstance(each, StoredMessage)]
    assert rest == [b"2", b"3", b"4"]  # the loop ended before it asked for what follows b"2"
    assert not list(bus.store.read("notes", reader="me", follow=False))
    bus.store.drop_reader("notes", "me")
    assert bus.store.position("notes", "me") is None
    assert len(list(bus.store.read("notes", reader="me", follow=False))) == 5


def test_a_new_reader_begins_where_it_says(bus: Bus) -> None:
    bus.store.put("note/a", b"old")
    assert not list(bus.store.read("notes", reader="me", start="new", follow=False))
    bus.store.put("note/a", b"new")
    found = list(bus.store.read("notes", reader="me", start="new", follow=False))
    assert [each.payload for each in found if isinstance(each, StoredMessage)] == [b"new"]


def test_a_reader_waits_for_what_is_put(program: StoreProgram, bus: Bus) -> None:
    reader = bus.store.read("notes", pattern="note/b")

    def put() -> None:
        with Bus.connect(program.bus) as other:
            other.store.put("note/a", b"1")
            other.store.put("note/b", b"2")

    thread = threading.Thread(target=put)
    thread.start()
    item = next(reader)
    thread.join()
    assert isinstance(item, StoredMessage)
    assert item.payload == b"2"


def test_a_job_is_acknowledged_at_the_end_of_the_block(bus: Bus) -> None:
    bus.store.put("mail/a", b"1")
    with bus.store.take("mail", timeout=0) as job:
        assert (job.key, job.payload, job.tries) == ("mail/a", b"1", 1)
    with pytest.raises(TimedOut, match="a job of queue 'mail'"), bus.store.take("mail", timeout=0):
        pass


def test_a_job_whose_block_fails_is_tried_again_and_then_a_dead_letter(bus: Bus) -> None:
    bus.store.put("mail/a", b"1")
    tries = []

    def divide() -> None:
        with bus.store.take("mail", timeout=30) as job:
            tries.append(job.tries)
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            divide()
    assert tries == [1, 2]
    (dead,) = bus.store.peek(queue="mail", state="dead")
    assert bus.store.revive("mail", dead.message.seq) == 1  # type: ignore[union-attr]
    with bus.store.take("mail", timeout=30) as job:
        job.fail("no such address")
    (dead,) = bus.store.peek(queue="mail", state="dead")
    assert isinstance(dead, QueuedJob)
    assert dead.reason == "no such address"
    assert bus.store.purge(queue="mail") == 1


def test_a_lease_is_renewed_while_the_block_runs(program: StoreProgram, bus: Bus) -> None:
    bus.store.put("mail/a", b"1")
    with Bus.connect(program.bus) as other, bus.store.take("mail", timeout=30, lease=5):
        assert not other.store.take_many("mail", timeout=11)  # more than two leases
    assert not bus.store.take_many("mail", timeout=0)


def test_a_lease_that_is_not_renewed_ends(program: StoreProgram, bus: Bus) -> None:
    bus.store.put("mail/a", b"1")
    (job,) = bus.store.take_many("mail", timeout=30, lease=1)
    with Bus.connect(program.bus) as other, other.store.take("mail", timeout=60) as again:
        assert again.tries == 2
    with pytest.raises(StoreError, match="ESTALE"):
        job.ack()
    assert job.is_lost


def test_a_lost_lease_is_counted_and_the_loop_takes_the_next_job(program: StoreProgram, bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """A lease of 1 s ends if the process is stopped, or nothing renews it. Here another connection waits until it has the job."""
    put_jobs(bus, 3)

    async def main(other: Bus) -> None:
        async with AsyncBus.connect(program.bus) as worker, contextlib.aclosing(worker.store.jobs("mail", timeout=0, lease=1)) as jobs:
            async for job in jobs:
                async with job:  # the loop is blocked, so it cannot renew the lease
                    taken = other.store.take_many("mail", 64, timeout=60, lease=3_600)
                    while job.message.seq not in {each.message.seq for each in taken}:
                        taken += other.store.take_many("mail", 64, timeout=60, lease=3_600)
                for each in taken:
                    each.ack()
            assert worker.statistics.jobs_lost == 1

    with Bus.connect(program.bus) as other:
        asyncio.run(main(other))
        bus.store.put("mail/a", b"again")
        for job in bus.store.jobs("mail", timeout=0, lease=1):
            bus.store._renewal.remove(job._renew)  # as if this process had been stopped
            (again,) = other.store.take_many("mail", timeout=60, lease=3_600)
            again.ack()
        assert bus.statistics.jobs_lost == 1
    assert [line for line in caplog.messages if "was done after its lease had ended, and is tried again" in line]


def test_a_loop_acknowledges_a_job_when_it_asks_for_the_next(bus: Bus) -> None:
    bus.store.put_many(NewMessage("mail/a", b"%d" % number) for number in range(3))
    assert [job.payload for job in bus.store.jobs("mail", timeout=0)] == [b"0", b"1", b"2"]
    assert not bus.store.peek(queue="mail", state="ready")


def test_jobs_are_acknowledged_together(bus: Bus) -> None:
    bus.store.put_many(NewMessage("mail/a", b"%d" % number) for number in range(3))
    jobs = bus.store.take_many("mail", 3, timeout=30)
    jobs[1].ack()
    outcomes = bus.store.ack_many(jobs)
    assert [outcome and outcome.code for outcome in outcomes] == [None, "ESTALE", None]


def test_a_job_of_a_worker_that_disconnects_goes_to_another(program: StoreProgram, bus: Bus) -> None:
    bus.store.put("mail/a", b"1")
    with Bus.connect(program.bus) as other:
        assert other.store.take_many("mail", timeout=30, lease=3_600)
    with bus.store.take("mail", timeout=60) as job:
        assert job.tries == 2


def test_a_late_subscriber_begins_with_last_values(program: StoreProgram, bus: Bus) -> None:
    bus.store.put("net/a", b"1")
    bus.store.put("net/b", b"2")
    with Bus.connect(program.bus) as late, late.subscribe("net/", last=True) as subscription:
        items = iter(subscription)
        first = list(itertools.islice(items, 2))
        assert {each.key: each.payload for each in first} == {"net/a": b"1", "net/b": b"2"}
        bus.store.put("net/a", b"3")
        live = next(items)
        assert (live.key, live.payload) == ("net/a", b"3")


def test_calls_wait_for_a_store_that_restarts(program: StoreProgram, bus: Bus) -> None:
    assert bus.store.put("note/a", b"1").seq

    def restart() -> None:
        program.stop()
        program.start()

    thread = threading.Thread(target=restart)
    thread.start()
    numbers: list[int] = []
    while thread.is_alive() or len(numbers) < 20:
        numbers.append(bus.store.put("note/a", b"x", id=f"m{len(numbers)}").seq)
    thread.join()
    assert len(set(numbers)) == len(numbers)


def put_jobs(bus: Bus, count: int) -> None:
    bus.store.put_many([NewMessage("mail/a", b"%d" % number, id=f"job{number}") for number in range(count)])


class RestartingBus:
    """A bus with a store, that stops and starts again: its connections end."""

    def __init__(self, program: StoreProgram, daemon: Daemon) -> None:
        self.path = program.bus
        self._process = daemon.process

    def restart(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._process = subprocess.Popen(
            self._process.args, cwd="/", env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture
def restarting(daemon: StartDaemon, tmp_path: Path) -> Iterator[RestartingBus]:
    server = daemon(config=RIGHTS)
    with StoreProgram(tmp_path, server.path, CONFIGURATION) as program:
        made = RestartingBus(program, server)
        yield made
        made.stop()


def test_a_worker_survives_a_restart_of_the_bus(restarting: RestartingBus, caplog: pytest.LogCaptureFixture) -> None:
    """The job that runs meanwhile runs again, and is not lost; the loop goes on."""
    done: list[bytes] = []
    with Bus.connect(restarting.path, reconnect=True) as worker:
        put_jobs(worker, 5)
        for job in worker.store.jobs("mail", timeout=60):
            with job:
                if not done:
                    restarting.restart()
                done.append(job.payload)
            if len(set(done)) == 5:
                break
        assert worker.statistics.jobs_lost == 1
    assert done[0] in done[1:]
    assert len(done) == 6
    assert any("was done after its lease had ended, and is tried again" in line for line in caplog.messages)


def test_a_waiting_worker_survives_a_restart_of_the_bus(restarting: RestartingBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(restarting.path, reconnect=True) as worker:
            taken: asyncio.Queue[bytes] = asyncio.Queue()

            async def work() -> None:
                async with contextlib.aclosing(worker.store.jobs("mail")) as jobs:
                    async for job in jobs:
                        taken.put_nowait(job.payload)

            await worker.store.put("mail/a", b"first")
            task = asyncio.create_task(work())
            assert await asyncio.wait_for(taken.get(), 60) == b"first"
            await asyncio.to_thread(restarting.restart)
            await worker.store.put("mail/a", b"second", id="second")
            payloads = [await asyncio.wait_for(taken.get(), 60)]
            while payloads[-1] != b"second":
                payloads.append(await asyncio.wait_for(taken.get(), 60))
            task.cancel()
            await asyncio.wait([task])
            assert set(payloads) <= {b"first", b"second"}

    asyncio.run(main())


def test_without_reconnect_a_worker_ends_with_the_bus(restarting: RestartingBus) -> None:
    with Bus.connect(restarting.path) as worker:
        put_jobs(worker, 1)
        with pytest.raises(Disconnected), worker.store.take("mail", timeout=60):
            restarting.restart()


def test_asyncio(program: StoreProgram) -> None:
    async def main() -> None:
        async with AsyncBus.connect(program.bus) as bus:
            puts = await asyncio.gather(*(bus.store.put("mail/a", b"%d" % number) for number in range(50)))
            assert [each.seq for each in puts] == sorted(each.seq for each in puts)
            with pytest.raises(StoreError, match="ENOENT"):
                await bus.store.put("elsewhere", b"")
            async with bus.store.take("mail", timeout=30) as job:
                assert job.payload == b"0"
            with pytest.raises(ZeroDivisionError):
                async with bus.store.take("mail", timeout=30) as job:
                    raise ZeroDivisionError
            async with bus.store.take("mail", timeout=30, lease=5) as job, AsyncBus.connect(program.bus) as other:
                rest = await other.store.take_many("mail", 64, timeout=30, lease=60)
                await other.store.ack_many(rest)
                assert not await other.store.take_many("mail", timeout=11)
            async with contextlib.aclosing(bus.store.jobs("mail", timeout=0)) as jobs:
                assert [each.payload async for each in jobs] == []
            await bus.store.put("net/a", b"1")
            async with bus.subscribe("net/", last=True) as subscription:
                async for message in subscription:
                    assert message.payload == b"1"
                    break
                await bus.store.put("net/a", b"2")
                assert (await subscription.receive(30)).payload == b"2"  # type: ignore[union-attr]
            async with contextlib.aclosing(bus.store.read("state", reader="me")) as items:
                async for item in items:
                    assert isinstance(item, StoredMessage)
                    break

    asyncio.run(main())


def test_a_cancelled_put_leaves_the_others_alone(program: StoreProgram) -> None:
    async def main() -> None:
        async with AsyncBus.connect(program.bus) as bus:
            tasks = [asyncio.ensure_future(bus.store.put("note/a", b"%d" % number)) for number in range(10)]
            await asyncio.sleep(0)
            tasks[3].cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(each, Put) for each in outcomes] == [number != 3 for number in range(10)]

    asyncio.run(main())
