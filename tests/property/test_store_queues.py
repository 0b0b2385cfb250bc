"""Queues of the engine against a plain model: one holder, bounded tries, order by key, delay, backoff, dead letters, reopening."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_programs.config.store import QueueSettings, StoreLimits, StoreSettings, StreamSettings
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import NOWHERE, EngineError, JobState, NewMessage, PutResult, Sender, Worker
from sbus_services.store.engine.schema import MESSAGE_BYTES
from tests.support.examples import examples
from tests.support.store_clocks import OneClock

RETAIN, TRIES, LEASES = 100_000, 3, 4
BACKOFF = (1_000, 5_000)
STREAMS = (
    StreamSettings("plain", ("plain/",), retain=RETAIN / 1000, max_messages=8),
    StreamSettings("ordered", ("ordered/",), max_bytes=2_000),
)
_PLAIN = QueueSettings("plain", "plain", lease=10.0, tries=TRIES, backoff=tuple(each / 1000 for each in BACKOFF))
QUEUES = (_PLAIN, replace(_PLAIN, name="ordered", stream="ordered", in_order="key"))
SETTINGS = StoreSettings(streams=STREAMS, queues=QUEUES, limits=StoreLimits(leases=LEASES))
NAMES = [each.name for each in QUEUES]
WORKERS = [Worker(1, 1000), Worker(2, 1000), Worker(3, 1001)]
STATES: tuple[JobState, ...] = ("ready", "leased", "delayed", "dead")

LEASES_OF = st.lists(st.integers(0, 30), max_size=3)
ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES), st.sampled_from(["a", "b"]), st.sampled_from([0, 0, 0, 2_000]), st.booleans()),
    st.tuples(st.just("put"), st.sampled_from(NAMES), st.sampled_from(["a", "b"]), st.sampled_from([0, 0, 0, 2_000]), st.booleans()),
    st.tuples(st.just("take"), st.sampled_from(NAMES), st.sampled_from(WORKERS), st.integers(1, 3)),
    st.tuples(st.just("take"), st.sampled_from(NAMES), st.sampled_from(WORKERS), st.integers(1, 3)),
    st.tuples(st.sampled_from(["ack", "fail", "extend"]), st.sampled_from(NAMES), st.sampled_from(WORKERS), LEASES_OF),
    st.tuples(st.just("retry"), st.sampled_from(NAMES), st.sampled_from(WORKERS), LEASES_OF, st.sampled_from([None, None, 0, 3_000])),
    st.tuples(st.just("release"), st.sampled_from(WORKERS)),
    st.tuples(st.just("wait"), st.sampled_from([1, 1_000, 5_000, 10_000, 100_000])),
    st.tuples(st.just("sweep")),
    st.tuples(st.just("revive"), st.sampled_from(NAMES)),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
    st.tuples(st.just("reopen")),
)


@dataclass
class JobModel:
    """A job: ``at`` is when it is due, its lease ends, or it died."""

    seq: int
    key: bytes
    time: int
    expires: int
    state: JobState
    at: int = 0
    tries: int = 0
    lease: int = 0
    worker: Worker | None = None
    is_new: bool = True
    """Whether it is delayed because it was put so, and so not in line."""


@dataclass
class QueueModel:
    """A queue."""

    name: str
    jobs: list[JobModel] = field(default_factory=list)
    last_seq: int = 0
    announced: int = 0
    """Dead letters that a sweep has not yet returned."""

    @property
    def is_ordered(self) -> bool:
        return self.name == "ordered"

    def takeable(self) -> list[JobModel]:
        """Return the jobs that are ready and not behind another one of their key."""
        found: list[JobModel] = []
        for job in [each for each in self.jobs if each.state == "ready"]:
            line = [
                each for each in self.jobs if each.key == job.key and each.state != "dead" and not (each.state == "delayed" and each.is_new)
            ]
            if not self.is_ordered or self.head(line) is job:
                found.append(job)
        return found

    def head(self, line: list[JobModel]) -> JobModel:
        """Return the job of a line that is under way: the one that became so first."""
        return min(line, key=lambda each: (each.seq not in self.heads, each.seq))

    heads: set[int] = field(default_factory=set)
    """In an ordered queue, the jobs that are under way: a job with a smaller number whose delay ends does not replace them."""

    def settle(self) -> None:
        """Choose who is under way in lines where no job is."""
        if not self.is_ordered:
            return
        for key in {each.key for each in self.jobs}:
            line = [e for e in self.jobs if e.key == key and e.state != "dead" and not (e.state == "delayed" and e.is_new)]
            if line and not any(each.seq in self.heads for each in line):
                self.heads.add(line[0].seq)
        self.heads &= {each.seq for each in self.jobs if each.state != "dead"}


class Machine:
    """An engine and its models."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_700_000_000_000
        self.path = folder / "store.sqlite"
        self.places = NOWHERE
        self.engine = self.opened()
        self.queues = {name: QueueModel(name) for name in NAMES}

    def opened(self) -> Engine:
        return Engine(self.path, SETTINGS, OneClock(lambda: self.now), min_free_bytes=0)

    def act(self, action: tuple[Any, ...]) -> None:
        getattr(self, f"act_{action[0]}")(*action[1:])
        for queue in self.queues.values():
            queue.settle()

    def act_put(self, name: str, key: str, delay: int, expires: bool) -> None:
        queue = self.queues[name]
        full_key = f"{name}/{key}".encode()
        message = NewMessage(
            full_key, b"p" * 300, Sender(5, 5, 5), due_ms=delay and self.now + delay, expires_ms=self.now + 7_000 if expires else 0
        )
        while self.is_full(queue) and (dead := [each for each in queue.jobs if each.state == "dead"]):
            queue.jobs.remove(min(dead, key=lambda each: (each.at, each.seq)))
        if self.is_full(queue):
            with pytest.raises(EngineError, match="ENOSPC"):
                self.engine.put(name, message)
            return
        queue.last_seq += 1
        assert self.engine.put(name, message) == PutResult(queue.last_seq)
        state: JobState = "delayed" if delay else "ready"
        queue.jobs.append(JobModel(queue.last_seq, full_key, self.now, message.expires_ms, state, message.due_ms))

    def is_full(self, queue: QueueModel) -> bool:
        """Return whether *queue* takes no further message."""
        if not queue.is_ordered:
            return len(queue.jobs) >= 8
        return sum(len(each.key) + 300 + MESSAGE_BYTES for each in queue.jobs) + 300 + MESSAGE_BYTES + len(b"ordered/a") > 2_000

    def act_take(self, name: str, worker: Worker, count: int) -> None:
        held = sum(each.worker is not None and each.worker.uid == worker.uid for queue in self.queues.values() for each in queue.jobs)
        if held >= LEASES:
            with pytest.raises(EngineError, match="EDQUOT"):
                self.engine.take(name, worker, count, 1 << 20)
            return
        found, more = self.engine.take(name, worker, count, 1 << 20)
        queue = self.queues[name]
        over: list[JobModel] = []
        taken: list[JobModel] = []
        for each in queue.takeable():
            if len(taken) < min(count, LEASES - held):
                (over if each.expires and each.expires <= self.now else taken).append(each)
        assert more == (bool(over) and not taken)
        assert [(job.stored.seq, job.tries, job.until_ms) for job in found] == [(e.seq, e.tries + 1, self.now + 10_000) for e in taken]
        for each in over:
            queue.jobs.remove(each)
        for each, job in zip(taken, found, strict=True):
            each.state, each.at, each.tries, each.lease, each.worker = "leased", job.until_ms, job.tries, job.lease, worker
        assert len({each.lease for each in self.leased()}) == len(self.leased())

    def leased(self) -> list[JobModel]:
        """Return all jobs with a worker."""
        return [each for queue in self.queues.values() for each in queue.jobs if each.state == "leased"]

    def held(self, name: str, worker: Worker, leases: list[int]) -> tuple[list[int], list[JobModel | None]]:
        """Return numbers of leases of all workers, and the jobs that *worker* has by them, each once."""
        known = sorted(each.lease for each in self.leased()) or [0]
        numbers = list(dict.fromkeys(known[each % len(known)] if each < 25 else 1_000 + each for each in leases))
        mine = {
            each.lease: each for each in self.queues[name].jobs if each.worker == worker and each.at > self.now and each.state == "leased"
        }
        return numbers, [mine.get(each) for each in numbers]

    def act_ack(self, name: str, worker: Worker, leases: list[int]) -> None:
        numbers, jobs = self.held(name, worker, leases)
        assert self.engine.ack(name, numbers, worker) == [each is not None for each in jobs]
        self.queues[name].jobs = [each for each in self.queues[name].jobs if each not in jobs]

    def act_fail(self, name: str, worker: Worker, leases: list[int]) -> None:
        numbers, jobs = self.held(name, worker, leases)
        assert self.engine.fail(name, numbers, worker, "bad") == [each is not None for each in jobs]
        for each in filter(None, jobs):
            self.die(self.queues[name], each)

    def act_extend(self, name: str, worker: Worker, leases: list[int]) -> None:
        numbers, jobs = self.held(name, worker, leases)
        assert self.engine.extend(name, numbers, worker, 20_000) == [each is not None for each in jobs]
        for each in filter(None, jobs):
            each.at = self.now + 20_000

    def act_retry(self, name: str, worker: Worker, leases: list[int], after: int | None) -> None:
        numbers, jobs = self.held(name, worker, leases)
        assert self.engine.retry(name, numbers, worker, after) == [each is not None for each in jobs]
        for each in filter(None, jobs):
            self.end(self.queues[name], each, BACKOFF[min(each.tries, len(BACKOFF)) - 1] if after is None else after)

    def end(self, queue: QueueModel, job: JobModel, wait: int) -> None:
        """End a try."""
        job.worker, job.lease = None, 0
        if job.tries >= TRIES:
            self.die(queue, job)
        else:
            job.state, job.at, job.is_new = "delayed" if wait else "ready", wait and self.now + wait, False

    def die(self, queue: QueueModel, job: JobModel) -> None:
        """Make *job* a dead letter."""
        job.state, job.at, job.worker, job.lease = "dead", self.now, None, 0
        queue.announced += 1

    def act_release(self, worker: Worker) -> None:
        mine = {
            name: [e for e in queue.jobs if e.worker is not None and e.worker.connection == worker.connection]
            for name, queue in self.queues.items()
        }
        released = self.engine.release(worker.connection)
        assert (released.queues, released.until) == ({name for name, jobs in mine.items() if jobs}, 0)
        assert released.jobs == sum(map(len, mine.values()))
        for name, jobs in mine.items():
            for each in jobs:
                self.end(self.queues[name], each, BACKOFF[min(each.tries, len(BACKOFF)) - 1])

    def act_wait(self, duration: int) -> None:
        self.now += duration

    def act_sweep(self) -> None:
        letters, more = 0, True
        over = {(each.worker.connection, each.lease) for each in self.leased() if each.worker and each.at <= self.now}
        while more:
            sweep = self.engine.sweep(50, self.places)
            self.places = sweep.places
            letters, more = letters + len(sweep.dead), sweep.more
            assert over.issuperset(sweep.ended)
            over.difference_update(sweep.ended)
        assert not over
        dead = 0
        for name, queue in self.queues.items():
            for each in [each for each in queue.jobs if each.state == "leased" and each.at <= self.now]:
                self.end(queue, each, 0)
            for each in sorted(
                (each for each in queue.jobs if each.state == "delayed" and each.at <= self.now), key=lambda e: (not e.is_new, e.at)
            ):
                each.state, each.at = "ready", 0
                queue.settle()
            for each in [each for each in queue.jobs if each.state != "leased" and each.expires and each.expires <= self.now]:
                queue.jobs.remove(each)
            queue.settle()
            if name == "plain":
                for each in [each for each in queue.jobs if each.time <= self.now - RETAIN]:
                    if each.state == "ready" or (each.state == "delayed" and not each.is_new):
                        self.die(queue, each)
                queue.jobs = [each for each in queue.jobs if not (each.state == "dead" and each.at <= self.now - RETAIN)]
            dead += queue.announced
            queue.announced = 0
        assert letters <= dead

    def act_revive(self, name: str) -> None:
        dead = [each for each in self.queues[name].jobs if each.state == "dead"][:1]
        assert self.engine.revive(name, [each.seq for each in dead]) == len(dead)
        for each in dead:
            each.state, each.at, each.tries, each.is_new = "ready", 0, 0, False

    def act_drop(self, name: str) -> None:
        dead = [each for each in self.queues[name].jobs if each.state == "dead"][:1]
        assert self.engine.drop_dead(name, [*(each.seq for each in dead), 999]) == len(dead)
        self.queues[name].jobs = [each for each in self.queues[name].jobs if each not in dead]

    def act_reopen(self) -> None:
        self.engine.close()
        self.engine = self.opened()

    def check(self) -> None:
        """Compare the jobs of each state, and the figures."""
        statistics = {each.name: each for each in self.engine.statistics().queues}
        for name, queue in self.queues.items():
            for state in STATES:
                wanted = [
                    (each.seq, each.tries, each.at if state != "ready" else 0, each.worker) for each in queue.jobs if each.state == state
                ]
                found = [(each.stored.seq, each.tries, each.at_ms, each.holder) for each in self.engine.jobs(name, state)]
                assert found == sorted(wanted), (name, state)
                assert getattr(statistics[name], state) == len(wanted)
            assert self.engine.ready(name) == len(queue.takeable())
            assert all(each.tries <= TRIES for each in queue.jobs)
            for worker in WORKERS:
                assert self.engine.leases_of(name, worker) == {each.lease for each in queue.jobs if each.worker == worker}
        assert set(self.engine.lease_holders()) == {each.worker.connection for each in self.leased() if each.worker}


@settings(max_examples=examples(150))
@given(st.lists(ACTIONS, min_size=1, max_size=40))
def test_queues_behave_as_lists(actions: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder))
        try:
            for action in actions:
                machine.act(action)
                machine.check()
            machine.act_reopen()
            machine.check()
        finally:
            machine.engine.close()
