"""Queue groups with a real bus: how workers share messages when some come, go, read slowly or belong to another user; and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading

import pytest

from sbus import AsyncBus, Bus, Closed, Disconnected, Item, Message, NotSubscribed, ProtocolError, RemoteRefusal, Unsupported
from sbus.protocol import controls
from tests.support.daemons import Daemon
from tests.support.fdstore import Manager
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code

SECONDS = 60.0
HEAD = b"CMSG !/group/w\0"


def join(client: RawClient, pattern: bytes = b"jobs/", group: bytes = b"w") -> list[bytes]:
    """Join a group, and return what the bus sends before it has handled that."""
    client.control(controls.GROUP_JOIN, group + b"\0" + pattern)
    return client.barrier()


# -- the Python client


def test_two_workers_share_what_one_gets(bus: Daemon) -> None:
    with Bus.connect(bus.path) as one, Bus.connect(bus.path) as two, Bus.connect(bus.path) as publisher:
        first, second = one.subscribe("jobs/", group="workers"), two.subscribe("jobs/", group="workers")
        observer = publisher.subscribe("jobs/")
        for number in range(100):
            assert publisher.publish("jobs/a", str(number), receipt=True) == 2
        publisher.publish("end")
        one.ping()
        two.ping()
        taken = [[int(getattr(message, "payload", b"")) for message in each.receive_many(each.pending)] for each in (first, second)]
        assert sorted(taken[0] + taken[1]) == list(range(100))
        assert [len(each) for each in taken] == [50, 50]
        assert [observer.receive(SECONDS).text for _ in range(100)] == [str(number) for number in range(100)]  # type: ignore[union-attr]
        assert first.patterns == ("jobs/",)


def test_a_subscription_and_a_membership_of_one_connection_are_apart(bus: Daemon) -> None:
    with Bus.connect(bus.path) as both, Bus.connect(bus.path) as other:
        everything = both.subscribe("jobs/")
        mine, theirs = both.subscribe("jobs/", group="w"), other.subscribe("jobs/", group="w")
        for number in range(10):
            other.publish("jobs/a", str(number), receipt=True)
        both.ping()
        other.ping()
        assert everything.pending == 10
        assert mine.pending + theirs.pending == 10
        assert mine.pending < 10
        both.unsubscribe("jobs/", group="w")
        with pytest.raises(NotSubscribed, match="'jobs/' in the group 'w'"):
            both.unsubscribe("jobs/", group="w")
        other.publish("jobs/a", "last", receipt=True)
        both.ping()
        assert (everything.pending, theirs.receive(SECONDS) is not None) == (11, True)
        mine.close()
        with pytest.raises(Closed):
            mine.receive()


def test_a_worker_that_is_killed_leaves_its_queue_to_the_others(bus: Daemon) -> None:
    with Bus.connect(bus.path) as publisher:
        idle = bus.client()
        join(idle)
        for number in range(3_000):
            publisher.publish("jobs/a", str(number))
        publisher.ping()
        with Bus.connect(bus.path) as late:
            rest = late.subscribe("jobs/", group="w")
            idle.close()
            publisher.publish("jobs/a", "end", receipt=True)
            numbers: list[int] = []
            while not numbers or numbers[-1] != 2_999:
                message = rest.receive(SECONDS)
                assert isinstance(message, Message)
                numbers += [int(message.payload)] if message.payload != b"end" else []
            assert numbers == list(range(numbers[0], 3_000))
            assert len(numbers) > 1_000
            counters = json.loads(late.control(controls.STATS))["counters"]
            assert counters["redelivered_packets"] == len(numbers)


def test_asyncio_workers(bus: Daemon) -> None:
    async def run() -> None:
        async with (
            AsyncBus.connect(bus.path) as one,
            AsyncBus.connect(bus.path) as two,
            one.subscribe("a", "b", group="w") as first,
            two.subscribe("a", group=b"w") as second,
        ):
            for _ in range(10):
                assert await one.publish("a", receipt=True) == 1
            assert await one.publish("b", receipt=True) == 1
            await two.ping()
            assert first.pending + second.pending == 11
            await one.unsubscribe("b", group="w")
            assert await one.publish("b", receipt=True) == 0

    asyncio.run(run())


@pytest.mark.parametrize(("packets", "taken"), [(1, 2), (64, 20)])
def test_a_busy_asyncio_worker_gets_more_jobs_only_if_it_reads_ahead(bus: Daemon, packets: int, taken: int) -> None:
    """With a queue of one item, the second job stays in the socket, where the bus counts it. Otherwise a busy worker seems idle."""

    async def share() -> int:
        async with (
            AsyncBus.connect(bus.path, queue_packets=packets) as one,
            AsyncBus.connect(bus.path) as two,
            AsyncBus.connect(bus.path) as three,
            one.subscribe("jobs/", group="w"),
            two.subscribe("jobs/", group="w") as idle,
        ):
            handled = published = 0
            while handled < 20:
                published += await three.publish("jobs/a", "x", receipt=True) or 0
                await two.ping()
                if packets > 1:
                    await one.ping()  # it has read the job, if it got it
                while idle.pending:
                    await idle.receive(SECONDS)
                    handled += 1
            return published - handled

    assert asyncio.run(share()) == taken


# -- several members on one connection


def test_subscriptions_of_one_connection_share_the_messages_of_their_group(bus: Daemon) -> None:
    with Bus.connect(bus.path) as worker, Bus.connect(bus.path) as publisher:
        members = [worker.subscribe("jobs/", group="w") for _ in range(4)]
        everything = worker.subscribe("jobs/")
        for number in range(11):
            assert publisher.publish("jobs/a", str(number), receipt=True) == 2  # to the group, and to the subscription
        worker.ping()
        assert [each.pending for each in members] == [3, 3, 3, 2]
        taken = [item for each in members for item in each.receive_many(9)]
        assert sorted(int(each.payload) for each in taken if isinstance(each, Message)) == list(range(11))
        assert everything.pending == 11


def test_asyncio_tasks_share_the_messages_of_one_connection_across_a_restart(manager: Manager) -> None:
    taken: list[list[int]] = [[], [], []]

    async def work(bus: AsyncBus, place: int, ready: asyncio.Event, more: asyncio.Condition) -> None:
        async with bus.subscribe("jobs/", group="w") as jobs:
            ready.set()
            async for job in jobs:
                if job.text == "end":
                    return
                taken[place].append(int(job.payload))
                async with more:
                    more.notify_all()

    async def run() -> None:
        async with AsyncBus.connect(path, reconnect=True, timeout=SECONDS) as bus:
            events, more = [asyncio.Event() for _ in taken], asyncio.Condition()
            tasks = [asyncio.create_task(work(bus, place, event, more)) for place, event in enumerate(events)]
            await asyncio.gather(*(event.wait() for event in events))
            expected = 0
            for _ in range(2):
                async with AsyncBus.connect(path) as publisher:
                    for _ in range(30):
                        assert await publisher.publish("jobs/a", str(expected), receipt=True) == 1
                        expected += 1
                async with more:
                    while sum(map(len, taken)) < expected:
                        await asyncio.wait_for(more.wait(), SECONDS)
                if expected == 30:
                    manager.empty_store()  # so that the connections end
                    manager.end(signal.SIGKILL)
                    manager.start()
                    with contextlib.suppress(Disconnected):
                        await bus.ping()
                    await bus.ping()  # waits for the new connection and its subscriptions
            for _ in tasks:
                await bus.publish("jobs/a", "end", receipt=True)
            await asyncio.wait_for(asyncio.gather(*tasks), SECONDS)

    path = str(manager.client().socket.getpeername())
    asyncio.run(run())
    assert sorted(number for each in taken for number in each) == list(range(60))
    assert all(taken)


@pytest.mark.parametrize("background", [False, True])
def test_threads_share_the_messages_of_one_connection(bus: Daemon, background: bool) -> None:
    """Some leave with messages in their queues, others take over; every job is run once."""
    taken: list[int] = []
    jobs_done = threading.Semaphore(0)

    def work(most: int) -> None:
        with worker.subscribe("jobs/", group="w") as jobs:
            begun.release()
            for count, job in enumerate(jobs, 1):
                if job.text == "end":
                    return
                taken.append(int(job.payload))
                jobs_done.release()
                if count == most:
                    return

    begun = threading.Semaphore(0)
    with Bus.connect(bus.path, background=background) as worker, Bus.connect(bus.path) as publisher:
        threads = [threading.Thread(target=work, args=(most,)) for most in (10, 100, 100_000)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=SECONDS)
        for number in range(3_000):
            publisher.publish("jobs/a", str(number))
        for _ in range(3_000):
            assert jobs_done.acquire(timeout=SECONDS)
        publisher.publish("jobs/a", "end", receipt=True)
        for thread in threads:
            thread.join(SECONDS)
    assert sorted(taken) == list(range(3_000))


def test_a_member_that_closes_leaves_its_messages_to_a_waiting_thread(bus: Daemon) -> None:
    with Bus.connect(bus.path) as worker, Bus.connect(bus.path) as publisher:
        leaving, staying = worker.subscribe("jobs/", group="w"), worker.subscribe("jobs/", group="w")
        for number in range(4):
            publisher.publish("jobs/a", str(number), receipt=True)
        worker.ping()
        first = [staying.receive(0), staying.receive(0)]
        rest: list[Item] = []

        def wait() -> None:
            rest.extend([staying.receive(SECONDS), staying.receive(SECONDS)])

        thread = threading.Thread(target=wait)
        thread.start()
        leaving.close()
        thread.join(SECONDS)
        assert sorted(int(item.payload) for item in [*first, *rest] if isinstance(item, Message)) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "new\nline", b"\xff"])
def test_names_of_groups(bus: Daemon, name: str | bytes) -> None:
    with Bus.connect(bus.path) as client:
        with pytest.raises(ProtocolError, match="name of a group"):
            client.subscribe("a", group=name)
        with pytest.raises(ProtocolError, match="name of a group"):
            client.unsubscribe("a", group=name)


def test_a_refused_pattern_is_not_joined(bus: Daemon) -> None:
    with Bus.connect(bus.path) as client:
        with pytest.raises(RemoteRefusal, match="EPERM"):
            client.subscribe("a", "!/bus/x", group="w")
        assert client.publish("a", receipt=True) == 0
        with pytest.raises(RemoteRefusal, match=r"EINVAL.*names no process"):
            client.subscribe("!/event/", group="w")
        with pytest.raises(TypeError, match="group must be str or bytes"):
            client.subscribe("a", group=5)  # type: ignore[arg-type]


# -- the wire


@pytest.mark.parametrize("payload", [None, b"", b"w", b"\0jobs/", b"w\0a\0b", b"a/b\0jobs/", b"\xff\0jobs/", b"x" * 65 + b"\0jobs/"])
def test_malformed_memberships_are_refused(bus: Daemon, payload: bytes | None) -> None:
    client = bus.client()
    for control in (controls.GROUP_JOIN, controls.GROUP_LEAVE):
        client.control(control, payload)
        assert [error_code(packet) for packet in client.barrier()] == ["EINVAL"]


def test_another_user_cannot_take_messages_of_a_group(bus: Daemon) -> None:
    """Nor can it learn anything by joining a group of the same name but that the messages are there."""
    mine, theirs, publisher = bus.client(FIRST), bus.client(SECOND), bus.client()
    for client in (mine, theirs):
        assert join(client) == []
    for number in range(10):
        publisher.publish(b"jobs/a", b"%d" % number)
    publisher.barrier()
    for client in (mine, theirs):
        assert client.barrier() == [HEAD + b"MSG jobs/a\0%d" % number for number in range(10)]


def test_private_keys_can_have_workers_of_their_user(bus: Daemon) -> None:
    workers = [bus.client(FIRST), bus.client(FIRST)]
    other_user, publisher = bus.client(SECOND), bus.client()
    pattern = b"!/cred//%d//jobs/" % FIRST.uid
    for worker in workers:
        assert join(worker, pattern) == []
    other_user.control(controls.GROUP_JOIN, b"w\0" + pattern)
    assert [error_code(packet) for packet in other_user.receive_to_end()] == ["EACCES"]
    for number in range(4):
        publisher.publish(b"%ba" % pattern, b"%d" % number)
    assert publisher.barrier() == []
    assert sorted(packet for worker in workers for packet in worker.barrier()) == [
        HEAD + b"MSG %ba\0%d" % (pattern, number) for number in range(4)
    ]


def test_quotas_count_memberships(bus: Daemon) -> None:
    client = bus.client(FIRST)
    refused: list[bytes] = []
    for number in range(20_000):
        client.control(controls.GROUP_JOIN, b"w\0jobs/%d" % number)
        if number % 500 == 0 and (refused := client.barrier()):
            break
    assert {error_code(packet) for packet in refused} == {"EDQUOT"}


def test_no_user_can_make_messages_of_others_reach_thousands_of_groups(bus: Daemon) -> None:
    """Each group gets a copy, for which the publisher pays with time."""
    attackers = [bus.client(FIRST) for _ in range(18)]
    for number, client in enumerate(attackers):
        for group in range(16):
            client.control(controls.GROUP_JOIN, b"%d\0jobs/" % (16 * number + group))
        refused = [error_code(packet) for packet in client.barrier()]
        assert refused == ([] if number < 16 else ["EDQUOT"] * 16)
    assert [error_code(packet) for packet in join(attackers[0], group=b"0")] == []
    assert [error_code(packet) for packet in join(attackers[0], group=b"17")] == ["EDQUOT"]
    publisher = bus.client(SECOND)
    assert join(bus.client(SECOND)) == []
    publisher.control(controls.RECEIPT_ALWAYS, b"t")
    publisher.publish(b"jobs/a")
    assert publisher.barrier() == [b"CMSG !/bus/receipt\0t\000257"]
    # Who leaves makes room for others.
    attackers[0].control(controls.GROUP_LEAVE, b"1\0jobs/")
    attackers[0].barrier()
    assert join(attackers[17], group=b"new") == []
    # The bus can notice the end of one connection after a request of another.
    observer = bus.client()
    observer.subscribe(b"!/event/disconnect/")
    observer.barrier()
    attackers[1].close()
    observer.receive()
    assert join(attackers[17], group=b"newer") == []


def test_events_count_instances_of_a_pattern_with_and_without_groups(bus: Daemon) -> None:
    """So that programs that know which connection has which pattern, such as the link, need not know groups."""
    observer, worker = bus.client(), bus.client()
    observer.subscribe(b"!/event/")
    observer.barrier()
    steps: list[tuple[bytes, bytes, bytes | None]] = [
        (controls.GROUP_JOIN, b"w\0a", b"subscribe"),
        (controls.GROUP_JOIN, b"v\0a", None),
        (b"", b"a", None),
        (controls.GROUP_LEAVE, b"w\0a", None),
        (controls.GROUP_LEAVE, b"v\0a", None),
        (controls.GROUP_LEAVE, b"v\0a", None),
        (controls.GROUP_JOIN, b"v\0a", None),
        (controls.GROUP_JOIN, b"v\0a/", b"subscribe"),
        (b"-", b"a", None),
        (controls.GROUP_LEAVE, b"v\0a", b"unsubscribe"),
    ]
    for control, payload, event in steps:
        if control in (b"", b"-"):
            (worker.unsubscribe if control else worker.subscribe)(payload)
        else:
            worker.control(control, payload)
        assert worker.barrier() == []
        packets = observer.barrier()
        assert [packet.split(b"/")[2] for packet in packets] == ([event] if event else []), payload
        for packet in packets:
            head, _, body = packet.partition(b"\0")
            pattern = payload.rpartition(b"\0")[2]
            assert head.split(b"/", 4)[4] == pattern
            assert json.loads(body)["pattern"].encode() == pattern


def test_questions_know_groups(bus: Daemon) -> None:
    worker, other, asker = bus.client(), bus.client(), bus.client()
    join(worker)
    join(other)
    members = json.loads(asker.ask(controls.MEMBERS, b"jobs/a"))["members"]
    assert len(members) == 2
    trace = json.loads(asker.ask(controls.TRACE, b"jobs/a"))
    assert [each["patterns"] for each in trace["recipients"]] == [["jobs/ in the group w"]] * 2
    listed = json.loads(asker.ask(controls.SUBSCRIPTIONS))["subscriptions"]
    assert [(each["pattern"], each["group"]) for each in listed] == [("jobs/", "w")] * 2
    assert b"group" in asker.ask(controls.FEATURES).split(b"\n")


# -- restarts


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2])
def test_memberships_outlive_a_restart(manager: Manager, number: signal.Signals) -> None:
    workers = [manager.client(), manager.client()]
    for worker in workers:
        join(worker)
        join(worker)
    workers[1].control(controls.GROUP_LEAVE, b"w\0jobs/")
    workers[1].barrier()
    publisher = manager.client()
    publisher.barrier()
    if number == signal.SIGKILL:
        manager.end(number)
        manager.start()
    else:
        manager.restart()
    for client in (*workers, publisher):
        client.barrier()
    for each in range(6):
        publisher.publish(b"jobs/a", b"%d" % each)
    publisher.barrier()
    received = [[packet for packet in worker.barrier() if packet.startswith(HEAD)] for worker in workers]
    assert [len(each) for each in received] == [3, 3]
    workers[1].control(controls.GROUP_LEAVE, b"w\0jobs/")
    workers[1].barrier()
    publisher.publish(b"jobs/a", b"last")
    publisher.barrier()
    assert workers[0].barrier() == [HEAD + b"MSG jobs/a\0last"]
    assert workers[1].barrier() == []


def test_the_client_says_that_the_bus_knows_no_groups(bus: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbus.features.GROUP_FEATURE", b"feature of a later bus")
    with Bus.connect(bus.path) as client, pytest.raises(Unsupported, match="queue groups"):
        client.subscribe("a", group="w")
