"""Programs of several users count their messages; every column of every table must equal their counts."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sbus_archive.tables.storage import TableSnapshot, read_tables
from tests.integration.test_pipeline_program import run
from tests.integration.test_recorder import Service
from tests.support.counting_clients import Client, Totals
from tests.support.daemons import Daemon, StartDaemon
from tests.support.link_states import link_state, other_host
from tests.support.relays import wait_for
from tests.support.shipped_tables import tables_through_an_object_store
from tests.support.spark import published, require_spark
from tests.support.users import FIRST, SECOND, User
from tools.stage import Stage

ALICE, BOB = FIRST, SECOND
ROOT = User(0, 0)
CAROL, DAVE, RECORDER = (User(uid, uid) for uid in (61_003, 61_004, 61_005))
_SIZE = 2_000
_MANY = 200
"""Messages of that size: more than the socket of a client that does not read takes, and all together less than a queue: the recorder's too,
however slow it is."""

_CONFIG = f"""
[rights]
tap = {{ users = [{RECORDER.uid}] }}
deliver = {{ users = [{ALICE.uid}] }}
[[policy]]
keys = "closed/"
publish = "deny"
comment = "closed to all users"
[[quotas.overrides]]
users = [{DAVE.uid}]
subscriptions = 8
"""


class Truth:
    """The actions of the programs, and their counts."""

    def __init__(self, bus: Daemon) -> None:
        self.totals = Totals(bus)
        self.calls: dict[tuple[str, int, int | None], Counter[str]] = defaultdict(Counter)
        """What became of calls, by command, caller and callee."""
        self.latencies: dict[tuple[str, int, int | None], list[tuple[int, int]]] = defaultdict(list)
        """The least and the most that each may have taken, in nanoseconds."""
        self.begun = time.time_ns()
        self.ended = 0
        self.abandoned = 0
        self.fatal: set[tuple[int, str | None]] = set()
        """Users that the bus disconnected, each with the key or pattern that it refused."""

    def do_all(self) -> None:
        """Run all programs."""
        self._fan_out()
        self._direct()
        self._groups()
        self._echo_off()
        self._slow_readers()
        self._one_that_waits()
        self._one_that_leaves()
        late = self._late_call()
        self._calls()
        self._refusals()
        self._relay()
        self._links()
        late()
        self.ended = time.time_ns()

    def _fan_out(self) -> None:
        """Several connections of a user, wildcards, overlapping and repeated patterns, a batch, a private key, and no recipient."""
        totals = self.totals
        secret = b"!/cred//%d//door" % BOB.uid
        alice, dave = Client(totals, ALICE), Client(totals, DAVE, b"fan/", b"fan/out/*")
        readers = [
            Client(totals, BOB, b"fan/out/x", secret), Client(totals, BOB, b"fan/out/x"), Client(totals, CAROL, b"*/of/x", "odd/é".encode())
        ]  # fmt: skip
        readers[0].client.subscribe(b"fan/out/x")  # a repeated pattern: neither more messages nor another subscription
        readers[0].collect()
        alice.publish(b"fan/out/x", 10, times=20)
        readers[0].client.unsubscribe(b"fan/out/x")
        readers[1].client.unsubscribe(b"fan/out/x")
        for each in readers:
            each.collect()
        alice.publish(b"fan/out/x", 20, times=5)
        alice.publish_batch([b"batch/of/x", b"fan/y", b"batch/of/x", b"batch/of/unused", b"fan/out/x"])
        dave.publish("odd/é".encode(), times=3)
        dave.publish(secret, 100, times=4)
        dave.publish(b"unused/home/x", 7, times=6)
        for each in (*readers, dave):
            each.collect()
            each.close()
        alice.publish(b"fan/out/x", times=2)
        alice.close()

    def _direct(self) -> None:
        """Messages for one of several subscribers alone, also with a key that it does not match."""
        alice, bob, carol = Client(self.totals, ALICE), Client(self.totals, BOB, b"one/"), Client(self.totals, CAROL, b"one/", b"other/")
        bob.address()  # asked now, because messages would come before the answer
        alice.publish(b"one/of/x", times=2)
        alice.publish_to(bob, b"one/of/x", times=7)
        alice.publish_to(bob, b"other/of/x", times=3)
        for each in (bob, carol):
            each.collect()
            each.close()
        alice.close()

    def _groups(self) -> None:
        """Members of groups of two users, of which one of each gets a message, and a subscriber."""
        alice, dave = Client(self.totals, ALICE), Client(self.totals, DAVE, b"work/")
        members = [Client(self.totals, user) for user in (BOB, BOB, BOB, CAROL, CAROL)]
        for each in members:
            each.join(b"workers", b"work/")
        alice.publish(b"work/of/x", 10, times=30)
        leaving = members.pop(1)
        leaving.collect()
        leaving.close()
        alice.collect()
        alice.publish(b"work/of/y", times=11)
        for each in (alice, dave, *members):
            each.collect()
            each.close()

    def _echo_off(self) -> None:
        """A publisher that listens itself, and first does not want its own."""
        alice, dave = Client(self.totals, ALICE, b"quiet/x"), Client(self.totals, DAVE, b"quiet/x")
        for command, times in ((b"echo/off", 15), (b"echo/on", 4)):
            alice.client.control(command)
            alice.publish(b"quiet/x", 30, times=times)
            dave.collect()
        dave.publish(b"quiet/x", times=3)
        for each in (alice, dave):
            each.collect()
            each.close()

    def _slow_readers(self) -> None:
        """One that discards, beside one that reads, and alone."""
        alice, fast, slow = Client(self.totals, ALICE), Client(self.totals, BOB, b"mix/x"), Client(self.totals, CAROL, b"mix/x", b"flood/x")
        slow.client.control(b"blocking/soft/discard")
        slow.collect()
        for _ in range(_MANY // 10):
            alice.publish(b"mix/x", _SIZE, times=10)
            fast.collect()
        alice.publish(b"flood/x", _SIZE, times=50)
        slow.collect()
        slow.note_missed(b"mix/x")
        slow.note_missed(b"flood/x")
        for each in (alice, fast, slow):
            each.close()

    def _one_that_waits(self) -> None:
        """One that reads late, and loses nothing."""
        carol, late = Client(self.totals, CAROL), Client(self.totals, DAVE, b"wait/x")
        carol.publish(b"wait/x", _SIZE, times=_MANY)
        with self.totals.bus_stopped():
            late.take_received()
        for sent in self.totals.sent.values():
            sent.waited += sent.key == b"wait/x" and not sent.received
        late.collect()
        for each in (carol, late):
            each.close()

    def _one_that_leaves(self) -> None:
        """One that goes while messages wait for it."""
        alice, gone = Client(self.totals, ALICE), Client(self.totals, BOB, b"gone/x")
        alice.publish(b"gone/x", _SIZE, times=_MANY)
        with self.totals.bus_stopped():
            gone.take_received()
            gone.close(waiting=b"gone/x")
        self.abandoned = sum(len(each.abandoned) for each in self.totals.sent.values())
        alice.collect()
        alice.close()

    def _refusals(self) -> None:
        """Every way to be refused."""
        carol = Client(self.totals, CAROL)
        for _ in range(4):
            carol.send_refused(b"MSG closed/door\0x", "closed/door")
        for _ in range(3):
            carol.send_refused(b"MSG !/bus/x\0", "!/bus/x")
        long = b"k" * 5_000
        carol.send_refused(b"MSG %b\0" % long, long[:1_024].decode())
        carol.send_fatal(b"NONSENSE", None)
        dave = Client(self.totals, DAVE, *(b"own/%d" % number for number in range(8)))
        for _ in range(2):
            dave.send_refused(b"SUB one/more", "one/more")
        dave.close()
        secret = f"!/cred//{BOB.uid}//door"
        Client(self.totals, DAVE).send_fatal(b"SUB " + secret.encode(), secret)
        self.fatal = {(CAROL.uid, None), (DAVE.uid, secret)}

    def _relay(self) -> None:
        """The relay's reports of its attempts."""
        relay = Client(self.totals, DAVE)
        for attempt, code in ((1, "ETIMEDOUT"), (2, "ETIMEDOUT"), (3, "OK")):
            reported = {
                "twin": 7,
                "call": "ab" * 16,
                "cmd": "add",
                "code": code,
                "reason": "",
                "duration": attempt * 10**6,
                "attempt": attempt,
            }
            relay.client.publish(b"relay/attempt", json.dumps(reported).encode())
        relay.collect()
        relay.close()

    def _links(self) -> None:
        """The states of a link, and one of a user who is not."""
        link, forger = Client(self.totals, ROOT), Client(self.totals, DAVE)
        started = time.time() - 1
        for number in range(3):
            beta = other_host("beta", messages=10 * number, bytes=1_000 * number, lost=number, duplicates=2, stale=4)
            hosts = [beta, other_host("gamma", unknown_losses=1, silences=number)]
            state = link_state(started=started, spooled_bytes=number, hosts=hosts, time=time.time())
            state["counters"]["spool_dropped"] = number
            link.publish_payload(b"link/state", json.dumps(state).encode())
            forger.publish_payload(b"link/state", json.dumps(state | {"host": "forged"}).encode())
        link.publish(b"link/state", 50)
        for each in (link, forger):
            each.close()

    def _late_call(self) -> Callable[[], None]:
        """Begin a call whose reply comes later than its caller allows; return what ends it."""
        service, caller = Client(self.totals, BOB, b"rpc/late"), Client(self.totals, ALICE)
        reply_to = caller.address()
        before = time.time_ns()
        caller.envelope(b"rpc/late", uid="late", cmd="late", exp=1, ret=reply_to)
        routed = time.time_ns()

        def end() -> None:
            while time.time_ns() < routed + 1_200_000_000:
                time.sleep(0.05)  # without it as many pings go out as a user may send
                service.collect()
            self._answer(service, caller, "late", (before, routed), "timeouts")
            service.close()
            caller.close()

        return end

    def _calls(self) -> None:
        """Calls of every outcome but a late one."""
        service = Client(self.totals, BOB, b"rpc/echo", b"rpc/mute", b"rpc/full")
        alice, carol = Client(self.totals, ALICE), Client(self.totals, CAROL)
        for number, caller in enumerate([alice] * 12 + [carol] * 5):
            reply_to, before = caller.address(), time.time_ns()
            caller.envelope(b"rpc/echo", uid=f"e{number}", cmd="echo", exp=0 if number % 2 else 600, ret=reply_to)
            error = "no" if number % 4 == 0 else ""
            self._answer(service, caller, "echo", (before, time.time_ns()), "answered", uid=f"e{number}", err=error)
        for command, times, outcome in (("mute", 3, "unanswered"), ("void", 4, "undelivered")):
            for number in range(times):
                alice.envelope(b"rpc/" + command.encode(), uid=f"{command}{number}", cmd=command, ret=alice.address())
                self._note(command, alice, None, "unanswered", *(("undelivered",) if outcome == "undelivered" else ()))
        # A service with a full queue loses the requests: they have no recipient although a service is subscribed.
        service.collect()
        service.client.control(b"blocking/soft/discard")
        service.collect()
        service.subscribe(b"stuff/x")
        service.collect()
        carol.publish(b"stuff/x", _SIZE, times=_MANY)
        for number in range(2):
            alice.envelope(b"rpc/full", uid=f"full{number}", cmd="full", ret=alice.address())
            self._note("full", alice, None, "unanswered")
        service.collect()
        service.note_missed(b"stuff/x")
        service.note_missed(b"rpc/full")
        for each in (service, alice, carol):
            each.collect()
            each.close()

    def _answer(
        self, service: Client, caller: Client, command: str, asked: tuple[int, int], outcome: str, *, uid: str = "late", err: str = ""
    ) -> None:
        """Let the service answer, and note how long that took at least and at most."""
        service.collect()
        begun = time.time_ns()
        service.envelope(caller.address().encode(), uid=uid, cmd=command, err=err)
        caller.collect()
        self.latencies[command, caller.uid, service.uid].append((begun - asked[1], time.time_ns() - asked[0]))
        self._note(command, caller, service, outcome, *(("errors",) if err else ()))

    def _note(self, command: str, caller: Client, service: Client | None, *outcomes: str) -> None:
        """Note what became of a call."""
        self.calls[command, caller.uid, None if service is None else service.uid].update(("calls", *outcomes))


def test_every_column_equals_the_counts_of_the_programs(daemon: StartDaemon, folder: Path, stage: Stage, needs_root: None) -> None:
    require_spark()
    bus = daemon(config=_CONFIG)
    service = Service(folder, stage, RECORDER, bus.path)
    try:
        service.wait_ready()
        truth = Truth(bus)
        client = bus.client()
        truth.totals.connections[ROOT.uid] += 1
        wait_for(lambda: b"rpc/recorder/close" in client.ask(b"!/bus/subscriptions") or None, "the service of the recorder")
        # The recorder's second connection, its service, and its address for responses.
        truth.totals.connections[RECORDER.uid] += 1
        truth.totals.subscriptions[RECORDER.uid] += 2
        truth.do_all()
        users = {user.uid for user in (ALICE, BOB, CAROL, DAVE)}

        def have_left() -> bool:
            return not users & {each["uid"] for each in json.loads(client.ask(b"!/bus/connections"))["connections"]}

        wait_for(lambda: have_left() or None, "the last disconnects")
        client.ask(b"!/bus/subscriptions")  # behind their events
        service.end()
    finally:
        service.close()
    done = run(service.folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    snapshot = read_tables(service.folder / "tables")
    (covered,) = {entry.host for manifest in snapshot.manifests.values() for entry in manifest.segments}
    assert covered == "alpha"
    assert not any(entry.missing for manifest in snapshot.manifests.values() for entry in manifest.segments)
    problems = [problem for check in _CHECKS for problem in check(truth, snapshot)]
    assert not problems, "\n".join(problems)
    assert tables_through_an_object_store(service.folder) == published(service.folder / "tables")


def _rows(snapshot: TableSnapshot, table: str, by: tuple[str, ...], sums: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, int]]:
    """Return the sums of a table by some columns, over all hours; all rows are of the one host, and units are not known."""
    found: defaultdict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in snapshot.tables[table].to_pylist():
        assert row["host"] == "alpha"
        assert {value for name, value in row.items() if name.endswith("unit")} <= {None}, row
        found[tuple(row[name] for name in by)].update({name: row[name] for name in sums})
    return {key: {name: counts[name] for name in sums} for key, counts in found.items()}


def _compared(what: str, made: dict[Any, Any], true: dict[Any, Any]) -> Iterator[str]:
    """Yield a line for each difference."""
    for key in sorted(made.keys() | true.keys(), key=repr):
        if made.get(key) != true.get(key):
            yield f"{what} {key}: the table has {made.get(key)}, the programs counted {true.get(key)}"


def _traffic(truth: Truth, snapshot: TableSnapshot) -> Iterator[str]:
    sums = ("messages", "bytes", "recipients", "queued", "discarded", "undeliverable")
    yield from _compared("traffic", _rows(snapshot, "traffic", ("prefix", "uid"), sums), truth.totals.sums())
    for name in ("traffic", "losses"):
        for row in snapshot.tables[name].to_pylist():
            minute = int(row["minute"].timestamp()) * 10**9
            if name == "losses" and row["cause"] == "restart":
                continue
            if not truth.begun - 60 * 10**9 < minute <= truth.ended:
                yield f"{name}: {row['minute']} is not when it happened"


def _users(truth: Truth, snapshot: TableSnapshot) -> Iterator[str]:
    totals = truth.totals
    true: dict[tuple[int], Counter[str]] = defaultdict(Counter)
    for each in totals.sent.values():
        counts = {"messages": 1, "bytes": each.size, "recipients": len(each.recipients)}
        true[each.uid,].update(counts, requests=int(each.is_request), replies=int(each.is_reply))
    for name, counted in (("connections", totals.connections), ("subscriptions", totals.subscriptions), ("lost", totals.reported_lost)):
        for uid, count in counted.items():
            true[uid,][name] += count
    for (_, _, uid, _), count in totals.refusals.items():
        true[uid,]["denials"] += count
    sums = ("connections", "messages", "bytes", "recipients", "requests", "replies", "subscriptions", "denials", "lost")
    yield from _compared(
        "users", _rows(snapshot, "users", ("uid",), sums), {uid: {name: c[name] for name in sums} for uid, c in true.items()}
    )


def _flows(truth: Truth, snapshot: TableSnapshot) -> Iterator[str]:
    true: dict[tuple[int, str, int], Counter[str]] = defaultdict(Counter)
    for each in truth.totals.sent.values():
        for uid in each.recipients:
            true[each.uid, each.prefix, uid].update(deliveries=1, bytes=each.size)
    made = _rows(snapshot, "flows", ("from_uid", "prefix", "to_uid"), ("deliveries", "bytes"))
    yield from _compared("flows", made, {key: dict(counts) for key, counts in true.items()})


def _calls(truth: Truth, snapshot: TableSnapshot) -> Iterator[str]:
    sums = ("calls", "answered", "errors", "timeouts", "unanswered", "undelivered")
    by = ("cmd", "caller_uid", "callee_uid")
    yield from _compared("calls", _rows(snapshot, "calls", by, sums), {key: {n: c[n] for n in sums} for key, c in truth.calls.items()})
    rows = [row for row in snapshot.tables["calls"].to_pylist() if row["latency_max_us"] is not None]
    for row in rows:
        bounds = truth.latencies[row["cmd"], row["caller_uid"], row["callee_uid"]]
        counted = sum(bucket["calls"] for bucket in row["latencies"])
        if len(rows) == len(truth.latencies):  # each of one hour
            if counted != len(bounds):
                yield f"calls {row['cmd']}: {counted} latencies of {len(bounds)} replies"
            yield from _percentiles(row, bounds)


def _percentiles(row: dict[str, Any], bounds: list[tuple[int, int]]) -> Iterator[str]:
    """Compare percentiles with what callers and services measured on their side."""
    least, most = sorted(low for low, _ in bounds), sorted(high for _, high in bounds)
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
        rank = -(-len(bounds) * percent // 100) - 1
        found = row[f"latency_{name}_us"]
        if not least[rank] // 1000 <= found <= most[rank] / 1000 * 33 / 32 + 1:
            yield f"calls {row['cmd']}: {name} is {found} us, measured were {least[rank]} to {most[rank]} ns"
        if found > row["latency_max_us"]:
            yield f"calls {row['cmd']}: {name} is {found} us, and the longest {row['latency_max_us']}"


def _losses(truth: Truth, snapshot: TableSnapshot) -> Iterator[str]:
    totals = truth.totals
    if (missed := sum(each.lost for each in totals.sent.values())) != totals.reported_lost.total():
        yield f"the programs missed {missed} messages, and {totals.reported_lost.total()} were reported to them"
    true: dict[tuple[Any, ...], int] = Counter({("lost", uid, None): count for uid, count in totals.reported_lost.items()})
    for each in totals.sent.values():
        if each.lost:
            true["discarded", each.uid, each.prefix] += each.lost
    true["abandoned", BOB.uid, None] = truth.abandoned
    made = {
        key: sums["count"] for key, sums in _rows(snapshot, "losses", ("cause", "uid", "prefix"), ("count",)).items() if key[0] != "restart"
    }
    yield from _compared("losses", made, dict(true))
    messages = Counter((each.uid, each.prefix) for each in totals.sent.values() if each.lost)
    events = _rows(snapshot, "losses", ("cause", "uid", "prefix", "reason"), ("events", "count", "duration_us"))
    yield from _compared("losses, events", {k[1:3]: v["events"] for k, v in events.items() if k[0] == "discarded"}, dict(messages))
    for (cause, _, _, reason), sums in events.items():
        if cause == "restart":
            # The recorder began once, and there was no record before.
            yield from _compared("losses, restart", sums, {"events": 1, "count": 0, "duration_us": 0})
        elif cause in ("lost", "abandoned") and not 1 <= sums["events"] <= (1 if cause == "abandoned" else sums["count"]):
            yield f"losses, {cause}: {sums['events']} events of {sums['count']} packets"
        if reason != ("the recorder started" if cause == "restart" else None):
            yield f"losses, {cause}: the reason is {reason!r}"


def _security(truth: Truth, snapshot: TableSnapshot) -> Iterator[str]:
    classes = {"EACCES": "denial", "EPERM": "denial", "EDQUOT": "quota"}
    true = {
        (classes.get(code, "misbehaviour"), code, words, uid, about): {"events": count}
        for (code, words, uid, about), count in truth.totals.refusals.items()
    }
    yield from _compared("security", _rows(snapshot, "security", ("class", "code", "reason", "uid", "key"), ("events",)), true)
    for row in snapshot.tables["security"].to_pylist():
        first, last = (int(row[name].timestamp() * 10**6) * 1000 for name in ("first", "last"))
        if not truth.begun - 1000 <= first <= last <= truth.ended:
            yield f"security {row['code']}: {row['first']} to {row['last']} is not when it happened"


def _disconnects(truth: Truth, snapshot: TableSnapshot) -> Iterator[str]:
    rows = _rows(snapshot, "disconnects", ("uid", "code", "reason"), ("disconnects", "abandoned"))
    made: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for (uid, _code, _reason), sums in rows.items():
        made[uid].update(sums)
    users = (ALICE.uid, BOB.uid, CAROL.uid, DAVE.uid)  # root and the recorder stay
    true = {uid: {"disconnects": truth.totals.connections[uid], "abandoned": truth.abandoned * (uid == BOB.uid)} for uid in users}
    yield from _compared("disconnects", {uid: {name: made[uid][name] for name in sums} for uid, sums in true.items()}, true)
    coded = {key: sums["disconnects"] for key, sums in rows.items() if key[1] is not None}
    refusals = truth.totals.refusals.items()
    fatal = {(uid, code, words): count for (code, words, uid, about), count in refusals if (uid, about) in truth.fatal}
    yield from _compared("disconnects, by the bus", coded, fatal)


def _relay(_: Truth, snapshot: TableSnapshot) -> Iterator[str]:
    sums = ("attempts", "retries", "calls", "longest_us")
    true = {
        (7, "add", "ETIMEDOUT"): dict(zip(sums, (2, 1, 1, 2_000), strict=True)),
        (7, "add", "OK"): dict(zip(sums, (1, 1, 1, 3_000), strict=True)),
    }
    yield from _compared("relay", _rows(snapshot, "relay", ("twin", "cmd", "outcome"), sums), true)


def _links(_: Truth, snapshot: TableSnapshot) -> Iterator[str]:
    names = ("messages", "bytes", "lost", "unknown_losses", "duplicates", "rejected", "disconnects", "dropped", "states")
    true = {
        ("R", "alpha", ""): (0, 0, 0, 0, 0, 0, 0, 2, 3),
        ("R", "alpha", "beta"): (20, 2_000, 2, 0, 2, 4, 0, 0, 0),
        ("R", "alpha", "gamma"): (0, 0, 0, 1, 0, 0, 2, 0, 0),
    }
    made = _rows(snapshot, "links", ("realm", "link", "peer"), names)
    yield from _compared("links", made, {key: dict(zip(names, values, strict=True)) for key, values in true.items()})
    rows = snapshot.tables["links"].to_pylist()
    if max(row["spooled_max_bytes"] or 0 for row in rows) != 2:
        yield "links: the spool had at most 2 bytes"
    if not all(0 <= row["alive_us"] <= 600 * 10**6 for row in rows) or not any(row["alive_us"] for row in rows if row["peer"] == "beta"):
        yield "links: beta was alive for some milliseconds"


_CHECKS = (_traffic, _users, _flows, _calls, _losses, _security, _disconnects, _relay, _links)
