"""A soak: epochs of random actions on one daemon; all accounts must balance at the end of each."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from sbus.protocol import controls
from tests.soak.accounts import SentCounts, SoakError
from tests.soak.clients import Connect, MisbehavingClient, Publisher, SoakClient, Subscriber
from tests.support.daemons import Daemon
from tests.support.users import FIRST, SECOND, User

PUBLISHERS = 6
SUBSCRIBERS = 16
MISBEHAVING = 6
READ_AT_ONCE = 1_000
PAUSE_SECONDS = 0.001
"""The pause between steps, so that a soak does not take all of the machine."""
BALANCE_SECONDS = 60.0
"""The timeout for packets that are missing at the end of an epoch."""

CONFIG = '[limits]\nqueue_packets = 400\nqueue_bytes = "1MiB"\n'
"""Small queues, so that messages are lost and losses reported."""


class Soak:
    """Random actions on *bus*, drawn from *seed*; their interleaving depends on the machine."""

    def __init__(self, bus: Daemon, seed: int) -> None:
        self.figures: Counter[str] = Counter()
        self._bus = bus
        self._rng = random.Random(seed)
        self._owner = bus.client()
        self._sent_counts = SentCounts()
        self._numbers = 0
        self._publishers: list[Publisher] = []
        self._subscribers: list[Subscriber] = []
        self._misbehaving: list[MisbehavingClient] = []

    def run(self, seconds: float) -> None:
        """Run for about *seconds*, then close all clients. Raises SoakError if an account does not balance."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            self._epoch(min(self._rng.uniform(0.5, 2.0), end - now))
            self.figures["epochs"] += 1
        for client in (*self._publishers, *self._subscribers, *self._misbehaving):
            client.close()
        self._publishers, self._subscribers, self._misbehaving = [], [], []

    def rest(self) -> dict[str, int]:
        """Wait until only the owner is connected, and return the counters. Raises SoakError if resources have leaked."""
        self._wait(lambda: self._counters()["connections"] == 1, "connections are left behind")
        found = self._counters()
        left = {name: found[name] for name in ("subscriptions", "queued_packets", "queued_bytes") if found[name]}
        if left:
            raise SoakError(f"left behind: {left}")
        parts = ("delivered_packets", "queued_packets", "lost_packets", "replaced_packets", "abandoned_packets")
        if found["deliveries"] != sum(found[name] for name in parts):
            raise SoakError(f"the bus's counters do not balance: {found}")
        return found

    # -- an epoch

    def _epoch(self, seconds: float) -> None:
        """Connect missing clients, open the accounts, run random steps, and balance."""
        self._fill()
        self._wait(self._is_confirmed, "SUB is not confirmed")
        for subscriber in self._subscribers:
            subscriber.open_account(self._sent_counts, is_quiet=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._step((*self._publishers, *self._subscribers, *self._misbehaving))
            self._change()
            time.sleep(PAUSE_SECONDS)
        self._balance()

    def _fill(self) -> None:
        """Connect clients until there are enough of each kind."""
        while len(self._publishers) < PUBLISHERS:
            self._numbers += 1
            self._publishers.append(Publisher(self._as(FIRST), self.figures, self._sent_counts, self._numbers, self._rng))
        while len(self._subscribers) < SUBSCRIBERS:
            self._subscribers.append(self._new_subscriber())
        while len(self._misbehaving) < MISBEHAVING:
            self._misbehaving.append(MisbehavingClient(self._as(SECOND), self.figures, self._rng))

    def _as(self, user: User) -> Connect:
        """Return a function that connects as *user*."""
        return lambda: user.connect(self._bus.path)

    def _new_subscriber(self) -> Subscriber:
        """Return a new subscriber."""
        self._numbers += 1
        return Subscriber(self._as(FIRST), self.figures, str(self._numbers), self._rng)

    def _step(self, clients: Sequence[SoakClient]) -> None:
        """Run a step of each client, and open the accounts of new subscribers."""
        for client in clients:
            if not client.is_gone:
                client.act()
        for subscriber in self._subscribers:
            if subscriber.is_gone:
                raise SoakError(f"{subscriber.account.name} was disconnected")
            if subscriber.is_confirmed and not subscriber.account.is_open:
                subscriber.open_account(self._sent_counts, is_quiet=False)

    def _change(self) -> None:
        """Occasionally close a client and connect another one, or shut down one side of a connection."""
        chance = self._rng.random()
        if chance < 0.002:
            self._rng.choice(self._publishers).close()
            self._publishers = [each for each in self._publishers if not each.is_gone]
        elif chance < 0.006:
            self._rng.choice(self._subscribers).close()
            self._subscribers = [each for each in self._subscribers if not each.is_gone]
            self._subscribers.append(self._new_subscriber())
        elif chance < 0.007:
            subscriber = self._rng.choice(self._subscribers)
            if subscriber.is_confirmed and not subscriber.is_half_closed:
                subscriber.half_close()
        self._misbehaving = [each for each in self._misbehaving if not each.is_gone]
        if len(self._publishers) < PUBLISHERS // 2 or (len(self._misbehaving) < MISBEHAVING and chance > 0.98):
            self._fill()

    def _balance(self) -> None:
        """Wait until all pending messages have arrived, then close the accounts."""
        for publisher in self._publishers:
            publisher.ask_again()
        self._wait(self._is_routed, "publishers get no answer")
        self._wait(self._has_come, "messages do not come")
        for subscriber in self._subscribers:
            subscriber.ask()
        self._wait(self._has_come, "answers do not come")
        for subscriber in self._subscribers:
            subscriber.account.close(self._sent_counts)
        self._wait(self._is_read_to_the_end, "the bus still has connections that were closed")
        alive = {publisher.number for publisher in self._publishers}
        for stream in [each for each in self._sent_counts.sent if each.publisher not in alive]:
            self._sent_counts.forget(stream)
        self.figures["accounts balanced"] += len(self._subscribers)

    def _is_confirmed(self) -> bool:
        """Read, and return whether every subscriber is confirmed."""
        for subscriber in self._subscribers:
            subscriber.act()
        return all(each.is_confirmed for each in self._subscribers)

    def _is_routed(self) -> bool:
        """Read, because a full queue may block a publisher, and return whether all messages of every publisher are routed."""
        for publisher in self._publishers:
            publisher.read_replies()
            if publisher.must_ask:
                publisher.ask_again()
        self._has_come()
        return all(each.is_routed for each in self._publishers)

    def _has_come(self) -> bool:
        """Read, and return whether every subscriber has received all of its messages."""
        for subscriber in self._subscribers:
            subscriber.read(READ_AT_ONCE)
            if subscriber.is_confirmed and not subscriber.account.is_open:
                subscriber.open_account(self._sent_counts, is_quiet=False)
            if subscriber.is_gone:
                raise SoakError(f"{subscriber.account.name} was disconnected")
        return all(each.account.is_open and each.account.missing(self._sent_counts) <= 0 for each in self._subscribers)

    def _is_read_to_the_end(self) -> bool:
        """Return whether the bus has removed all closed connections: until then it may still route their messages."""
        listed = json.loads(self._owner.ask(controls.CONNECTIONS))["connections"]
        present = [each for each in listed if each["uid"] == FIRST.uid]
        return len(present) == len(self._publishers) + len(self._subscribers)

    # -- the bus

    def _counters(self) -> dict[str, int]:
        """Return the bus's counters."""
        found: dict[str, int] = json.loads(self._owner.ask(controls.STATS))["counters"]
        return found

    def _wait(self, is_done: Callable[[], bool], problem: str) -> None:
        """Call *is_done* until it returns True. Raises SoakError with *problem* if that takes too long."""
        deadline = time.monotonic() + BALANCE_SECONDS
        while not is_done():
            if time.monotonic() > deadline:
                owed = [f"{each.account.name}: {each.account.missing(self._sent_counts)}" for each in self._subscribers]
                raise SoakError(f"{problem}, after {BALANCE_SECONDS} s; missing: {', '.join(owed)}")
            time.sleep(PAUSE_SECONDS)


def memory_of(bus: Daemon) -> int:
    """Return how much memory of its own the daemon holds, in bytes. Source: proc_pid_status(5)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{bus.pid}/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) << 10


def descriptors_of(bus: Daemon) -> int:
    """Return the number of open descriptors of the daemon: the least within a second, because a thread has some of clients for a moment."""
    found = []
    for _ in range(100):
        found.append(len(list(Path(f"/proc/{bus.pid}/fd").iterdir())))
        time.sleep(0.01)
    return min(found)
