"""Checks what subscribers of simulated hosts received against what was published: order, duplicates, and the count of every loss."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from sbus.protocol.keys import pattern_matches
from tests.support.link_bodies import SENDER
from tests.support.link_hosts import Client, Host, World

INTERVAL_SECONDS = 15.0
"""Most seconds between two notices of an unknown loss between which further messages may be missing."""


@dataclass
class _Watch:
    """One subscriber; *since*: for each origin how many of its messages were published before they were wanted for certain."""

    host: Host
    client: Client
    patterns: list[bytes]
    since: dict[str, int] = field(default_factory=dict)
    ignored: int = 0
    """Notices before the first such moment."""
    is_static: bool = True
    """Whether it was subscribed before any fault: then no report may be too high."""


class History:
    """Publishes numbered messages, and judges the subscribers at the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.watches: list[_Watch] = []
        self._numbers = itertools.count(1)
        self._clients = 10

    def publish(self, origin: str, key: bytes, count: int = 1) -> None:
        """Publish *count* messages, each with a number of its own as payload."""
        self.publish_runs(origin, [(key, count, SENDER)])

    def publish_runs(self, origin: str, runs: Iterable[tuple[bytes, int, bytes]], lost: Container[int] = ()) -> None:
        """Publish runs of such messages, which reach the link in one turn: their key, their number and their sender.

        The bus discards those at the places *lost*.
        """
        numbered = [(key, [b"%d" % next(self._numbers) for _ in range(count)], sender) for key, count, sender in runs]
        self.world.hosts[origin].runs(numbered, lost)

    def lose(self, origin: str, key: bytes, count: int) -> None:
        """Publish *count* messages that the bus discards for the link, and as many before and after them, in one turn."""
        self.publish_runs(origin, [(key, count, SENDER)] * 3, lost={1})

    def subscribe(self, host: str, *patterns: bytes, is_static: bool = False) -> int:
        """Subscribe a new client; it counts from the moment at which the live hosts have confirmed it. Return its number."""
        self._clients += 1
        place = self.world.hosts[host]
        watch = _Watch(place, place.client(self._clients, *patterns), list(patterns), is_static=is_static)
        self.watches.append(watch)
        # The link learns of the pattern after what is on the way from the bus.
        self.world.later(0.5, lambda: self._sync(watch))
        return self._clients

    def _sync(self, watch: _Watch) -> None:
        session = watch.host.session

        def done() -> None:
            watch.ignored = len(watch.client.losses)
            for name in session.live_hosts():
                watch.since[name] = len(self.world.hosts[name].published)

        session.sync(done)
        watch.host.tick()

    def check(self) -> int:
        """Raise AssertionError for a message that is repeated, out of order, or lost without a report. Return how many were lost."""
        return sum(self._check(watch) for watch in self.watches)

    def check_recovery(self, keys: tuple[bytes, ...]) -> None:
        """Publish each of *keys* at each host, and raise AssertionError unless all subscribers that want them receive them."""
        first = next(self._numbers)
        for name in self.world.hosts:
            for key in keys:
                self.publish(name, key)
        last = next(self._numbers)
        self.world.run(1)
        for watch in self.watches:
            fresh = {b"%d" % number for number in range(first + 1, last)}
            wanted = fresh & self._wanted(watch).keys()
            missing = wanted - {payload for _, payload in watch.client.received}
            assert not missing, f"{watch.host.name} {watch.patterns}: still receives nothing of {missing}"

    def _wanted(self, watch: _Watch) -> dict[bytes, tuple[str, int]]:
        """Return the payloads that match and may leave for the subscriber, each with its origin and place there."""
        wanted: dict[bytes, tuple[str, int]] = {}
        for name, host in self.world.hosts.items():
            for place, (_, key, payload) in enumerate(host.published):
                here = b"host/%b/%b" % (name.encode(), key)
                export = host.rules.export_of(key)
                permitted = name != watch.host.name and export is not None and export.permits(watch.host.name)
                if permitted and any(pattern_matches(pattern, here) for pattern in watch.patterns):
                    wanted[payload] = (name, place)
        return wanted

    def _check(self, watch: _Watch) -> int:
        wanted = self._wanted(watch)
        owed = {payload for payload, (name, place) in wanted.items() if name in watch.since and place >= watch.since[name]}
        received = [payload for _, payload in watch.client.received]
        assert len(received) == len(set(received)), f"{watch.host.name}: repeated"
        by_key: dict[bytes, list[int]] = defaultdict(list)
        for key, payload in watch.client.received:
            by_key[key].append(int(payload))
        assert all(numbers == sorted(numbers) for numbers in by_key.values()), f"{watch.host.name}: out of order"
        assert set(received) <= wanted.keys(), f"{watch.host.name}: not published"
        losses = [count for _, count in watch.client.losses[watch.ignored :]]
        missing = owed - set(received)
        if 0 not in losses:
            assert len(missing) <= sum(losses), f"{watch.host.name} {watch.patterns}: {len(missing)} missing, reported {losses}"
            if watch.is_static:
                assert len(missing) == sum(losses), f"{watch.host.name} {watch.patterns}: {len(missing)} missing, reported {losses}"
        if missing:
            _check_places(watch, missing, wanted)
        return len(missing)


def _check_places(watch: _Watch, missing: set[bytes], wanted: dict[bytes, tuple[str, int]]) -> None:
    """Raise AssertionError unless a notice comes after the publication of each missing message, at its place.

    That is after the messages received before it, and before those that are newer. What is published between a notice of an unknown loss
    and the next one may be missing too, for some seconds.
    """
    places = {payload: place for place, (_, payload) in enumerate(watch.client.received, 1)}
    last_time = max(watch.client.loss_times[watch.ignored :], default=-1.0)
    notices = [place for place, _ in watch.client.losses]
    unknown = [(place, time) for (place, count), time in zip(watch.client.losses, watch.client.loss_times, strict=True) if not count]
    for payload in missing:
        origin, number = wanted[payload]
        host = watch.host.world.hosts[origin]
        published, key, _ = host.published[number]
        export = host.rules.export_of(key)
        alike = [
            (each, earlier < number)
            for each, (name, earlier) in wanted.items()
            if name == origin and each in places and host.rules.export_of(host.published[earlier][1]) is export
        ]
        before = max((places[each] for each, is_before in alike if is_before), default=0)
        after = min((places[each] for each, is_before in alike if not is_before), default=len(places) + 1)
        words = f"{watch.host.name} {watch.patterns}: {payload!r}, published at {published}, between {before} and {after}"
        between = any(
            first <= before and second >= before and end - begin <= INTERVAL_SECONDS
            for (first, begin), (second, end) in itertools.pairwise(unknown)
        )
        assert between or any(before <= place < after for place in notices), f"{words}: {watch.client.losses}"
        assert last_time >= published, f"{watch.host.name} {watch.patterns}: no notice since {payload!r} was published at {published}"
