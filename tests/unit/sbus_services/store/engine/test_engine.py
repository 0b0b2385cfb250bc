"""What the models of tests/property leave out: hostile users, long keys, limits, delays in order, reconfiguration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sbus_programs.config.store import QueueSettings, StoreLimits, StoreSettings, StreamSettings
from sbus_programs.config.users import SubordinateIds, SubordinateRange
from sbus_services.store.engine import intake
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.intake import MAX_MESSAGE_BYTES
from sbus_services.store.engine.messages import EngineError, Gap, NewMessage, PutResult, Sender, Stored, Worker
from tests.support.store_clocks import OneClock

ALICE, BOB = Sender(1000, 1000, 7), Sender(1001, 1001, 8)
WORKER = Worker(5, 1000)
STATE = StreamSettings("state", ("state/",), last=1, max_keys=200_000, max_keys_per_user=150_000)
LOG = StreamSettings("log", ("log/",))
MAIL = StreamSettings("mail", ("mail/",))
QUEUE = QueueSettings("mail", "mail", in_order="key")


class Clock:
    """The time, which a test sets."""

    now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


def opened(folder: Path, *streams: StreamSettings, queues: tuple[QueueSettings, ...] = (), clock: Clock | None = None) -> Engine:
    """Return an engine with *streams*."""
    return Engine(folder / "store.sqlite", StoreSettings(streams=streams, queues=queues), OneClock(clock or Clock()), 0)


def error_of(result: PutResult | EngineError) -> str:
    """Return the code of an error."""
    assert isinstance(result, EngineError)
    return result.code


def test_many_short_keys_are_found_page_by_page(tmp_path: Path) -> None:
    engine = opened(tmp_path, STATE)
    keys = sorted(b"state/%d" % number for number in range(20_000))
    engine.begin()
    for start in range(0, len(keys), 500):
        engine.put_many("state", [NewMessage(key, b"", ALICE) for key in keys[start : start + 500]])
    engine.commit()
    page = engine.last("state", b"*/19999")
    assert (page.items, page.next_key is None) == ([], False)  # a bounded part of the keys was looked at
    found, after = [], None
    while True:
        page = engine.last("state", b"", after, 10_000, 1 << 30)
        found += [each.key for each in page.items]
        if (after := page.next_key) is None:
            break
    assert found == keys
    assert [each.key for each in engine.last("state", b"state/9999").items] == [b"state/9999"]
    engine.close()


def test_long_keys_and_payloads_of_any_bytes(tmp_path: Path) -> None:
    engine = opened(tmp_path, STATE)
    keys = [b"state/" + bytes(range(1, 256)) * 16 + b"%05d" % number for number in range(9)]
    keys = [key[-4_096:] if len(key) > 4_096 else key for key in (key.ljust(4_096, b"k") for key in keys)]
    payload = b"\xff" * (MAX_MESSAGE_BYTES - 4_096)
    for key in keys:
        engine.put("state", NewMessage(key, payload, ALICE))
    assert [each.key for each in engine.last("state", max_bytes=1 << 30).items] == sorted(keys)
    for wrong, code in ((NewMessage(keys[0], payload + b"x", ALICE), "EMSGSIZE"), (NewMessage(keys[0] + b"x", b"", ALICE), "EMSGSIZE")):
        assert error_of(engine.put_many("state", [wrong])[0]) == code
    for key in (b"!/cred/1/2/3/x", b"other", b"", b"state/a\0b", b"store/put"):
        assert error_of(engine.put_many("state", [NewMessage(key, b"", ALICE)])[0]) == "EINVAL"
    engine.close()


def test_equal_ids_of_two_users_do_not_collide(tmp_path: Path) -> None:
    engine = opened(tmp_path, LOG)
    first = engine.put("log", NewMessage(b"log/a", b"1", ALICE, b"id"))
    second = engine.put("log", NewMessage(b"log/a", b"2", BOB, b"id"))
    assert (first, second) == (PutResult(1), PutResult(2))
    assert engine.put("log", NewMessage(b"log/a", b"3", BOB, b"id")) == PutResult(2, is_duplicate=True)
    engine.close()


def test_the_quota_of_one_user_leaves_others_alone(tmp_path: Path) -> None:
    engine = opened(tmp_path, replace(LOG, max_bytes_per_user=1_000), replace(STATE, max_keys_per_user=2))
    results = engine.put_many("log", [NewMessage(b"log/b", b"x" * 500, BOB)] * 3 + [NewMessage(b"log/a", b"x" * 500, ALICE)])
    assert [isinstance(each, PutResult) for each in results] == [True, False, False, True]
    assert error_of(results[1]) == "EDQUOT"
    results = engine.put_many("state", [NewMessage(b"state/%d" % n, b"", BOB) for n in range(3)] + [NewMessage(b"state/a", b"", ALICE)])
    assert [isinstance(each, PutResult) for each in results] == [True, True, False, True]
    engine.close()


CONTAINERS = SubordinateIds([SubordinateRange(100_000, 65_536, BOB.uid)])
"""The ids from 100000 on are those of Bob."""

INSIDE, DEEP_INSIDE = replace(BOB, uid=100_000), replace(BOB, uid=100_999)


def test_a_user_with_several_ids_removes_no_message_of_others(tmp_path: Path) -> None:
    """Each of a thousand ids could store as much as a user: together they removed everything that others had stored."""
    engine = opened(tmp_path, replace(LOG, max_bytes=20_000, max_bytes_per_user=10_000), replace(STATE, max_keys=4, max_keys_per_user=2))
    engine.charge(CONTAINERS)
    alice = [NewMessage(b"log/alice", b"x" * 900, ALICE)] * 9
    assert all(isinstance(each, PutResult) for each in engine.put_many("log", alice))
    for uid in (BOB.uid, *range(100_000, 100_050)):
        engine.put_many("log", [NewMessage(b"log/bob", b"x" * 900, replace(BOB, uid=uid))] * 9)
    kept = [each.key for each in engine.read("log", 0, 99, 1 << 20).items if isinstance(each, Stored)]
    assert (kept.count(b"log/alice"), kept.count(b"log/bob")) == (9, 9)
    with pytest.raises(EngineError, match=r"EDQUOT .*the messages of user 1001"):
        engine.put("log", NewMessage(b"log/bob", b"x" * 900, DEEP_INSIDE))
    for number, sender in enumerate((BOB, INSIDE, DEEP_INSIDE)):
        result = engine.put_many("state", [NewMessage(b"state/%d" % number, b"", sender)])
        assert isinstance(result[0], PutResult) == (number < 2)
    assert isinstance(engine.put("state", NewMessage(b"state/alice", b"", ALICE)), PutResult)
    engine.close()


def test_several_ids_have_the_leases_and_readers_of_one_user(tmp_path: Path) -> None:
    limits = StoreLimits(leases=2, readers=2)
    settings = StoreSettings(streams=(MAIL,), queues=(replace(QUEUE, in_order="none"),), limits=limits)
    engine = Engine(tmp_path / "store.sqlite", settings, OneClock(Clock()), 0)
    engine.put_many("mail", [NewMessage(b"mail/a", b"", ALICE)] * 4)
    (held,) = engine.take("mail", Worker(5, 100_000), 1, 1_000).jobs
    engine.charge(CONTAINERS)  # also for what the ids have already
    engine.take("mail", Worker(6, 1001), 1, 1_000)
    with pytest.raises(EngineError, match=r"EDQUOT .*user 1001 has 2 jobs"):
        engine.take("mail", Worker(7, 100_001), 1, 1_000)
    assert engine.statistics().leases == {1001: 2}
    assert engine.ack("mail", [held.lease], Worker(5, 1001)) == [False]  # the job of another worker
    assert engine.ack("mail", [held.lease], Worker(5, 100_000)) == [True]
    assert engine.statistics().leases == {1001: 1}
    for uid in (1001, 100_000):
        engine.set_reader("mail", uid, "r", 1)
    with pytest.raises(EngineError, match=r"EDQUOT .*user 1001 has 2 readers"):
        engine.set_reader("mail", 100_001, "r", 1)
    engine.set_reader("mail", ALICE.uid, "r", 1)
    assert engine.readers("mail", 100_000) == [(100_000, "r", 1)]  # each id has its own
    engine.drop_reader("mail", 1001, "r")
    engine.set_reader("mail", 100_001, "r", 1)
    engine.close()


def test_the_sender_of_a_message_is_the_id_and_not_who_pays(tmp_path: Path) -> None:
    engine = opened(tmp_path, LOG, STATE)
    engine.charge(CONTAINERS)
    for sender in (INSIDE, DEEP_INSIDE, BOB):
        for stream in ("log", "state"):
            found = engine.put(stream, NewMessage(b"%b/%d" % (stream.encode(), sender.uid), b"", sender, b"id"))
            assert not found.is_duplicate  # of one id only its own
    assert engine.put("log", NewMessage(b"log/100999", b"", DEEP_INSIDE, b"id")) == PutResult(2, is_duplicate=True)
    assert [each.sender for each in engine.read("log", 0, 9, 9_999).items if isinstance(each, Stored)] == [INSIDE, DEEP_INSIDE, BOB]
    assert {each.sender for each in engine.last("state").items} == {INSIDE, DEEP_INSIDE, BOB}
    assert [(each.uid, each.messages) for each in engine.statistics().streams[0].users] == [(BOB.uid, 3)]
    assert engine.forget("state", b"state/100000", BOB.uid).count == 0  # a right of the id itself
    assert engine.forget("state", b"state/100000", INSIDE.uid).count == 1
    assert [(each.message.key, each.message.sender) for each in engine.sweep().values] == [(b"state/100000", INSIDE)]
    engine.close()


def test_hosts_have_accounts_of_their_own(tmp_path: Path) -> None:
    engine = opened(tmp_path, replace(LOG, max_bytes_per_user=1_000))
    alpha, beta = (Sender(-1, -1, -1, f"!/host/{name}/!/cred/1/1/1") for name in ("alpha", "beta"))
    results = engine.put_many("log", [NewMessage(b"log/a", b"x" * 500, each) for each in (alpha, alpha, beta)])
    assert [isinstance(each, PutResult) for each in results] == [True, False, True]
    assert {(each.uid, each.host) for each in engine.statistics().streams[0].users} == {(-1, "!/host/alpha"), (-1, "!/host/beta")}
    assert [each.sender for each in engine.read("log", 0, 9, 9_999).items if isinstance(each, Stored)] == [alpha, beta]
    engine.close()


def test_another_user_cannot_use_a_lease(tmp_path: Path) -> None:
    engine = opened(tmp_path, MAIL, queues=(QUEUE,))
    engine.put("mail", NewMessage(b"mail/a", b"", ALICE))
    (job,) = engine.take("mail", WORKER, 1, 1_000).jobs
    for thief in (Worker(5, 1001), Worker(6, 1000), Worker(6, 1001)):
        assert engine.ack("mail", [job.lease], thief) == [False]
        assert engine.fail("mail", [job.lease], thief, "x") == [False]
        assert engine.retry("mail", [job.lease], thief) == [False]
        assert engine.extend("mail", [job.lease], thief, 1_000) == [False]
    assert engine.ack("mail", [job.lease, job.lease], WORKER) == [True, False]
    engine.close()


def test_a_delayed_job_does_not_block_its_key(tmp_path: Path) -> None:
    clock = Clock()
    engine = opened(tmp_path, MAIL, queues=(QUEUE,), clock=clock)
    engine.put("mail", NewMessage(b"mail/a", b"late", BOB, due_ms=clock.now + 60_000))
    engine.put("mail", NewMessage(b"mail/a", b"now", ALICE))
    assert [each.stored.payload for each in engine.take("mail", WORKER, 9, 1_000).jobs] == [b"now"]
    engine.close()


def test_the_end_of_a_last_value_uncovers_no_older_one(tmp_path: Path) -> None:
    clock = Clock()
    engine = opened(tmp_path, replace(STATE, last=3), clock=clock)
    for key, sender in ((b"state/expired", ALICE), (b"state/forgotten", BOB)):
        engine.put("state", NewMessage(key, b"old", sender))
        engine.put("state", NewMessage(key, b"new", ALICE, expires_ms=clock.now + 1_000 if key == b"state/expired" else 0))
    clock.now += 1_000
    assert [each.key for each in engine.last("state").items] == [b"state/forgotten"]
    engine.sweep()
    assert engine.forget("state", b"state/forgotten", ALICE.uid).count == 2
    assert engine.last("state").items == []
    assert engine.statistics().streams[0].keys == 0
    engine.close()


def test_a_job_that_kills_its_workers_waits_for_the_backoff(tmp_path: Path) -> None:
    clock = Clock()
    engine = opened(tmp_path, MAIL, queues=(replace(QUEUE, backoff=(2.0, 10.0), tries=3),), clock=clock)
    engine.put("mail", NewMessage(b"mail/a", b"poison", ALICE))
    engine.put("mail", NewMessage(b"mail/b", b"good", ALICE))
    deaths = []
    for _ in range(30):
        engine.sweep()
        for job in sorted(engine.take("mail", WORKER, 9, 1_000).jobs, key=lambda each: each.stored.payload):
            if job.stored.payload == b"good":
                engine.ack("mail", [job.lease], WORKER)
            else:
                deaths.append(clock.now)
                engine.release(WORKER.connection)
        clock.now += 1_000
    assert [each - deaths[0] for each in deaths] == [0, 2_000, 12_000]
    assert [each.reason for each in engine.jobs("mail", "dead")] == ["3 tries: the worker disconnected"]
    engine.close()


def test_the_jobs_of_a_worker_are_released_in_steps(tmp_path: Path) -> None:
    """The connection of another worker, which took jobs meanwhile, can have the same number."""
    engine = opened(tmp_path, MAIL, queues=(replace(QUEUE, in_order="none", backoff=(0.0,)),))
    engine.put_many("mail", [NewMessage(b"mail/a", b"", ALICE)] * 700)
    assert len(engine.take("mail", WORKER, 600, 1 << 20).jobs) == 600
    steps = [engine.release(WORKER.connection)]
    later = engine.take("mail", WORKER, 10, 1 << 20).jobs
    while steps[-1].until:
        steps.append(engine.release(WORKER.connection, steps[-1].until))
    assert [(each.jobs, each.queues) for each in steps] == [(256, {"mail"}), (256, {"mail"}), (88, {"mail"})]
    assert engine.leases_of("mail", WORKER) == {job.lease for job in later}
    assert engine.ready("mail") == 690
    engine.close()


def test_many_gaps_become_fewer_and_none_is_uncounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_GAPS", 3)
    engine = opened(tmp_path, LOG)
    for number in range(6):
        engine.add_gap("log", b"log/%d" % number, 2, "lost")
    gaps = [each for each in engine.read("log", 0, 99, 9_999).items if isinstance(each, Gap)]
    assert (len(gaps), sum(each.count for each in gaps)) == (3, 12)
    engine.close()


def open_gaps(engine: Engine) -> tuple[int, int, int]:
    """Return the gaps that are not acknowledged, the messages missing there, and the gaps of an unknown number."""
    figures = engine.statistics()
    return figures.open_gaps, figures.open_missing, figures.open_unknown


def test_gaps_are_open_until_they_are_acknowledged(tmp_path: Path) -> None:
    clock = Clock()
    engine = opened(tmp_path, LOG, MAIL, clock=clock)
    engine.add_gap("log", b"log/", 5, "old")
    clock.now += 400 * 86_400_000  # no date ends it
    engine.add_gap("mail", b"mail/", 0, "the store did not run")
    engine.close()
    engine = opened(tmp_path, MAIL, clock=clock)  # also those of a stream that left the configuration
    assert open_gaps(engine) == (2, 5, 1)
    assert [engine.acknowledge(7, max_rows=1) for _ in range(3)] == [1, 1, 0]
    assert open_gaps(engine) == (0, 0, 0)
    assert sum(each.gaps for each in engine.statistics().streams) == 2, "readers still get them"
    engine.close()


def test_an_acknowledged_gap_does_not_grow(tmp_path: Path) -> None:
    engine = opened(tmp_path, LOG)
    for _ in range(2):
        engine.add_gap("log", b"log/", 5, "lost")
    assert engine.acknowledge(7) == 1, "two that follow each other are one"
    for _ in range(2):
        engine.add_gap("log", b"log/", 3, "lost")
    assert open_gaps(engine) == (1, 6, 0)
    assert [(each.count, each.reason) for each in engine.read("log", 0, 9, 9_999).items if isinstance(each, Gap)] == [
        (10, "lost"),
        (6, "lost"),
    ]
    engine.close()


@pytest.mark.parametrize("acknowledged", [0, 1, 2, 3])
def test_gaps_that_become_one_are_acknowledged_if_both_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acknowledged: int) -> None:
    monkeypatch.setattr(intake, "MAX_GAPS", 3)
    engine = opened(tmp_path, LOG)
    for number in range(3):
        engine.add_gap("log", b"log/%d" % number, 2, "lost")
        if number + 1 == acknowledged:
            assert engine.acknowledge(7) == acknowledged
    engine.add_gap("log", b"log/3", 2, "lost")  # the oldest two become one
    assert open_gaps(engine)[1] == {0: 8, 1: 8, 2: 4, 3: 2}[acknowledged]
    engine.close()


def test_streams_and_queues_that_leave_the_configuration_keep_their_messages(tmp_path: Path) -> None:
    engine = opened(tmp_path, MAIL, queues=(replace(QUEUE, in_order="none"),))
    for payload in (b"1", b"2"):
        engine.put("mail", NewMessage(b"mail/a", payload, ALICE))
    engine.configure(StoreSettings(streams=(MAIL,)))
    engine.put("mail", NewMessage(b"mail/a", b"3", ALICE))
    engine.configure(StoreSettings())
    with pytest.raises(EngineError, match=r"^ENOENT"):
        engine.put("mail", NewMessage(b"mail/a", b"4", ALICE))
    assert [(each.name, each.is_configured, each.messages) for each in engine.statistics().streams] == [("mail", False, 3)]
    engine.configure(StoreSettings(streams=(MAIL,), queues=(QUEUE,)))
    done = []
    while jobs := engine.take("mail", WORKER, 9, 1_000).jobs:
        done += [each.stored.payload for each in jobs]
        engine.ack("mail", [each.lease for each in jobs], WORKER)
    assert done == [b"1", b"2", b"3"]
    engine.configure(StoreSettings())
    engine.purge("mail")
    assert engine.statistics().streams == []
    engine.close()


def test_a_stream_has_nothing_of_a_forgotten_one_with_its_number(tmp_path: Path) -> None:
    engine = opened(tmp_path, LOG)
    engine.put_unpublished("log", [NewMessage(b"log/a", b"1", ALICE)] * 5)
    run = engine.run
    engine.close()
    engine = opened(tmp_path)
    engine.purge("log")
    engine.configure(StoreSettings(streams=(STATE,)))
    assert engine.next_unpublished({}) is None
    engine.put_unpublished("state", [NewMessage(b"state/a", b"1", ALICE)])
    assert engine.statistics().to_publish == 1
    assert engine.valid_from("state", 6, run) == 1
    engine.close()


def test_keys_are_counted_when_a_stream_begins_to_keep_last_values(tmp_path: Path) -> None:
    engine = opened(tmp_path, LOG)
    engine.put_many("log", [NewMessage(b"log/%d" % (n % 3), b"", ALICE) for n in range(7)])
    engine.configure(StoreSettings(streams=(replace(LOG, last=1),)))
    assert engine.statistics().streams[0].keys == 3
    engine.put("log", NewMessage(b"log/0", b"new", ALICE))
    assert len([each for each in engine.read("log", 0, 99, 9_999).items if isinstance(each, Stored) and each.key == b"log/0"]) == 1
    engine.close()


def test_the_number_of_a_time_is_found(tmp_path: Path) -> None:
    clock = Clock()
    engine = opened(tmp_path, LOG, clock=clock)
    start = clock.now
    for _ in range(10):
        engine.put("log", NewMessage(b"log/a", b"", ALICE))
        clock.now += 1_000
    engine.purge("log", 6, from_seq=4)
    assert [engine.seq_at("log", start + each) for each in (-5, 0, 1, 3_000, 9_000, 9_001)] == [1, 1, 2, 6, 10, 11]
    engine.close()
