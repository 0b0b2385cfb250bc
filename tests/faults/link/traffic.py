"""Publishers and subscribers on the three buses, each in a thread of its own, which go on when their bus begins again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

from sbus import Bus, Closed, Disconnected, Gap, Message, NoBus, TimedOut
from tests.faults.link.accounts import KEYS, Accounts, Receiver, Series
from tests.faults.link.cluster import NAMES, Cluster, wait_until

PAUSE_SECONDS = 0.04
"""Time between two groups of messages of a publisher."""

GROUP = 3
"""Messages in a group."""

_ATTEMPTS = 4
"""How often the last messages of a round are published until all receivers have got them."""


class PublisherThread:
    """Publishes numbered messages on the bus at *path* until it is stopped; with a new series on each new connection."""

    def __init__(self, accounts: Accounts, name: str, host: str, path: str) -> None:
        self._accounts = accounts
        self._name = name
        self._host = host
        self._path = path
        self._connections = 0
        self._may_publish = threading.Event()
        self._is_idle = threading.Event()
        self._is_stopping = False
        self._turn = threading.Lock()
        self._bus: Bus | None = None
        self.series: Series | None = None
        self.thread = threading.Thread(target=self._main, name=name)

    def pause(self) -> None:
        """Publish nothing more."""
        self._may_publish.clear()
        with self._turn:
            pass

    def resume(self) -> None:
        """Publish again."""
        self._may_publish.set()

    def publish_each_key(self) -> None:
        """Publish one message with each key, while paused."""
        with self._turn:
            while not self._publish(len(KEYS)):
                time.sleep(PAUSE_SECONDS)

    def stop(self) -> None:
        """End the thread."""
        self._is_stopping = True
        self.resume()
        self.thread.join()

    def _main(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._close)
            while not self._is_stopping:
                self._may_publish.wait()
                with self._turn:
                    if self._may_publish.is_set():
                        self._publish(GROUP)
                time.sleep(PAUSE_SECONDS)

    def _publish(self, count: int) -> bool:
        """Publish *count* messages; return False if the connection has ended."""
        try:
            if self._bus is None or self.series is None:
                self._bus = Bus.connect(self._path)
                self._connections += 1
                self.series = self._accounts.add_series(f"{self._name}.{self._connections}", self._host)
            for _ in range(count):
                number = self.series.sent + 1
                # Counted before: the bus may have it although the call fails.
                self.series.sent = number
                self._bus.publish(KEYS[number % len(KEYS)], f"{self.series.name} {number}".encode())
            self._bus.ping()
        except (NoBus, Disconnected, TimedOut, Closed):
            self._close()
            return False
        return True

    def _close(self) -> None:
        if self._bus is not None:
            self._bus.close()
            self._bus = None


class ReceiverThread:
    """A subscriber on the bus at *path*; a new one takes its place when its connection ends."""

    def __init__(self, accounts: Accounts, name: str, host: str, path: str, patterns: tuple[bytes, ...]) -> None:
        self._accounts = accounts
        self._arguments = name, host, patterns
        self._path = path
        self._connections = 0
        self._is_stopping = False
        self.receiver: Receiver | None = None
        """The present one; None without a connection."""
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._main, name=name)

    def stop(self) -> None:
        """End the thread."""
        self._is_stopping = True
        self.thread.join()

    def _main(self) -> None:
        try:
            while not self._is_stopping:
                with contextlib.suppress(NoBus, Disconnected, TimedOut):
                    self._receive()
                self.receiver = None
                time.sleep(PAUSE_SECONDS)
        except Exception as error:
            self.error = error

    def _receive(self) -> None:
        name, host, patterns = self._arguments
        with Bus.connect(self._path) as bus:
            subscription = bus.subscribe(*patterns)
            self._connections += 1
            receiver = Receiver(f"{name}.{self._connections}", host, patterns)
            self._accounts.receivers.append(receiver)
            self.receiver = receiver
            while not self._is_stopping:
                try:
                    items = subscription.receive_many(timeout=0.2)
                except TimedOut:
                    continue
                for item in items:
                    if isinstance(item, Message):
                        series, _, number = item.payload.decode().partition(" ")
                        receiver.items.append((series, int(number)))
                    elif isinstance(item, Gap):
                        receiver.items.append(item.lost)


class Traffic:
    """All publishers and subscribers; a context."""

    def __init__(self, cluster: Cluster) -> None:
        self.accounts = Accounts()
        self._cluster = cluster
        self._joins = 0
        self._publishers: list[PublisherThread] = []
        self._receivers: dict[str, ReceiverThread] = {}
        self._visitors: list[str] = []

    def __enter__(self) -> Traffic:
        for name, host in self._cluster.hosts.items():
            for number in range(2):
                publisher = PublisherThread(self.accounts, f"{name}-publisher-{number}", name, host.bus.path)
                self._publishers.append(publisher)
                publisher.thread.start()
            other = NAMES[(NAMES.index(name) + 1) % len(NAMES)].encode()
            self._subscribe(f"{name}-all", name, (b"host/*/load/",))
            self._subscribe(f"{name}-one", name, (b"host/%b/load/a" % other,))
            self._subscribe(f"{name}-two", name, (b"host/%b/load/" % other, b"host/*/load/b/*"))
        return self

    def __exit__(self, *error: object) -> None:
        for publisher in self._publishers:
            publisher.stop()
        for name in list(self._receivers):
            self._receivers.pop(name).stop()

    def begin_receivers(self) -> None:
        """Let every new receiver count from now on: all hosts know what it wants. Only while no host is away."""
        wait_until(lambda: all(each.receiver for each in self._receivers.values()), lambda: f"receivers: {self._errors()}")
        fresh = [receiver for receiver in self.live_receivers() if receiver.since is None]
        for host in {receiver.host for receiver in fresh}:
            self._cluster.hosts[host].synchronize()
        for receiver in fresh:
            self.accounts.begin(receiver, is_exact=False)

    def live_receivers(self) -> list[Receiver]:
        """Return the receivers that have a connection."""
        return [each.receiver for each in self._receivers.values() if each.receiver is not None]

    def replace_visitors(self, host: str) -> None:
        """Let the subscribers leave that came last time, and others come, on *host*."""
        for name in self._visitors:
            self._receivers.pop(name).stop()
        self._joins += 1
        self._visitors = [f"{host}-visitor-{self._joins}"]
        self._subscribe(self._visitors[0], host, (b"host/*/load/c",))

    @contextlib.contextmanager
    def published(self) -> Iterator[None]:
        """Publish within the context; the last messages come after it."""
        for publisher in self._publishers:
            publisher.resume()
        try:
            yield
        finally:
            for publisher in self._publishers:
                publisher.pause()

    def finish(self, seconds: float) -> None:
        """Publish each key once more, and wait until all receivers have these, and a report for what is missing.

        A link that does not run for some seconds is gone for the others, and these messages too: then each key is published again.
        """
        certain = [receiver for receiver in self.live_receivers() if receiver.since is not None]
        late: list[tuple[str, list[tuple[str, int]]]] = []
        for _ in range(_ATTEMPTS):
            before = {name: series.sent for name, series in self.accounts.series.items()}
            for publisher in self._publishers:
                publisher.publish_each_key()
            end = time.monotonic() + seconds
            while (late := self._late(certain, before)) and time.monotonic() < end:
                time.sleep(0.05)
            if not late:
                break
        assert not late, f"still not received: {late}"
        # The last numbers of a flow that has ended come with heartbeats. What is not reported by then is for the judge.
        end = time.monotonic() + seconds
        while not all(map(self.accounts.is_balanced, certain)) and time.monotonic() < end:
            time.sleep(0.05)

    def _late(self, receivers: list[Receiver], before: dict[str, int]) -> list[tuple[str, list[tuple[str, int]]]]:
        """Return the messages after *before*, a number for each series, that *receivers* have not got, by the name of the receiver."""
        live = {publisher.series.name for publisher in self._publishers if publisher.series is not None}
        found = []
        for receiver in receivers:
            missing = [each for each in self.accounts.missing(receiver) if each[0] in live and each[1] > before.get(each[0], 0)]
            if missing:
                found.append((receiver.name, missing))
        return found

    def _subscribe(self, name: str, host: str, patterns: tuple[bytes, ...]) -> None:
        made = ReceiverThread(self.accounts, name, host, self._cluster.hosts[host].bus.path, patterns)
        self._receivers[name] = made
        made.thread.start()

    def _errors(self) -> list[tuple[str, Exception | None]]:
        return [(name, each.error) for name, each in self._receivers.items()]
