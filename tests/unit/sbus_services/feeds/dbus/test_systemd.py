"""The feed of units on a real D-Bus bus, with an imitation of systemd for cases that a real one does not show on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbus_services.feeds.dbus.systemd import UNIT_INTERFACE, ServiceManagerSource, path_of_unit
from tests.support.dbus_services import DBusDaemon, DBusService, dbus_daemon
from tests.support.feed_outputs import WAIT_SECONDS
from tests.support.service_managers import NAME, ServiceManager
from tests.support.skips import require_program
from tests.support.state_feeds import RunningFeed, run

pytestmark = pytest.mark.slow

A = "systemd/unit/a.service"
B = "systemd/unit/b.service"
END = "systemd/snapshot/end"
LOST = "systemd/lost"


class Fixture(RunningFeed[ServiceManager]):
    """A feed of an imitation of systemd."""

    def __init__(self, daemon: DBusDaemon) -> None:
        super().__init__(daemon, ServiceManagerSource)

    @property
    def manager(self) -> ServiceManager:
        """The imitation."""
        return self.service

    async def start_manager(self, **units: str) -> None:
        """Start an imitation of systemd with these services."""
        self.service = await ServiceManager.connect(self.daemon.address)
        self.service.begin(**units)
        await self.service.own(NAME)

    async def settled(self) -> None:
        """Wait until all signals that were sent are published: a later change is."""
        self.manager.units["marker.target"] = {"load": "loaded", "active": "inactive", "sub": "dead", "result": None, "job": 0}
        self.manager.change("marker.target", active="active", sub=f"state{len(self.output.published)}")
        await self.has("systemd/unit/marker.target", sub=self.manager.units["marker.target"]["sub"])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DBusDaemon]:
    require_program("dbus-daemon", "dbus-daemon")
    with dbus_daemon(tmp_path) as running:
        yield running


@asynccontextmanager
async def feeding(daemon: DBusDaemon, **units: str) -> AsyncIterator[Fixture]:
    """Run a feed that has published its first snapshot."""
    fixture = Fixture(daemon)
    await fixture.start_manager(**units)
    await fixture.begin()
    yield fixture
    await fixture.end()


def test_it_begins_with_a_snapshot_that_has_results(daemon: DBusDaemon) -> None:
    async def test() -> None:
        fixture = Fixture(daemon)
        await fixture.start_manager(a="active", b="failed")
        fixture.manager.units["b.service"]["result"] = "exit-code"
        fixture.manager.jobs[7] = "a.service", "restart", "running"
        await fixture.begin()
        published = fixture.output.take()
        await fixture.end()
        assert [key for key, _ in published] == ["systemd/snapshot/begin", "systemd/job/7", A, B, END]
        by_key = dict(published)
        state = {"event": "snapshot", "load": "loaded", "job": None}
        assert by_key[A] == {**state, "unit": "a.service", "active": "active", "sub": "running", "result": "success"}
        assert by_key[B] == {**state, "unit": "b.service", "active": "failed", "sub": "failed", "result": "exit-code"}
        job = {"job": 7, "unit": "a.service", "type": "restart", "state": "running", "result": None}
        assert by_key["systemd/job/7"] == {"event": "snapshot", **job}
        assert (by_key[END]["entries"], by_key[END]["reason"], by_key[END]["connected"]) == (3, "start", True)
        assert fixture.ready == ["3 entries, 1 snapshots (last: start), 0 disconnects"]

    run(test)


def test_changes_have_the_old_values_and_nothing_is_published_twice(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, a="active", b="active") as fixture:
            fixture.output.take()
            fixture.manager.change("a.service", active="failed", sub="failed", result="signal")
            fixture.manager.change("b.service")
            await fixture.has(A, active="failed")
            await fixture.settled()
            changed = fixture.output.last(A)
            assert changed["event"] == "change"
            # The two signals of one change may be seen apart, but the old values are those that were published.
            assert {"active": "active", "sub": "running", **changed["old"]}["active"] == "active"
            assert changed["result"] == "signal"
            assert fixture.output.events_of(B) == []

    run(test)


def test_a_unit_that_was_only_looked_at_leaves_no_message_but_one_that_ran_does(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as fixture:
            for _ in range(20):
                fixture.manager.load("looked.service")
                fixture.manager.unload("looked.service")
            fixture.manager.load("ran.service")
            fixture.manager.change("ran.service", active="failed", sub="failed", result="exit-code")
            fixture.manager.unload("ran.service")
            await fixture.has("systemd/unit/ran.service", event="remove", active="failed", result="exit-code")
            await fixture.settled()
            assert fixture.output.events_of("systemd/unit/looked.service") == []
            # Asking about a unit by its path would load it again: only lists of loaded units are read.
            assert {member for _, member in fixture.manager.calls} <= {"Subscribe", "ListUnits", "ListUnitsByPatterns", "ListJobs"}

    run(test)


def test_new_units_and_jobs_are_looked_up_and_results_of_jobs_are_kept(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as fixture:
            fixture.manager.load("a.service", active="activating")
            fixture.manager.queue(1, "a.service")
            await fixture.has(A, active="activating", load="loaded")
            await fixture.has("systemd/job/1", event="new", type="start", state="waiting")
            fixture.manager.finish(1, "timeout")
            await fixture.has("systemd/job/1", event="remove", result="timeout", type="start")
            # It ends before it could be looked up.
            fixture.manager.queue(2, "a.service")
            fixture.manager.finish(2)
            await fixture.has("systemd/job/2", event="remove", result="done", unit="a.service")
            fixture.manager.queue(3, "a.service")
            await fixture.has("systemd/job/3", event="new")

    run(test)


def test_a_storm_is_coalesced_and_ends_with_the_last_states(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, **{f"s{number}": "inactive" for number in range(50)}) as fixture:
            number = 0
            for round_number in range(40):
                for unit in range(50):
                    number += 1
                    fixture.manager.queue(number, f"s{unit}.service")
                    fixture.manager.change(f"s{unit}.service", active="active", sub="running", job=number)
                    fixture.manager.finish(number)
                    last = "failed" if unit % 2 and round_number == 39 else "inactive"
                    fixture.manager.change(f"s{unit}.service", active=last, sub="dead", result="success", job=0)
                    if unit % 10 == 0:
                        await fixture.manager.flush()
            await fixture.output.wait_for(lambda: sum(key.startswith("systemd/job/") for key, _ in fixture.output.published) >= number)
            for unit in range(50):
                await fixture.has(f"systemd/unit/s{unit}.service", active="failed" if unit % 2 else "inactive", job=None)
            results = [
                payload for key, payload in fixture.output.published if key.startswith("systemd/job/") and payload["event"] == "remove"
            ]
            assert len(results) == number
            assert {each["result"] for each in results} == {"done"}
            assert fixture.table.coalesced > 0
            assert fixture.table.dropped == 0
            assert fixture.counters.corrected == 0

    run(test)


def test_while_the_bus_is_slow_results_that_do_not_fit_are_reported_as_lost(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, a="inactive") as fixture:
            fixture.table._most = 100  # the real limit takes long to reach
            fixture.output.take()
            fixture.output.is_open.clear()
            fixture.manager.change("a.service", active="activating")
            for number in range(1, 301):
                fixture.manager.queue(number, "a.service")
                fixture.manager.finish(number)
                await fixture.manager.flush()
            fixture.manager.change("a.service", active="active", sub="running")
            async with asyncio.timeout(WAIT_SECONDS):
                while fixture.table.dropped < 190:
                    await asyncio.sleep(0.01)
            fixture.output.is_open.set()
            await fixture.has(A, active="active", sub="running")
            await fixture.output.wait_for(lambda: len(fixture.output.events_of("systemd/job/300")))
            lost = sum(payload["count"] for key, payload in fixture.output.published if key == LOST)
            arrived = {key for key, payload in fixture.output.published if key.startswith("systemd/job/") and payload["event"] == "remove"}
            assert lost == fixture.table.dropped == 300 - len(arrived)
            assert {payload["reason"] for key, payload in fixture.output.published if key == LOST} == {"backlog"}

    run(test)


def test_a_reload_publishes_only_differences(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, a="active", b="active", c="active") as fixture:
            fixture.output.take()
            fixture.manager.signal("Reloading", "b", True)
            for name in fixture.manager.units:
                fixture.manager.signal("UnitRemoved", "so", name, path_of_unit(name))
            fixture.manager.units["b.service"]["load"] = "masked"
            del fixture.manager.units["c.service"]
            for name in fixture.manager.units:
                fixture.manager.signal("UnitNew", "so", name, path_of_unit(name))
            fixture.manager.signal("Reloading", "b", False)
            await fixture.has(B, load="masked", event="change", old={"load": "loaded"})
            await fixture.has("systemd/unit/c.service", event="remove", active="active")
            await fixture.settled()
            assert fixture.output.events_of(A) == []

    run(test)


def test_another_owner_of_the_name_is_read_again_and_reported(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, a="active", b="active") as fixture:
            fixture.manager.jobs[3] = "b.service", "stop", "running"
            fixture.manager.queue(4, "a.service")
            await fixture.has("systemd/job/4", event="new")
            fixture.output.take()
            fixture.manager.close()
            await fixture.start_manager(a="failed")
            fixture.manager.units["a.service"]["result"] = "oom-kill"
            await fixture.has(A, active="failed", event="change", result="oom-kill")
            await fixture.has(B, event="remove")
            await fixture.has("systemd/job/4", event="remove", result=None)
            keys = [key for key, _ in fixture.output.published]
            assert keys.index(LOST) < keys.index(A)
            assert fixture.output.last(LOST)["reason"] == "restarted"
            assert fixture.output.events_of(LOST) == ["lost"]
            assert fixture.counters.restarts == 1

    run(test)


def test_a_restart_of_the_dbus_bus_is_survived(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, a="active", b="active") as fixture:
            fixture.output.take()
            daemon.stop()
            await fixture.has(LOST, reason="disconnected")
            fixture.output.events.put_nowait("request")
            await fixture.has(END, reason="request", connected=False, entries=2)
            daemon.start()
            await fixture.start_manager(a="inactive", b="active")
            await fixture.has(A, event="change", active="inactive")
            fixture.manager.change("b.service", active="inactive")
            await fixture.has(B, active="inactive")
            assert fixture.counters.disconnects == 1
            assert fixture.said[0] == "lost the connection to the D-Bus bus; connecting again"

    run(test)


def test_signals_of_others_are_ignored_and_counted(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, a="active") as fixture:
            attacker = await DBusService.connect(daemon.address)
            others = {attacker.unique_name, fixture.manager.unique_name}
            names = [name for name in await attacker.ask("ListNames") if name.startswith(":") and name not in others]
            fixture.output.take()
            for victim in names:
                attacker.emit_changed(path_of_unit("a.service"), UNIT_INTERFACE, {"ActiveState": ("s", "failed")}, destination=victim)
                attacker.emit(
                    "/org/freedesktop/systemd1",
                    "org.freedesktop.systemd1.Manager",
                    "UnitRemoved",
                    "so",
                    "a.service",
                    "/x",
                    destination=victim,
                )
            async with asyncio.timeout(WAIT_SECONDS):
                while fixture.counters.forged < 2:
                    await asyncio.sleep(0.01)
            await fixture.settled()
            assert fixture.output.events_of(A) == []
            attacker.close()

    run(test)


def test_signals_with_other_types_are_counted_and_the_state_is_read_again(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, a="active") as fixture:
            fixture.manager.units["a.service"]["active"] = "failed"
            fixture.manager.signal("UnitNew", "i", 5)
            fixture.manager.emit_changed(path_of_unit("a.service"), UNIT_INTERFACE, {"ActiveState": ("i", 5)})
            fixture.manager.emit("/elsewhere", "org.freedesktop.systemd1.Manager", "UnitNew", "so", "a", "/b")
            await fixture.has(A, active="failed")
            assert fixture.counters.undecodable == 2
            assert len(fixture.said) == 1

    run(test)


def test_a_change_without_a_signal_is_found_and_counted(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, a="active", b="active") as fixture:
            fixture.manager.is_silent = True
            fixture.manager.change("a.service", active="inactive", sub="dead")
            fixture.manager.is_silent = False
            # The comparison follows signals.
            fixture.manager.change("b.service", sub="exited")
            await fixture.has(A, active="inactive")
            assert fixture.counters.corrected == 1

    run(test)


def test_requests_and_reconnections_are_answered_by_snapshots(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, a="active") as fixture:
            for _ in range(100):
                fixture.output.events.put_nowait("request")
            await fixture.has(END, reason="request", requests=100)
            fixture.output.events.put_nowait("reconnect")
            await fixture.has(END, reason="reconnect", entries=1)
            assert len(fixture.output.events_of(END)) == 3

    run(test)


def test_a_manager_that_comes_later_is_waited_for(daemon: DBusDaemon) -> None:
    async def test() -> None:
        fixture = Fixture(daemon)
        await fixture.begin()
        assert fixture.output.last(END).items() >= {"entries": 0, "connected": False}.items()
        assert fixture.said == ["org.freedesktop.systemd1 is not on the D-Bus bus; waiting for it"]
        await fixture.start_manager(a="active")
        await fixture.has(A, event="new", active="active")
        assert fixture.counters.restarts == 0
        await fixture.end()

    run(test)


def test_names_of_units_are_escaped_in_keys(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as fixture:
            name = r"dev-disk-by\x2did-7*ü.device"
            fixture.manager.units[name] = {"load": "loaded", "active": "active", "sub": "plugged", "result": None, "job": 0}
            fixture.manager.emit_changed(path_of_unit("9.service"), UNIT_INTERFACE, {"ActiveState": ("s", "active")})
            await fixture.has("systemd/unit/dev-disk-by%5Cx2did-7%2A%C3%BC.device", result=None, active="active")

    run(test)
