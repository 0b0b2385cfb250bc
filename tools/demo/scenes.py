"""The scenes of the demonstration. Each announces a result, runs real processes, and checks the result."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from sbus import Bus
from sbus.protocol import controls
from tools.demo.activation import ActivatedBus, activated_bus
from tools.demo.blobs import BlobDemo
from tools.demo.events import FeedsDemo
from tools.demo.hosts import HostsDemo
from tools.demo.linked_hosts import LinkedHostsDemo
from tools.demo.narrator import DemoError, Narrator
from tools.demo.network import LINK, DemoNetwork, own_network
from tools.demo.programs import TIMEOUT_SECONDS, Programs
from tools.demo.record import RecordDemo
from tools.demo.stored_messages import StoreDemo
from tools.demo.users import DemoUser
from tools.demo.web_page import WebPageDemo
from tools.stage import Stage

PEER_DISCONNECTED = 5
"""Exit status of ``sbusctl call`` if the service has disconnected, sbusctl(1)."""

_SLOWLY = "while sleep 1; do echo still at work; done"
"""A program that runs indefinitely, and exits soon after the reader of its output."""

CALL_SECONDS = 120.0
"""Far less than the timeout of the call, and far more than any machine needs to start the programs."""

RESTARTS = 5

BETWEEN = 400
"""Numbers published between two restarts."""


class Demonstration:
    """The scenes in their order, on a bus that the first of them starts."""

    def __init__(
        self,
        bus: ActivatedBus,
        programs: Programs,
        narrator: Narrator,
        users: tuple[DemoUser, DemoUser],
        *,
        record: RecordDemo,
        events: FeedsDemo,
        hosts: HostsDemo,
        linked_hosts: LinkedHostsDemo,
        web_page: WebPageDemo,
        blobs: BlobDemo,
        store: StoreDemo,
    ) -> None:
        self._bus = bus
        self._programs = programs
        self._narrator = narrator
        self._first, self._second = users
        self._record = record
        self._events = events
        self._hosts = hosts
        self._linked_hosts = linked_hosts
        self._web_page = web_page
        self._blobs = blobs
        self._store = store

    def show_all(self, report: Path) -> None:
        """Show everything, and write the *report*."""
        self.show_whoami()
        with self._record.running() as recorder:
            self.show_publish_and_subscribe()
            self.show_secret()
            self.show_call()
            self._web_page.show(self._second)
            self._hosts.show()
            self._linked_hosts.show()
            self._blobs.show(self._first, self._second)
            self.show_restarts()
            self.show_network()
            self._events.show(self._second)
            self._record.finish(recorder, report)
        self._store.show(self._first, self._second)

    def show_whoami(self) -> None:
        """The first connection starts the bus; the bus knows the user of each connection."""
        narrator = self._narrator
        narrator.step(f"{self._first.name} connects: this starts the bus, and the kernel tells the bus the user of the connection")
        _check(not self._bus.is_started, f"the bus should not run before the first connection, but {self._bus.program} runs")
        for user in (self._first, self._second):
            said = self._programs.run(user, "sbusctl", "whoami")
            _check(
                re.fullmatch(rf"!/cred/{user.gid}/{user.uid}/\d+\n", said) is not None,
                f"{user.name} has group {user.gid} and user {user.uid}, but the bus reports {said!r}",
            )
        _check(self._bus.is_started, f"the bus should run now, but {self._bus.program} runs")
        narrator.remark("this private key contains group, user and process; a client cannot choose them")

    def show_publish_and_subscribe(self) -> None:
        """A wildcard matches one message of another user, and does not match another one."""
        narrator, first, second = self._narrator, self._first, self._second
        narrator.step(f"{second.name} subscribes to a pattern, {first.name} publishes")
        with self._programs.running(second, "sbusctl", "sub", "weather/*/wind", "-n", "1", "--timeout", "60") as reader:
            self._bus.wait_for_subscriber("weather/oslo/wind")
            self._programs.run(first, "sbusctl", "pub", "weather/oslo/rain", "none")
            self._programs.run(first, "sbusctl", "pub", "weather/oslo/wind", "9 m/s from the north")
            narrator.remark(f"{second.name} receives:")
            said = self._programs.finish(reader)
        _check(said == "weather/oslo/wind\t9 m/s from the north\n", f"unexpected message: {said!r}")
        narrator.remark("the wildcard * matched the name of the town; the pattern did not match the rain")

    def show_secret(self) -> None:
        """Another user cannot subscribe to a private key, nor receive it by a subscription to everything."""
        narrator, first, second = self._narrator, self._first, self._second
        key = f"!/cred//{first.uid}//letters"
        narrator.step(f"A private key of {first.name}: every user can publish to it, only {first.name} can subscribe to it")
        said = self._programs.run(second, "sbusctl", "sub", key, "-n", "1", status=1)
        _check("EACCES" in said and "Traceback" not in said, f"the subscription should have been rejected with EACCES: {said!r}")
        narrator.remark(f"rejected: {second.name} is not user {first.uid}")
        with (
            self._programs.running(first, "sbusctl", "sub", key, "-n", "1", "--timeout", "60") as owner,
            self._programs.running(second, "sbusctl", "sub", "", "-n", "1", "--timeout", "60") as listener,
        ):
            self._bus.wait_for_subscriber(key)
            self._bus.wait_for_subscriber("everybody")
            self._programs.run(second, "sbusctl", "pub", key, "for your eyes only")
            self._programs.run(first, "sbusctl", "pub", "everybody", "a public message")
            narrator.remark(f"{first.name} receives:")
            said = self._programs.finish(owner)
            _check(said == f"{key}\tfor your eyes only\n", f"unexpected message: {said!r}")
            narrator.remark(f"{second.name} subscribed to all messages, and receives:")
            said = self._programs.finish(listener)
            _check(said == "everybody\ta public message\n", f"only the public message should have arrived: {said!r}")

    def show_call(self) -> None:
        """A user calls a service of another user, which knows the caller; if the service ends, the call fails at once."""
        narrator, first, second = self._narrator, self._first, self._second
        narrator.step(f"{first.name} serves a command, {second.name} calls it")
        script = 'echo "hello $SBUS_CALLER_USER, user $SBUS_CALLER_UID of group $SBUS_CALLER_GID"; cat'
        with self._programs.running(first, "sbusctl", "serve", "greet", "--exec", "sh", "--", "-c", script):
            self._bus.wait_for_subscriber("rpc/greet")
            said = self._programs.run(second, "sbusctl", "call", "greet", "and goodbye")
        wanted = f", user {second.uid} of group {second.gid}\nand goodbye"
        _check(said.startswith("hello ") and said.endswith(wanted), f"the service should have reported user {second.uid}: {said!r}")
        narrator.remark("the bus told the service who the caller is; the caller cannot forge this")
        self._show_end_of_service()

    def _show_end_of_service(self) -> None:
        """Kill a service during a call: the call fails before its timeout."""
        narrator, first, second = self._narrator, self._first, self._second
        narrator.remark(f"a second service of {first.name} is slow, and is killed while {second.name} waits for a response")
        begun = time.monotonic()
        with self._programs.running(first, "sbusctl", "serve", "slow", "--exec", "sh", "--", "-c", _SLOWLY) as service:
            self._bus.wait_for_subscriber("rpc/slow")
            with self._programs.running(second, "sbusctl", "call", "slow", "--timeout", "600", "x") as caller:
                # A waiting caller has two subscriptions: for the response, and for the disconnection of the service.
                self._bus.wait_for_subscriptions(second.uid, 2)
                service.kill()
                said = self._programs.finish(caller, status=PEER_DISCONNECTED)
        _check(": disconnected" in said, f"the call should have failed because the service disconnected: {said!r}")
        _check(time.monotonic() - begun < CALL_SECONDS, "the call should have failed at once")
        narrator.remark("the call failed at once, not after its timeout of 600 s")

    def show_restarts(self) -> None:
        """The bus restarts under load, unnoticed by publisher and subscriber."""
        narrator, second = self._narrator, self._second
        narrator.step(f"The bus restarts {RESTARTS} times, while root publishes {RESTARTS * BETWEEN} numbers to {second.name}")
        words = ("sbusctl", "sub", "count", "-n", str(RESTARTS * BETWEEN), "-F", "%p", "--timeout", "60")
        with self._programs.running(second, *words) as reader:
            self._bus.wait_for_subscriber("count")
            narrator.command("root", ["kill", "-USR2", "PID of the bus"])
            with Bus.connect(str(self._bus.path), timeout=TIMEOUT_SECONDS) as publisher:
                accepted = _accepted(publisher)
                for number in range(RESTARTS * BETWEEN):
                    if number % BETWEEN == 0:
                        self._bus.wait_for_restarts(number // BETWEEN)
                        self._bus.restart()
                    publisher.publish("count", str(number))
                self._bus.wait_for_restarts(RESTARTS)
                _check(_accepted(publisher) == accepted, "a client has reconnected")
            said = self._programs.finish(reader, shown=False).split()
        _check(said == [str(number) for number in range(RESTARTS * BETWEEN)], f"unexpected numbers: {said}")
        narrator.remark(f"{second.name} received all {len(said)} numbers in order, once each, and no client had to reconnect")

    def show_network(self) -> None:
        """Network events: a user is notified when a link is created and removed."""
        narrator, second = self._narrator, self._second
        narrator.step(f"Network events on the bus: root creates and removes a network link, and {second.name} is notified")
        with own_network(narrator) as network:
            feed_words = ["sbus-feed", "netlink", "--namespace", network.name]
            # The feed first publishes a snapshot. The end of the snapshot shows that the feed is ready.
            with self._programs.running(second, "sbusctl", "sub", "net/snapshot/end", "-n", "1", "--timeout", "60") as snapshot:
                self._bus.wait_for_subscriber("net/snapshot/end")
                with self._programs.running(None, *feed_words) as feed:
                    self._programs.wait_beside(snapshot, feed)
                    self._programs.finish(snapshot)
                    self._show_link(network)
                    feed.terminate()
                    self._programs.finish(feed)

    def _show_link(self, network: DemoNetwork) -> None:
        """Create and remove a link, and show what the second user receives."""
        key = f"net/link/{LINK}"
        with self._programs.running(self._second, "sbusctl", "sub", key, "--timeout", "60") as reader:
            self._bus.wait_for_subscriber(key)
            network.create_link()
            network.remove_link()
            self._narrator.remark(f"{self._second.name} receives:")
            events: list[str] = []
            while not events or events[-1] not in ("remove", ""):
                events.append(self._read_event(reader))
        _check(events[:1] == ["new"], f"the first event should have been new: {events}")
        _check(events[-1:] == ["remove"], f"the last event should have been remove: {events}")

    def _read_event(self, reader: subprocess.Popen[str]) -> str:
        """Show the next event that *reader* prints and return its name; empty if *reader* has ended."""
        line = reader.stdout.readline() if reader.stdout else ""
        self._narrator.answer(line)
        return str(json.loads(line.partition("\t")[2])["event"]) if line else ""


@dataclass(frozen=True, slots=True)
class DemoEnvironment:
    """Where the demonstration runs."""

    stage: Stage
    """The programs that the users run."""
    root_stage: Stage
    """The programs that root runs to record and report, with dependencies that *stage* lacks."""
    folder: Path
    """For all temporary files."""
    report: Path
    """The report, which is kept."""
    journal: Path | None = None
    """A folder of journal files; None for the machine's own."""


def show(environment: DemoEnvironment, narrator: Narrator, users: tuple[DemoUser, DemoUser]) -> None:
    """Start a bus, show every scene on it to the *users*, and stop it.

    Raises:
        DemoError: a step did not have the announced result.
    """
    narrator.step("systemd listens on the socket of the bus; the bus is not running yet")
    folder = environment.folder
    with activated_bus(environment.stage, folder, narrator) as bus:
        narrator.remark(f"the socket is {bus.path}; all programs below use it by the environment variable SBUS_ADDRESS")
        programs, of_root = (Programs(stage, str(bus.path), narrator) for stage in (environment.stage, environment.root_stage))
        record = RecordDemo(bus, of_root, narrator, folder)
        events = FeedsDemo(bus, programs, narrator, folder, environment.journal)
        hosts = HostsDemo(bus.path, environment.root_stage, of_root, narrator, folder)
        linked = LinkedHostsDemo(environment.root_stage, of_root, narrator, folder)
        page = WebPageDemo(bus, of_root, narrator)
        blobs = BlobDemo(bus, programs, narrator, folder)
        store = StoreDemo(bus, programs, narrator, folder)
        try:
            scenes = Demonstration(
                bus,
                programs,
                narrator,
                users,
                record=record,
                events=events,
                hosts=hosts,
                linked_hosts=linked,
                web_page=page,
                blobs=blobs,
                store=store,
            )
            scenes.show_all(environment.report)
        except DemoError as error:
            raise DemoError(f"{error}\nOutput of the bus:\n{bus.words}") from None
        narrator.step("SIGTERM stops the bus, as systemctl stop does")
        status = bus.end()
        _check(status == 0, f"the bus ended with status {status}: {bus.words}")
        _check("Traceback" not in bus.words, f"the bus has a bug: {bus.words}")
        narrator.remark("the bus ended with status 0")


def _accepted(bus: Bus) -> int:
    """Return how many connections the bus has accepted since its first start."""
    return int(json.loads(bus.control(controls.STATS))["counters"]["accepted"])


def _check(happened: bool, reason: str) -> None:
    """Fail the demonstration with *reason* unless the announced result *happened*."""
    if not happened:
        raise DemoError(reason)
