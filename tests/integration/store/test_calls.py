"""The calls of sbus-store on a real bus: what is put is stored, read, published, and survives a restart."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sbus import Bus, Message
from sbus.protocol import controls
from tests.integration.store.conftest import STREAMS, MakeCaller
from tests.support.daemons import Daemon
from tests.support.relays import wait_for
from tests.support.store_programs import StoreCaller, StoreProgram
from tests.support.users import FIRST, SECOND

SECONDS = 60.0


def test_what_is_put_is_stored_with_its_sender_and_published(alice: StoreCaller, caller: MakeCaller) -> None:
    reader = caller(SECOND)
    reader.bus.tell(controls.SENDER_ON)
    with reader.bus.subscribe("log/") as live:
        reader.bus.ping()
        assert alice.put("log/a", b"one", b"two") == [1, 2]
        items = [live.receive(SECONDS) for _ in range(2)]
    assert all(isinstance(each, Message) for each in items)
    assert [(each.key, each.payload) for each in items if isinstance(each, Message)] == [("log/a", b"one"), ("log/a", b"two")]
    for each in items:
        assert isinstance(each, Message)
        assert each.sender is not None
        assert each.sender.origin == f"!/store/!/cred/{FIRST.gid}/{FIRST.uid}/{each.sender.origin.rpartition('/')[2]}"
    found = reader.call("read", stream="log", from_="first")
    assert found.messages == [(b"log/a", b"one"), (b"log/a", b"two")]
    assert [(each["uid"], each["seq"], each["stream"]) for each in found["messages"]] == [(FIRST.uid, 1, "log"), (FIRST.uid, 2, "log")]
    assert (found["next"], found["last"]) == (3, 2)


def test_ordinary_messages_are_stored_once(alice: StoreCaller, caller: MakeCaller) -> None:
    alice.put("log/put", b"put")
    alice.bus.publish("log/ordinary", "ordinary")
    alice.bus.ping()
    reader = caller(SECOND)
    found = reader.call("read", stream="log", from_=2, wait=30)
    assert found.messages == [(b"log/ordinary", b"ordinary")]
    alice.put("log/put", b"again")
    # What the store publishes itself does not come back as an ordinary message.
    assert reader.call("read", stream="log", from_="first").payloads == [b"put", b"ordinary", b"again"]


def test_last_values_are_listed_by_key_in_pages(alice: StoreCaller) -> None:
    for key in ("net/b", "net/a", "net/c", "net/a"):
        alice.put(key, key.encode() + b"!")
    first = alice.call("last", patterns=["net/"], max=2)
    assert [key for key, _ in first.messages] == [b"net/a", b"net/b"]
    rest = alice.call("last", patterns=["net/"], after=first["next"])
    assert [key for key, _ in rest.messages] == [b"net/c"]
    assert "next" not in rest.head
    assert alice.call("last", patterns=["net/b", "net/*"]).messages == [(b"net/a", b"net/a!"), (b"net/b", b"net/b!"), (b"net/c", b"net/c!")]
    assert alice.error("last", patterns=["log/"]).startswith("ENOENT ")
    assert alice.call("forget", stream="state", keys=["net/a"])["count"] == 1
    assert [key for key, _ in alice.call("last", patterns=["net/"]).messages] == [b"net/b", b"net/c"]


def test_long_values_come_in_several_pages(alice: StoreCaller) -> None:
    for number in range(6):
        alice.put(f"net/{number}", bytes(60_000))
    found: list[bytes] = []
    after = None
    while True:
        page = alice.call("last", patterns=["net/"], after=after)
        assert page.messages
        found += [key for key, _ in page.messages]
        after = page.head.get("next")
        if after is None:
            break
    assert found == [b"net/%d" % number for number in range(6)]


def test_a_put_with_an_id_is_one_message(alice: StoreCaller) -> None:
    message = (b"log/a", b"x")
    run = alice.call("position", stream="log", reader="me", seq=1)["run"]
    assert alice.call("put", [message], messages=[{"id": "m1"}]).head == {"seqs": [1], "run": run}
    assert alice.call("put", [message], messages=[{"id": "m1"}]).head == {"seqs": [1], "duplicates": [0], "run": run}


def test_each_message_of_a_put_has_its_own_error(alice: StoreCaller) -> None:
    found = alice.call(
        "put",
        [(b"log/a", b"1"), (b"nowhere", b"2"), (b"", b"3"), (b"log/b", b"4"), (b"log/c", b"5")],
        messages=[{}, {}, {}, {"delay": 1}, {"idd": 7}],
    )
    assert found["seqs"] == [1, 0, 0, 0, 0]
    assert {index: code for index, (code, _) in found["errors"].items()} == {"1": "ENOENT", "2": "EINVAL", "3": "EINVAL", "4": "EINVAL"}
    assert "valid are: at, delay, expire, id" in found["errors"]["4"][1]


def test_a_reader_continues_where_its_position_is(alice: StoreCaller) -> None:
    alice.put("log/a", b"1", b"2", b"3")
    page = alice.call("read", stream="log", reader="me", max=2)
    assert page.payloads == [b"1", b"2"]
    assert alice.call("position", stream="log", reader="me", seq=page["next"])["seq"] == 3
    assert alice.call("read", stream="log", reader="me").payloads == [b"3"]
    assert alice.call("read", stream="log", reader="me", from_="last").payloads == [b"3"]
    assert alice.call("read", stream="log", from_="new").payloads == []
    assert alice.call("position", stream="log", reader="me", drop=True)["seq"] == 3
    assert alice.error("position", stream="log", reader="me").startswith("ENOENT ")
    assert alice.call("read", stream="log", time=0).payloads == [b"1", b"2", b"3"]
    assert alice.call("read", stream="log", time=time.time() + 1_000).payloads == []


def test_a_read_waits_for_a_message_that_matches(alice: StoreCaller, caller: MakeCaller) -> None:
    reader, found = caller(FIRST), []
    thread = threading.Thread(target=lambda: found.append(reader.call("read", stream="log", from_="new", pattern="log/wanted", wait=30)))
    thread.start()
    wait_for(lambda: waiting(alice, "waiting_reads"), "the call that waits")
    alice.put("log/other", b"no")
    alice.put("log/wanted", b"yes")
    thread.join(SECONDS)
    assert [each.payloads for each in found] == [[b"yes"]]


def waiting(caller: StoreCaller, name: str) -> int:
    """Return a number in the status of the store, which is a second old at most."""
    status = json.loads(caller.bus.call("store/status", timeout=SECONDS))
    return int(status[name])


def test_a_job_goes_from_take_to_ack(alice: StoreCaller) -> None:
    alice.put("mail/a", b"1", b"2")
    jobs = alice.call("take", queue="mail", max=5)
    assert jobs.payloads == [b"1", b"2"]
    assert [each["tries"] for each in jobs["jobs"]] == [1, 1]
    assert alice.call("peek", queue="mail", state="leased").payloads == [b"1", b"2"]
    assert alice.call("extend", queue="mail", leases=jobs.leases, lease=90).head == {}
    assert alice.call("ack", queue="mail", leases=jobs.leases).head == {}
    again = alice.call("ack", queue="mail", leases=jobs.leases)["errors"]
    assert {lease: code for lease, (code, _) in again.items()} == {str(lease): "ESTALE" for lease in jobs.leases}
    assert alice.call("take", queue="mail").payloads == []


def test_a_job_that_fails_is_tried_again_and_is_a_dead_letter_then(alice: StoreCaller, caller: MakeCaller) -> None:
    listener = caller(SECOND)
    with listener.bus.subscribe("dead/mail/") as dead:
        listener.bus.ping()
        alice.put("mail/a", b"bad")
        for _ in range(3):
            jobs = alice.call("take", queue="mail", wait=30)
            assert jobs.payloads == [b"bad"]
            assert alice.call("retry", queue="mail", leases=jobs.leases).head == {}
        letter = dead.receive(SECONDS)
    assert isinstance(letter, Message)
    assert (letter.key, letter.payload) == ("dead/mail/mail/a", b"bad")
    listed = alice.call("peek", queue="mail", state="dead")
    assert listed.payloads == [b"bad"]
    assert (listed["messages"][0]["tries"], bool(listed["messages"][0]["reason"])) == (3, True)
    # A stream stores what is published under the prefix.
    assert alice.call("read", stream="dead", from_="first", wait=30).payloads == [b"bad"]
    owner = caller(None)
    assert owner.call("revive", queue="mail", seqs=[listed["messages"][0]["seq"]])["count"] == 1
    assert alice.call("take", queue="mail", wait=30).payloads == [b"bad"]


def test_a_delayed_job_comes_when_it_is_due(alice: StoreCaller) -> None:
    alice.put("mail/a", b"later", delay=3_600)
    assert alice.call("peek", queue="mail", state="delayed").payloads == [b"later"]
    assert alice.call("take", queue="mail").payloads == []
    begin = time.time()
    alice.put("mail/a", b"soon", delay=0.5)
    assert alice.call("take", queue="mail", wait=30).payloads == [b"soon"]
    assert time.time() - begin >= 0.45


def test_a_job_of_a_worker_that_disconnects_goes_to_one_that_waits(alice: StoreCaller, caller: MakeCaller) -> None:
    dying, found = caller(FIRST), []
    alice.put("mail/a", b"job")
    assert dying.call("take", queue="mail").payloads == [b"job"]
    thread = threading.Thread(target=lambda: found.append(alice.call("take", queue="mail", wait=30)))
    thread.start()
    observer = caller(None)
    wait_for(lambda: waiting(observer, "waiting_takes"), "the worker that waits")
    dying.bus.close()
    thread.join(SECONDS)
    assert [(each.payloads, each["jobs"][0]["tries"]) for each in found] == [([b"job"], 2)]


def test_a_restart_loses_nothing_and_answers_those_that_wait(store: StoreProgram, alice: StoreCaller, caller: MakeCaller) -> None:
    alice.put("log/a", b"kept")
    alice.put("mail/a", b"job", b"other")
    jobs = alice.call("take", queue="mail")
    waiter, words = caller(FIRST), []
    thread = threading.Thread(target=lambda: words.append(waiter.error("read", stream="log", from_="new", wait=30)))
    thread.start()
    wait_for(lambda: waiting(alice, "waiting_reads"), "the call that waits")
    assert store.stop() == 0
    thread.join(SECONDS)
    assert words == ["EAGAIN restarting, try again"]
    store.start()
    assert alice.call("read", stream="log", from_="first").payloads[0] == b"kept"
    # The lease belongs to the connection, which is still there.
    assert alice.call("peek", queue="mail", state="leased").payloads == [b"job"]
    assert alice.call("ack", queue="mail", leases=jobs.leases).head == {}
    assert alice.call("take", queue="mail").payloads == [b"other"]


def test_leases_of_a_worker_that_ended_while_the_store_did_not_run_are_released(
    store: StoreProgram, alice: StoreCaller, caller: MakeCaller
) -> None:
    dying = caller(FIRST)
    alice.put("mail/a", b"job")
    assert dying.call("take", queue="mail").payloads == [b"job"]
    store.kill()
    dying.bus.close()
    store.start()
    assert alice.call("take", queue="mail", wait=30).payloads == [b"job"]


def test_all_jobs_of_a_worker_that_has_many_are_released(bus: Daemon, tmp_path: Path, caller: MakeCaller, needs_root: None) -> None:
    count = 600
    with StoreProgram(tmp_path, bus.path, STREAMS.replace("leases = 8", f"leases = {count}")):
        alice, dying = caller(FIRST), caller(FIRST)
        for _ in range(count // 60):
            alice.put("mail/a", *[b"x"] * 60)
            assert len(dying.call("take", queue="mail", max=60).payloads) == 60
        dying.bus.close()
        wait_for(lambda: json.loads(alice.bus.call("store/status", timeout=SECONDS))["counters"]["released"] == count, "the release of all")


def test_the_store_notes_in_the_stream_that_it_did_not_run(store: StoreProgram, alice: StoreCaller) -> None:
    alice.put("log/a", b"1")
    store.kill()
    alice.bus.publish("log/a", "missed")
    alice.bus.ping()
    store.start()
    alice.put("log/a", b"2")
    found = alice.call("read", stream="log", from_="first")
    assert found.payloads == [b"1", b"", b"2"]
    gap = found["messages"][1]
    assert (gap["gap"], gap["reason"]) == (0, "the store was not running")


def test_a_bus_that_is_killed_is_found_again(store: StoreProgram, bus: Daemon, alice: StoreCaller) -> None:
    alice.put("log/a", b"1")
    os.kill(bus.pid, signal.SIGKILL)
    bus.process.wait()
    bus.expected_status = -signal.SIGKILL
    wait_for(lambda: "no connection to the bus" in store.log, "the end of the bus")
    assert store.process is not None
    assert store.process.poll() is None


def test_a_reload_adds_streams_and_refuses_a_wrong_file(store: StoreProgram, alice: StoreCaller, caller: MakeCaller) -> None:
    assert alice.call("put", [(b"new/a", b"1")])["errors"]["0"][0] == "ENOENT"
    store.configure(STREAMS.replace("[limits]", '[[stream]]\nname = "new"\nkeys = ["new/"]\n[limits]'))
    assert "reloaded the configuration; streams: 7, queues: 2" in store.reload()
    alice.put("new/a", b"1")
    alice.bus.publish("new/b", "2")
    alice.bus.ping()
    assert alice.call("read", stream="new", from_=2, wait=30).payloads == [b"2"]
    store.configure('[[stream]]\nname = "x"\nkeys = ["!/cred/"]')
    assert "the former one still holds" in store.reload()
    alice.put("new/a", b"3")
    store.configure("")
    store.reload()
    assert alice.call("put", [(b"new/a", b"1")])["errors"]["0"][0] == "ENOENT"
    listed = caller(None).call("streams")["streams"]
    assert {(each["name"], each["configured"], each["messages"]) for each in listed} >= {("new", False, 3)}
    assert caller(None).call("purge", stream="new")["count"] == 3


@pytest.mark.parametrize(
    "members",
    [
        {"stream": "log", "seqs": [1]},
        {"stream": "log", "state": "dead"},
        {"queue": "mail", "before": 2, "state": "dead"},
        {"queue": "mail", "pattern": "mail/x", "seqs": [1]},
    ],
)
def test_a_purge_with_a_member_that_has_no_effect_removes_nothing(alice: StoreCaller, caller: MakeCaller, members: dict[str, Any]) -> None:
    root = caller(None)
    alice.put("log/a", b"1")
    assert "remove it, or name a" in root.error("purge", **members)
    assert root.call("purge", stream="log")["count"] == 1


def test_each_response_with_numbers_of_messages_names_the_run(store: StoreProgram, alice: StoreCaller) -> None:
    alice.put("mail/a", b"job")
    alice.put("net/a", b"value")
    calls: dict[str, dict[str, Any]] = {
        "last": {"patterns": ["net/"]},
        "read": {"stream": "state"},
        "position": {"stream": "state", "reader": "r", "seq": 1},
        "peek": {"queue": "mail"},
        "take": {"queue": "mail"},
        "streams": {},
    }

    def runs() -> set[object]:
        named = {name: alice.call(name, **head).head.get("run") for name, head in calls.items()}
        named["peek of a stream"] = alice.call("peek", stream="state")["run"]
        named["put"] = alice.call("put", [(b"net/a", b"value")])["run"]
        assert all(isinstance(each, int) for each in named.values()), named
        return set(named.values())

    (first,) = runs()
    assert store.stop() == 0
    store.start()
    (second,) = runs()
    assert first != second


def test_the_status_is_published(store: StoreProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as reader, reader.subscribe("store/state") as states:
        item = states.receive(SECONDS)
    assert isinstance(item, Message)
    state = item.json()
    assert state["version"] == 1
    assert (state["streams"], state["messages"]) == (6, 0)
    assert "private" not in item.text, "every user can read it"
    assert state["counters"]["put"] == 0


_BASES: dict[str, dict[str, Any]] = {
    "last": {"patterns": ["net/"], "after": "net/", "max": 1},
    "read": {"stream": "log", "from": 1, "time": 1.0, "reader": "r", "pattern": "log/", "max": 1, "wait": 0, "run": 0},
    "position": {"stream": "log", "reader": "r", "seq": 1, "drop": False, "run": 0},
    "take": {"queue": "mail", "max": 1, "wait": 0, "lease": 1.0},
    "ack": {"queue": "mail", "leases": [1]},
    "retry": {"queue": "mail", "leases": [1], "after": 1.0},
    "fail": {"queue": "mail", "leases": [1], "reason": "x"},
    "extend": {"queue": "mail", "leases": [1], "lease": 1.0},
    "peek": {"queue": "mail", "state": "dead", "after": 0, "max": 1},
    "purge": {"queue": "mail", "seqs": [1], "state": "dead"},
    "forget": {"stream": "log", "keys": ["log/a"]},
    "revive": {"queue": "mail", "seqs": [1]},
}
"""The members of each call."""

_EMPTY: tuple[Any, ...] = ("", [], {}, False)

_WITH_MEANING = {("last", "patterns"), ("last", "after"), ("read", "pattern"), ("fail", "reason"), ("forget", "keys")}
"""Members of which an empty text has a meaning: it is a key or pattern, or no reason."""


def test_an_empty_member_is_never_the_same_as_none(alice: StoreCaller, caller: MakeCaller) -> None:
    root = caller(None)
    root.put("log/a", b"1")
    root.put("mail/a", b"1")
    cases = [
        (name, {**({"stream": "log"} if member in {"before", "pattern"} and name == "purge" else base), member: value})
        for name, base in _BASES.items()
        for member in [*base, *(("before", "pattern", "stream") if name == "purge" else ())]
        for value in _EMPTY
        if not (value == "" and (name, member) in _WITH_MEANING) and not (value is False and member == "drop")
    ]
    cases = [(name, {key: value for key, value in each.items() if (name, key, value) != ("read", "time", 1.0)}) for name, each in cases]
    assert len(cases) > 130
    for name, members in cases:
        given = {"from_" if key == "from" else key: value for key, value in members.items()}
        assert root.error(name, **given).startswith("EINVAL "), (name, members)
    options: list[dict[str, Any]] = [{name: value} for name in ("id", "delay", "at", "expire") for value in _EMPTY]
    for option in options:
        found = root.call("put", [(b"mail/a", b"2")], messages=[option])
        assert found["errors"]["0"][0] == "EINVAL", option
    for value in (each for each in _EMPTY if each != []):
        assert root.error("put", [(b"mail/a", b"2")], messages=value).startswith("EINVAL "), value
    assert len(root.call("peek", stream="log").messages) == len(root.call("peek", queue="mail").messages) == 1
