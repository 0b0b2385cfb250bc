"""What the demonstration shows. Each scene says what should happen, does it with real processes, and checks that it did."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from sbusd.client import Bus
from sbusd.protocol import controls
from tools.demo.activation import ActivatedBus, activated_bus
from tools.demo.events import Events
from tools.demo.hosts import Hosts
from tools.demo.narrator import DemoError, Narrator
from tools.demo.network import LINK, Network, own_network
from tools.demo.people import Person
from tools.demo.programs import TIMEOUT_SECONDS, Programs
from tools.demo.record import Record
from tools.stage import Stage

PEER_DISCONNECTED = 5
"""The status of ``sbusctl call`` when the service has gone, sbusctl(1)."""

_SLOWLY = "while sleep 1; do echo still at work; done"
"""A program that goes on for ever, and ends soon after the one that reads its output."""

CALL_SECONDS = 120.0
"""Far less than the time that the call allows, and far more than it takes to start the programs on any machine."""

RESTARTS = 5

BETWEEN = 400
"""Numbers that are published from one restart to the next."""


class Scenes:
    """The scenes, in the order in which they are shown, on a bus that the first of them starts."""

    def __init__(
        self,
        bus: ActivatedBus,
        programs: Programs,
        narrator: Narrator,
        people: tuple[Person, Person],
        *,
        record: Record,
        events: Events,
        hosts: Hosts,
    ) -> None:
        self._bus = bus
        self._programs = programs
        self._narrator = narrator
        self._first, self._second = people
        self._record = record
        self._events = events
        self._hosts = hosts

    def show_all(self, report: Path) -> None:
        """Show everything, and write the page *report* of it."""
        self.show_whoami()
        with self._record.running() as recorder:
            self.show_publish_and_subscribe()
            self.show_secret()
            self.show_call()
            self._hosts.show()
            self.show_restarts()
            self.show_network()
            self._events.show(self._second)
            self._record.finish(recorder, report)

    def show_whoami(self) -> None:
        """The first connection starts the bus, and the bus knows who connects."""
        narrator = self._narrator
        narrator.step(f"{self._first.name} connects: this starts the bus, and the kernel tells the bus the user of the connection")
        _check(not self._bus.is_started, f"the bus should not run before the first connection, but {self._bus.program} runs")
        for person in (self._first, self._second):
            said = self._programs.run(person, "sbusctl", "whoami")
            _check(
                re.fullmatch(rf"!/cred/{person.gid}/{person.uid}/\d+\n", said) is not None,
                f"{person.name} has group {person.gid} and user {person.uid}, but the bus reports {said!r}",
            )
        _check(self._bus.is_started, f"the bus should run now, but {self._bus.program} runs")
        narrator.remark("this private key contains group, user and process; a client cannot choose them")

    def show_publish_and_subscribe(self) -> None:
        """A message reaches another user by a wildcard, and another one does not."""
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
        """A secret key is refused to another user, and not heard by one who listens to everything."""
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
        """A service on one account is called from another; it knows who calls, and its end fails the call at once."""
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
        """Kill a service while it is called: the call does not wait for its time to be up."""
        narrator, first, second = self._narrator, self._first, self._second
        narrator.remark(f"a second service of {first.name} is slow, and is killed while {second.name} waits for a response")
        begun = time.monotonic()
        with self._programs.running(first, "sbusctl", "serve", "slow", "--exec", "sh", "--", "-c", _SLOWLY) as service:
            self._bus.wait_for_subscriber("rpc/slow")
            with self._programs.running(second, "sbusctl", "call", "slow", "--timeout", "600", "x") as caller:
                # Who waits for an answer has a place for it, and watches the end of who owes it.
                self._bus.wait_for_subscriptions(second.uid, 2)
                service.kill()
                said = self._programs.finish(caller, status=PEER_DISCONNECTED)
        _check(": disconnected" in said, f"the call should have failed because the service disconnected: {said!r}")
        _check(time.monotonic() - begun < CALL_SECONDS, "the call should have failed at once")
        narrator.remark("the call failed at once, not after its timeout of 600 s")

    def show_restarts(self) -> None:
        """The bus is started anew under load, and neither who publishes nor who listens can tell."""
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
                        self._bus.wait_until_continued(number // BETWEEN)
                        self._bus.start_anew()
                    publisher.publish("count", str(number))
                self._bus.wait_until_continued(RESTARTS)
                _check(_accepted(publisher) == accepted, "a client has reconnected")
            said = self._programs.finish(reader, shown=False).split()
        _check(said == [str(number) for number in range(RESTARTS * BETWEEN)], f"unexpected numbers: {said}")
        narrator.remark(f"{second.name} received all {len(said)} numbers in order, once each, and no client had to reconnect")

    def show_network(self) -> None:
        """The machine's own events are on the bus: a link that is made and removed is reported to a user."""
        narrator, second = self._narrator, self._second
        narrator.step(f"Network events on the bus: root creates and removes a network link, and {second.name} is notified")
        with own_network(narrator) as network:
            feed_words = ["sbus-feed", "netlink", "--namespace", network.name]
            # The feed first says what there is; its word that this is complete is the sign that it is at work.
            with self._programs.running(second, "sbusctl", "sub", "net/snapshot/end", "-n", "1", "--timeout", "60") as snapshot:
                self._bus.wait_for_subscriber("net/snapshot/end")
                with self._programs.running(None, *feed_words) as feed:
                    self._programs.wait_beside(snapshot, feed)
                    self._programs.finish(snapshot)
                    self._show_link(network)
                    feed.terminate()
                    self._programs.finish(feed)

    def _show_link(self, network: Network) -> None:
        """Make and remove a link, and show what the second user is told of it."""
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
        """Return the name of the next event that *reader* prints, and show it; an empty name when it has ended."""
        line = reader.stdout.readline() if reader.stdout else ""
        self._narrator.answer(line)
        return str(json.loads(line.partition("\t")[2])["event"]) if line else ""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the demonstration is shown, and for whom."""

    stage: Stage
    """What the people run."""
    root_stage: Stage
    """What root runs to record and to report, for which a stage that others can use lacks something."""
    folder: Path
    """For all that is gone in the end."""
    report: Path
    """The page that is left."""
    journal: Path | None = None
    """A folder of journal files; None for the machine's own."""


def show(setting: Setting, narrator: Narrator, people: tuple[Person, Person]) -> None:
    """Start a bus, show every scene on it to the *people*, and end it.

    Raises:
        DemoError: something did not happen as it was said.
    """
    narrator.step("systemd listens on the socket of the bus; the bus is not running yet")
    folder = setting.folder
    with activated_bus(setting.stage, folder, narrator) as bus:
        narrator.remark(f"the socket is {bus.path}; all programs below use it by the environment variable SBUS_ADDRESS")
        programs, of_root = (Programs(stage, str(bus.path), narrator) for stage in (setting.stage, setting.root_stage))
        record = Record(bus, of_root, narrator, folder)
        events = Events(bus, programs, narrator, folder, setting.journal)
        hosts = Hosts(bus.path, setting.root_stage, of_root, narrator, folder)
        try:
            Scenes(bus, programs, narrator, people, record=record, events=events, hosts=hosts).show_all(setting.report)
        except DemoError as error:
            raise DemoError(f"{error}\nOutput of the bus:\n{bus.words}") from None
        narrator.step("SIGTERM stops the bus, as systemctl stop does")
        status = bus.end()
        _check(status == 0, f"the bus ended with status {status}: {bus.words}")
        _check("Traceback" not in bus.words, f"the bus has a bug: {bus.words}")
        narrator.remark("the bus ended with status 0")


def _accepted(bus: Bus) -> int:
    """Return how many connections the bus has taken in its life."""
    return int(json.loads(bus.control(controls.STATS))["counters"]["accepted"])


def _check(happened: bool, reason: str) -> None:
    """Fail the demonstration unless what was said has happened."""
    if not happened:
        raise DemoError(reason)
