"""Plain clients as workers: they subscribe to ``queue/<queue>/``, get one job at a time, and end it by a message."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sbus import Message
from sbus.protocol import controls
from sbus.sync.streams import Subscription
from tests.integration.store.conftest import RULES, STREAMS, MakeCaller
from tests.support.daemons import Daemon, StartDaemon
from tests.support.relays import wait_for
from tests.support.store_programs import StoreCaller, StoreProgram
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient

SECONDS = 60.0


def next_job(jobs: Subscription) -> tuple[int, str, bytes]:
    """Return lease, key and payload of the next job."""
    item = jobs.receive(SECONDS)
    assert isinstance(item, Message), item
    head, _, lease, key = item.key.split("/", 3)
    assert head == "queue"
    return int(lease), key, item.payload


def error_of(jobs: Subscription, queue: str) -> str:
    """Return the next error that the store sends to a worker."""
    item = jobs.receive(SECONDS)
    assert isinstance(item, Message)
    assert item.key == f"queue/{queue}/0/error"
    return item.payload.decode()


def state_of(store: StoreCaller) -> dict[str, int]:
    """Return the counters and sums of the store."""
    head = store.call("status").head
    found: dict[str, int] = head["counters"] | {
        name: head[name] for name in ("ready", "leased", "delayed", "dead_letters", "subscribed_workers")
    }
    return found


def wait_for_state(store: StoreCaller, **wanted: int) -> None:
    """Wait until the state has these members; it is up to a second old."""
    wait_for(lambda: wanted.items() <= state_of(store).items(), f"{wanted}: {state_of(store)}")


def test_the_bytes_of_the_manual(alice: StoreCaller, bus: Daemon) -> None:
    worker = bus.client(FIRST)
    worker.send(b"SUB queue/mail/")
    alice.put("mail/letter", b"Hello")
    job = worker.receive()
    head, _, payload = job.partition(b"\0")
    assert payload == b"Hello"
    assert head.startswith(b"MSG queue/mail/")
    lease = int(head.split(b"/")[2])
    assert head == b"MSG queue/mail/%d/mail/letter" % lease
    worker.send(b"MSG store/job/mail/%d/ack\0" % lease)
    wait_for_state(alice, ready=0, leased=0, dead_letters=0, acked=1)


def test_a_worker_gets_one_job_at_a_time_as_its_publishers(alice: StoreCaller, caller: MakeCaller) -> None:
    alice.put("mail/a", b"1", b"2", b"3")
    worker = caller(SECOND)
    worker.bus.tell(controls.SENDER_ON)
    with worker.bus.subscribe("queue/mail/") as jobs:
        for number in (b"1", b"2", b"3"):
            item = jobs.receive(SECONDS)
            assert isinstance(item, Message)
            assert item.payload == number
            assert item.sender is not None
            assert item.sender.origin.startswith(f"!/store/!/cred/{FIRST.gid}/{FIRST.uid}/")
            assert alice.call("status")["leased"] <= 1
            assert len(alice.call("peek", queue="mail", state="leased").messages) == 1
            worker.bus.publish(f"store/job/mail/{item.key.split('/')[2]}/ack")
        wait_for_state(alice, ready=0, leased=0, acked=3, jobs_delivered=3, subscribed_workers=1)
    wait_for_state(alice, subscribed_workers=0)


def test_retry_fail_and_extend(alice: StoreCaller) -> None:
    with alice.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", b"job")
        first, _, _ = next_job(jobs)
        alice.bus.publish(f"store/job/mail/{first}/retry", b" 0.01\n")
        second, key, payload = next_job(jobs)
        assert (key, payload) == ("mail/a", b"job")
        assert second != first
        alice.bus.publish(f"store/job/mail/{second}/extend", "3600")
        alice.bus.publish(f"store/job/mail/{second}/fail", "no such address\n")
        wait_for(lambda: alice.call("peek", queue="mail", state="dead").messages, "the dead letter")
    (dead,) = alice.call("peek", queue="mail", state="dead")["messages"]
    assert (dead["tries"], dead["reason"]) == (2, "no such address")
    wait_for_state(alice, retried=1, extended=1, failed=1)


def test_a_job_of_a_worker_that_dies_is_with_another_at_once(alice: StoreCaller, caller: MakeCaller) -> None:
    first = caller(FIRST)
    with first.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", b"job")
        lease, _, _ = next_job(jobs)
        with alice.bus.subscribe("queue/mail/") as others:
            first.bus.close()
            again, _, payload = next_job(others)
            assert payload == b"job"
            assert again != lease
            alice.bus.publish(f"store/job/mail/{lease}/ack")
            assert error_of(others, "mail").startswith("ESTALE ")
            alice.bus.publish(f"store/job/mail/{again}/ack")
    wait_for_state(alice, ready=0, leased=0, acked=1, released=1, stale=1)


def test_a_worker_that_unsubscribes_finishes_its_job_and_gets_no_other(alice: StoreCaller, caller: MakeCaller) -> None:
    worker = caller(FIRST)
    with worker.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", b"1", b"2")
        lease, _, _ = next_job(jobs)
    wait_for_state(alice, subscribed_workers=0, leased=1, ready=1)
    worker.bus.publish(f"store/job/mail/{lease}/ack")
    wait_for_state(alice, acked=1, leased=0, ready=1)
    with worker.bus.subscribe("queue/mail/") as jobs:
        _, _, payload = next_job(jobs)
        assert payload == b"2"


def test_workers_by_call_and_by_subscription_share_a_queue(alice: StoreCaller, caller: MakeCaller) -> None:
    with caller(SECOND).bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", b"1")
        next_job(jobs)
        alice.put("mail/a", b"2")
        assert alice.call("take", queue="mail", wait=30).payloads == [b"2"]


def test_a_call_ends_the_job_of_a_subscriber(alice: StoreCaller) -> None:
    with alice.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", b"1", b"2")
        lease, _, _ = next_job(jobs)
        assert alice.call("ack", queue="mail", leases=[lease]).head == {}
        assert next_job(jobs)[2] == b"2"


def test_a_worker_that_does_not_answer_loses_its_job_after_the_lease(alice: StoreCaller, store: StoreProgram) -> None:
    store.configure(STREAMS.replace('name = "mail"\nstream', 'name = "mail"\nlease = "200ms"\nstream'))
    store.reload()
    with alice.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", b"job")
        leases = [next_job(jobs)[0] for _ in range(3)]
        assert len(set(leases)) == 3
        wait_for_state(alice, leased=0, dead_letters=1)
        alice.bus.publish(f"store/job/mail/{leases[2]}/ack")
        assert error_of(jobs, "mail").startswith("ESTALE ")


def test_several_jobs_at_a_time(alice: StoreCaller, store: StoreProgram) -> None:
    store.configure(STREAMS.replace('name = "mail"\nstream', 'name = "mail"\njobs_per_subscriber = 3\nstream'))
    store.reload()
    with alice.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", *[b"%d" % number for number in range(5)])
        found = [next_job(jobs) for _ in range(3)]
        wait_for_state(alice, leased=3, ready=2)
        alice.bus.publish(f"store/job/mail/{found[1][0]}/ack")
        assert next_job(jobs)[2] == b"3"
        store.configure(STREAMS.replace('name = "mail"\nstream', 'name = "mail"\njobs_per_subscriber = 0\nstream'))
        store.reload()
        alice.bus.publish(f"store/job/mail/{found[0][0]}/ack")
        assert error_of(jobs, "mail").startswith("EACCES ")


def test_a_wildcard_makes_no_worker(alice: StoreCaller, caller: MakeCaller) -> None:
    watcher = caller(None)
    with watcher.bus.subscribe("queue/*/", "queue/", "", "queue/mail/*/mail/a") as seen:
        alice.put("mail/a", b"job")
        while not isinstance(item := seen.receive(SECONDS), Message) or item.key != "mail/a":
            pass
        assert alice.call("take", queue="mail").payloads == [b"job"]
    assert state_of(alice)["subscribed_workers"] == 0


def test_workers_and_their_jobs_outlive_a_restart_of_the_store(alice: StoreCaller, store: StoreProgram) -> None:
    with alice.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", b"1", b"2")
        lease, _, _ = next_job(jobs)
        store.kill()
        store.start()
        wait_for_state(alice, subscribed_workers=1, leased=1, ready=1)
        alice.bus.publish(f"store/job/mail/{lease}/ack")
        assert next_job(jobs)[2] == b"2"


def test_a_job_that_is_too_long_for_subscribers_is_a_dead_letter_with_the_reason(alice: StoreCaller) -> None:
    with alice.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/" + "x" * 4_085, b"long")
        wait_for(lambda: alice.call("peek", queue="mail", state="dead").messages, "the dead letter")
        alice.put("mail/a", b"next")
        assert next_job(jobs)[2] == b"next"
    (dead,) = alice.call("peek", queue="mail", state="dead")["messages"]
    assert (dead["tries"], dead["reason"]) == (3, "3 tries: its key or payload is too long for a subscribed worker")
    wait_for_state(alice, jobs_undeliverable=3)


def test_errors_reach_the_worker(alice: StoreCaller) -> None:
    with alice.bus.subscribe("queue/none/") as jobs:
        assert error_of(jobs, "none").startswith("ENOENT ")
    with alice.bus.subscribe("queue/mail/") as jobs:
        for key, payload, code in (
            ("store/job/mail/5/ack", "", "ESTALE "),
            ("store/job/mail/x/ack", "", "EINVAL "),
            ("store/job/mail/5/eat", "", "EINVAL "),
            ("store/job/mail/5", "", "EINVAL "),
            ("store/job/mail/5/retry", "soon", "EINVAL "),
            ("store/job/mail/5/retry", "nan", "EINVAL "),
            ("store/job/mail/5/extend", "0", "EINVAL "),
            (f"store/job/mail/{'9' * 40}/ack", "", "EINVAL "),
        ):
            alice.bus.publish(key, payload)
            assert error_of(jobs, "mail").startswith(code), key


# What another user cannot do


def test_who_may_not_take_gets_no_job(alice: StoreCaller, mallory: StoreCaller) -> None:
    with mallory.bus.subscribe("queue/own/") as stolen:
        assert error_of(stolen, "own").startswith("EACCES ")
        alice.put("own/a", b"job")
        with alice.bus.subscribe("queue/own/") as jobs:
            assert next_job(jobs)[2] == b"job"
    wait_for_state(alice, workers_refused=1)


def test_others_do_not_see_jobs_and_cannot_end_them(alice: StoreCaller, mallory: StoreCaller, caller: MakeCaller) -> None:
    with mallory.bus.subscribe("queue/*/") as seen, alice.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", b"job")
        lease, _, _ = next_job(jobs)
        for thief in (mallory, caller(FIRST)):
            for verb in ("ack", "retry", "fail", "extend"):
                for forged in (lease, lease + 1, 10**17):
                    thief.bus.publish(f"store/job/mail/{forged}/{verb}")
            thief.bus.ping()
        alice.bus.publish(f"store/job/mail/{lease}/ack")
        wait_for_state(alice, acked=1, failed=0, retried=0, stale=24)
        alice.bus.publish("queue/mail/end")
        keys = []
        while "queue/mail/end" not in keys:
            item = seen.receive(SECONDS)
            assert isinstance(item, Message)
            keys.append(item.key)
        assert keys == ["queue/mail/0/error"] * 12 + ["queue/mail/end"]  # what concerns its own forgeries


def test_a_flood_of_forged_messages_does_not_stop_a_worker(alice: StoreCaller, mallory: StoreCaller) -> None:
    with alice.bus.subscribe("queue/mail/") as jobs:
        alice.put("mail/a", *[b"%d" % number for number in range(20)])
        for number in range(20):
            lease, _, payload = next_job(jobs)
            assert payload == b"%d" % number
            for forged in range(200):
                mallory.bus.publish(f"store/job/mail/{forged}/ack", b"x" * 1_000)
            alice.bus.publish(f"store/job/mail/{lease}/ack")
    wait_for_state(alice, acked=20)


def test_a_user_has_a_limited_number_of_subscribed_workers(alice: StoreCaller, mallory: StoreCaller, caller: MakeCaller) -> None:
    workers = [caller(SECOND) for _ in range(4)]
    subscriptions = [each.bus.subscribe("queue/mail/") for each in workers]
    for each in subscriptions:
        each.__enter__()
    wait_for_state(alice, subscribed_workers=4)
    with mallory.bus.subscribe("queue/mail/") as refused:
        assert error_of(refused, "mail").startswith("EDQUOT ")
        with alice.bus.subscribe("queue/mail/") as jobs:
            alice.put("mail/a", *[b""] * 10)
            next_job(jobs)


def test_subscribing_again_and_again_gives_no_second_job(alice: StoreCaller, mallory: StoreCaller) -> None:
    alice.put("mail/a", *[b"%d" % number for number in range(5)])
    taken: list[tuple[int, str, bytes]] = []
    for _ in range(5):
        with mallory.bus.subscribe("queue/mail/") as jobs:
            if not taken:
                taken.append(next_job(jobs))
            mallory.bus.ping()
    wait_for_state(alice, leased=1, ready=4, subscribed_workers=0)


def test_forged_jobs_are_refused_by_the_rules_of_the_package(daemon: StartDaemon, needs_root: None) -> None:
    shipped = (Path(__file__).parents[3] / "etc/sbusd.toml.d/50-store.toml").read_text()
    bus = daemon(config=shipped.replace('"sbus-store"', '"root"').replace('["root", "root"]', '["root"]'))
    worker, forger = bus.client(FIRST), bus.client(SECOND)
    worker.send(b"SUB queue/mail/")
    worker.send(b"MSG store/job/mail/1/ack\0")
    forger.send(b"MSG queue/mail/1/mail/a\0forged")
    assert b"EPERM" in forger.receive()
    forger.send(b"SUB store/job/")
    assert b"EPERM" in forger.receive()
    root = bus.client()
    root.send(b"MSG queue/mail/1/mail/a\0true")
    assert worker.receive() == b"MSG queue/mail/1/mail/a\0true"


@pytest.fixture
def plain_bus(daemon: StartDaemon) -> Daemon:
    """A bus where the store has no right to deliver."""
    return daemon(config=f"[rights]\nvouch = {{ users = [0] }}\npresence = {{ users = [0] }}\n{RULES}")


def test_without_the_right_a_worker_gets_an_explanation_in_the_log(plain_bus: Daemon, tmp_path: Path, needs_root: None) -> None:
    with (
        StoreProgram(tmp_path, plain_bus.path, STREAMS) as store,
        StoreCaller(plain_bus.path, FIRST) as alice,
        alice.bus.subscribe("queue/mail/"),
    ):
        alice.put("mail/a", b"job")
        wait_for(lambda: "does not let the store" in store.log, "the log")
        assert alice.call("take", queue="mail", wait=30).payloads == [b"job"]


def test_a_client_by_hand(bus: Daemon, alice: StoreCaller) -> None:
    """The life of a worker is a few packets."""
    worker: RawClient = bus.client(SECOND)
    worker.send(b"SUB queue/mail/")
    wait_for_state(alice, subscribed_workers=1)
    begun = time.monotonic()
    for number in range(10):
        alice.put("mail/a", b"%d" % number)
        job = worker.receive()
        assert job.endswith(b"\0%d" % number)
        worker.send(b"MSG store/job/mail/%b/ack\0" % job.split(b"/")[2])
    wait_for_state(alice, acked=10, leased=0)
    assert time.monotonic() - begun < 10 * SECONDS
