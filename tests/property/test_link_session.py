"""Simulated hosts: whatever the network, the links and the buses do, no message is repeated, reordered, or lost without a report."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbus_services.link.rules import Export, Import, Rules
from tests.support.examples import examples
from tests.support.link_history import History
from tests.support.link_hosts import World

HOSTS = ("a", "b", "c")
KEYS = (b"net/x", b"net/y/z", b"net/", b"only/x", b"only/y")
PATTERNS = (
    (b"host/a/net/",),
    (b"host/*/net/",),
    (b"host/a/net/*", b"host/a/net/y/"),
    (b"host/a/only/x",),
    (b"host/a/only/", b"host/*/net/x"),
    (b"host/",),
)

SENDERS = st.sampled_from([b"!/cred/100/%d/7" % uid for uid in range(1_000, 1_004)])
"""Messages of four users."""

ACTIONS = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(HOSTS), st.sampled_from(KEYS), st.integers(1, 20)),
    st.tuples(st.just("publish"), st.just("a"), st.sampled_from(KEYS), st.integers(1, 20)),
    st.tuples(st.just("lose"), st.sampled_from(HOSTS), st.sampled_from(KEYS), st.integers(1, 5)),
    st.tuples(st.just("run"), st.sampled_from([0.01, 0.3, 2.0, 9.0])),
    st.tuples(st.just("subscribe"), st.sampled_from(HOSTS), st.sampled_from(PATTERNS)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
    st.tuples(st.just("cut"), st.sampled_from(HOSTS), st.sampled_from([0.5, 3.0, 7.0, 25.0]), st.sampled_from([0.2, 2.0, 5.0])),
    st.tuples(st.just("stall"), st.sampled_from(HOSTS), st.sampled_from([1.0, 9.0, 20.0]), st.sampled_from([0.5, 6.5, 8.0])),
    st.tuples(st.just("deafen"), st.sampled_from(HOSTS), st.sampled_from([0.5, 3.0, 12.0])),
    st.tuples(st.just("mute"), st.sampled_from(HOSTS), st.sampled_from([0.5, 3.0, 9.0])),
    st.tuples(st.just("drop"), st.sampled_from([0.0, 0.1, 0.5])),
)
RESTARTS = st.one_of(st.tuples(st.just("restart"), st.sampled_from(HOSTS)), st.tuples(st.just("reconnect"), st.sampled_from(HOSTS)))


def _world(seed: int, rules: Rules | None = None) -> tuple[World, History]:
    """Return three hosts that know each other, with subscribers that count."""
    world = World(seed)
    for name in HOSTS:
        world.host(name, *([rules] if rules else []))
    world.run(5)
    history = History(world)
    for host, patterns in (("b", PATTERNS[0]), ("b", PATTERNS[2]), ("c", PATTERNS[1]), ("b", PATTERNS[4]), ("c", PATTERNS[3])):
        history.subscribe(host, *patterns, is_static=True)
    world.run(5)
    assert all(watch.since for watch in history.watches)
    return world, history


def _perform(world: World, history: History, action: tuple[object, ...]) -> None:
    match action:
        case ("publish" | "lose" as kind, str(host), bytes(key), int(count)):
            getattr(history, kind)(host, key, count)
        case ("run", float(seconds)):
            world.run(seconds)
        case ("subscribe", str(host), tuple(patterns)):
            history.subscribe(host, *patterns)
        case ("leave", int(place)):
            if place < len(history.watches):
                watch = history.watches.pop(place)
                watch.host.disconnect_client(watch.client.number)
        case ("cut", str(host), float(seconds), float(noticed)):
            world.hosts[host].cut(seconds, noticed)
        case ("stall", str(host), float(seconds), float(noticed)):
            world.hosts[host].stall(seconds, noticed)
        case ("deafen" | "mute" as fault, str(host), float(seconds)):
            getattr(world.hosts[host], fault)(seconds)
        case ("drop", float(share)):
            world.drop = share
        case ("restart", str(host)):
            world.hosts[host].start()
        case ("reconnect", str(host)):
            world.hosts[host].connect_bus()
        case _:
            raise ValueError(action)


def _settle(world: World) -> None:
    """End all faults, and let the links find out what is missing."""
    world.drop = 0.0
    world.run(60)


FORGOTTEN = [
    ("subscribe", "b", PATTERNS[3]),
    ("run", 0.01),
    ("subscribe", "b", PATTERNS[1]),
    ("drop", 0.5),
    ("run", 2.0),
    ("publish", "a", b"only/x", 1),
    ("deafen", "a", 0.5),
    ("publish", "b", b"net/x", 8),
    ("publish", "a", b"net/x", 17),
    ("run", 9.0),
]
"""The origin forgets a receiver, which then asks to begin again before the origin knows what it wants."""

LATE = [
    ("publish", "a", b"net/x", 5),
    ("stall", "a", 20.0, 8.0),
    ("publish", "a", b"net/x", 5),
    ("run", 9.0),
    ("run", 2.0),
    ("run", 2.0),
    ("publish", "a", b"net/x", 5),
    ("run", 9.0),
]
"""A server stalls until the origin has forgotten the receivers, and sends its old messages after those of the next connection."""

EARLIER_RUN = [
    ("publish", "a", b"net/x", 2),
    ("run", 2.0),
    ("stall", "a", 20.0, 30.0),
    ("publish", "a", b"net/x", 3),
    ("run", 0.3),
    ("restart", "a"),
    ("run", 9.0),
    ("publish", "a", b"net/x", 4),
    ("run", 0.3),
    ("stall", "a", 9.0, 30.0),
    ("run", 9.0),
    ("run", 9.0),
]
"""A server sends the old messages of an earlier run while the present run is silent."""

EARLIER_RECEIVER = [
    ("stall", "a", 9.0, 6.5),
    ("run", 0.3),
    ("publish", "a", b"net/x", 5),
    ("run", 8.0),
    ("publish", "a", b"net/x", 5),
    ("run", 0.3),
    ("restart", "b"),
    ("run", 2.0),
    ("publish", "a", b"net/x", 5),
    ("run", 9.0),
]
"""A server sends old messages after the link of a receiver has got newer ones, and has restarted."""

REPORTED_BEFORE = [("subscribe", "b", PATTERNS[0]), ("reconnect", "a"), ("run", 2.0), ("restart", "a"), ("publish", "a", b"net/y/z", 15)]
"""The last notice says that a number of messages is unknown. Later messages are lost, without one between that is received."""

UNCONFIRMED = [("drop", 0.5), ("restart", "a"), ("run", 2.0), ("publish", "a", b"net/y/z", 13)]
"""Receivers are notified of a restart, and more is lost until the origin knows their patterns again."""

TWICE_CONNECTED = [("publish", "a", b"net/x", 1), ("lose", "a", b"net/x", 1), ("reconnect", "b"), ("reconnect", "b")]
"""A link connects to its bus twice before it knows the subscribers, long after its last tick, while messages arrive."""


@settings(max_examples=examples(150))
@example(FORGOTTEN, 11)
@example(LATE, 0)
@given(st.lists(ACTIONS, min_size=3, max_size=30), st.integers(0, 1_000))
def test_a_fault_of_the_network_loses_nothing_without_a_report(actions: list[tuple[object, ...]], seed: int) -> None:
    world, history = _world(seed)
    for action in actions:
        _perform(world, history, action)
    _settle(world)
    history.check()
    history.check_recovery(KEYS)


@settings(max_examples=examples(150))
@example(EARLIER_RUN, 1)
@example(EARLIER_RECEIVER, 2)
@example(REPORTED_BEFORE, 4651)
@example(UNCONFIRMED, 2)
@example(TWICE_CONNECTED, 0)
@given(st.lists(ACTIONS | RESTARTS, min_size=3, max_size=30), st.integers(0, 1_000))
def test_a_restart_loses_nothing_without_a_report(actions: list[tuple[object, ...]], seed: int) -> None:
    world, history = _world(seed)
    for action in actions:
        _perform(world, history, action)
    _settle(world)
    history.check()
    history.check_recovery(KEYS)


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 5), st.sampled_from([0.01, 0.1])), min_size=1, max_size=20), st.integers(0, 99)
)
def test_dropped_frames_are_counted_exactly(bursts: list[tuple[bytes, int, float]], seed: int) -> None:
    world, history = _world(seed)
    for key, count, seconds in bursts:
        # Frames only: the heartbeats are less than two seconds apart, and arrive.
        world.drop = 0.4
        world.spared = {"h"}
        history.publish("a", key, count)
        world.run(seconds)
        world.drop = 0.0
    _settle(world)
    history.check()
    assert all(count > 0 for watch in history.watches for _, count in watch.client.losses[watch.ignored :])


@pytest.mark.parametrize("seconds", [4.0, 30.0])
def test_the_spool_keeps_what_fits_and_the_rest_is_counted(seconds: float) -> None:
    rules = Rules("R", "a", (Export(b"net/"), Export(b"only/", frozenset({"b"}))), (Import(b""),), spool_bytes=20_000)
    world, history = _world(1, rules)
    world.hosts["a"].cut(seconds, 0.0)
    world.run(0.1)
    for _ in range(100):
        history.publish("a", b"net/x", 2)
        history.publish("a", b"only/x")
        world.run(0.01)
    _settle(world)
    lost = history.check()
    counters = world.hosts["a"].session.counters
    assert counters.spooled == 300
    assert 0 < counters.spool_dropped < 300
    assert lost > 0
    assert [sum(count for _, count in watch.client.losses[watch.ignored :]) > 0 for watch in history.watches] == [
        True,
        True,
        True,
        True,
        False,
    ]


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.lists(st.tuples(st.integers(1, 3), SENDERS), max_size=6)), min_size=5, max_size=15),
    st.sampled_from([0, 900, 2_500, 6_000]),
    st.integers(0, 99),
)
def test_what_users_lose_in_the_spool_is_counted_in_its_place(
    bursts: list[tuple[bytes, list[tuple[int, bytes]]]], spool_bytes: int, seed: int
) -> None:
    """Frames from the middle of the spool are dropped. The cut is too short for the other hosts to forget this one.

    In one turn, the order of messages of different flows is open.
    """
    rules = Rules("R", "a", (Export(b"net/"), Export(b"only/", frozenset({"b"}))), (Import(b""),), spool_bytes=spool_bytes)
    world, history = _world(seed, rules)
    history.publish("a", b"net/x")
    world.run(0.1)
    world.hosts["a"].cut(2.5, 0.0)
    world.run(0.1)
    for key, runs in bursts:
        history.publish_runs("a", [(key, count, sender) for count, sender in runs])
        world.run(0.02)
    _settle(world)
    history.check()
    assert all(count > 0 for watch in history.watches for _, count in watch.client.losses[watch.ignored :])


def test_a_short_cut_that_is_noticed_loses_nothing() -> None:
    world, history = _world(2)
    world.hosts["a"].cut(3.0, 0.0)
    world.run(0.1)
    history.publish("a", b"net/x", 50)
    _settle(world)
    assert history.check() == 0


def test_messages_over_the_rate_are_counted_as_lost() -> None:
    rules = Rules("R", "a", (Export(b"net/", rate=10), Export(b"only/", max_payload=1)), (Import(b""),))
    world, history = _world(3, rules)
    history.publish("a", b"net/x", 25)
    history.publish("a", b"only/x", 12)
    _settle(world)
    assert world.hosts["a"].session.counters.over_rate == 15
    assert world.hosts["a"].session.counters.too_long > 0
    first = history.watches[0]
    assert (len(first.client.received), [count for _, count in first.client.losses[first.ignored :]]) == (10, [15])
    history.check()


@pytest.mark.parametrize("drop", [0.3, 0.9])
def test_a_host_that_joins_late_counts_every_loss_from_then_on(drop: float) -> None:
    """The origin has sent messages of this pattern to another host before."""
    world, history = _world(4)
    history.publish("a", b"net/x", 30)
    world.run(3)
    history.subscribe("c", *PATTERNS[0], is_static=True)
    world.run(3)
    world.spared = {"h"}
    world.drop = drop
    for _ in range(40):
        history.publish("a", b"net/x")
    world.run(1)
    _settle(world)
    assert history.check() > 0
    late = history.watches[-1]
    assert late.client.received == [] or int(late.client.received[0][1]) > 30
    assert 0 < sum(count for _, count in late.client.losses) <= 40


def test_a_late_private_message_is_delivered() -> None:
    """Its flow has numbers that keep the order, and its receiver could not be notified of the loss."""
    world = World(0)
    rules = Rules("R", "a", (Export(b"net/"),), (Import(b""),), frozenset({"a", "b"}), b"!/cred//990//")
    a, b = world.host("a", rules), world.host("b", rules)
    client = b.client(1, b"!/cred//1000//")
    world.run(5)
    for text, seconds in ((b"first", 1.0), (b"second", 8.0), (b"third", 30.0)):
        a.message(b"!/cred//990//b/!/cred//1000//mail", text)
        if text == b"first":
            world.run(1.0)
            a.stall(20.0, 6.5)
        world.run(seconds)
    assert [payload for _, payload in client.received] == [b"first", b"third"]
    counters = b.session.counters.hosts["a"]
    assert (counters.lost_secrets, counters.duplicates) == (1, 1)
    a.stall(9.0, 6.5)
    a.message(b"!/cred//990//b/!/cred//1000//mail", b"fourth")
    world.run(30)
    assert [payload for _, payload in client.received] == [b"first", b"third", b"fourth"]
    assert counters.lost_secrets == 1


@pytest.mark.parametrize("fault", ["both stop", "one is silent", "one is silent, and the other stops"])
def test_a_receiver_that_was_forgotten_is_notified_before_newer_messages(fault: str) -> None:
    """Another receiver comes back first, and its messages reach this one too: their flow has no gap."""
    world, history = _world(5)
    a, b, c = (world.hosts[name] for name in HOSTS)
    if fault == "both stop":
        b.cut(8.6, 99.0)
    else:
        b.mute(8.6)
    if fault != "one is silent":
        c.cut(8.0, 99.0)
    for _ in range(300):
        history.publish("a", b"net/x")
        history.publish("a", b"net/y/z")
        world.run(0.05)
    assert a.session.counters.hosts["b"].silences == 1
    _settle(world)
    lost = history.check()
    assert bool(lost) == (fault != "one is silent")  # then the other one wants all that this one does
    assert b.session.counters.hosts["a"].unknown_losses > 0


@pytest.mark.parametrize("fault", ["none", "away", "no heartbeats"])
def test_a_loss_of_the_bus_is_reported_between_older_and_newer_messages(fault: str) -> None:
    """Exactly there, and once: older messages come before the only notice, and newer ones after it."""
    world, history = _world(7)
    if fault == "away":
        world.hosts["a"].cut(1.4, 0.0)
        world.run(0.1)
    elif fault == "no heartbeats":
        world.drop, world.spared = 1.0, {"m", "x", "i"}
    history.lose("a", b"net/x", 4)
    world.run(1.0)
    history.publish("a", b"net/x", 4)
    world.run(0.5)
    _settle(world)
    assert history.check() == 4 * 4
    notices = [watch.client.losses for watch in history.watches]
    assert sorted(notices) == [[(0, 0)]] + [[(4, 0)]] * 4  # the bus does not say of which keys; one subscriber wants others


def test_the_end_of_a_flow_is_known_before_a_newer_message() -> None:
    """The last message is lost, and then the key moves to another flow, because another host wants it too."""
    world, history = _world(6)
    world.spared = {"h", "i"}
    for number in range(3):
        history.publish("a", b"net/x", 3)
        world.run(2.1)
        world.drop = 1.0
        history.publish("a", b"net/x", 3)
        world.run(0.1)
        world.drop = 0.0
        history.subscribe("c", b"host/a/net/*", b"host/*/net/%d" % number)
        world.run(0.3)
        history.publish("a", b"net/x", 3)
    _settle(world)
    assert history.check() > 0
