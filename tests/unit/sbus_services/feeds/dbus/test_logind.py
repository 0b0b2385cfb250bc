"""The feed of sessions on a real D-Bus bus, with an imitation of systemd-logind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dbus_fast import Variant

from sbus_services.feeds.dbus import logind
from sbus_services.feeds.dbus.logind import LoginSource
from tests.support.dbus_services import DBusDaemon, dbus_daemon
from tests.support.service_managers import LoginManager
from tests.support.skips import require_program
from tests.support.state_feeds import RunningFeed, run

pytestmark = pytest.mark.slow

ONE = "logind/session/1"
TWO = "logind/session/2"
SCHEDULED = "logind/scheduled/shutdown"
SLEEP = "logind/prepare/sleep"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DBusDaemon]:
    require_program("dbus-daemon", "dbus-daemon")
    with dbus_daemon(tmp_path) as running:
        yield running


@asynccontextmanager
async def feeding(daemon: DBusDaemon, *, has_addresses: bool = False) -> AsyncIterator[RunningFeed[LoginManager]]:
    """Run a feed of one session, one user and one seat."""
    feed = RunningFeed[LoginManager](daemon, lambda table, counters: LoginSource(table, counters, has_addresses=has_addresses))
    feed.service = await LoginManager.connect(daemon.address)
    feed.service.begin()
    feed.service.add_session("1")
    root = LoginManager.PATH
    sessions = Variant("a(so)", [["1", f"{root}/session/_31"]])
    user = {"UID": Variant("u", 1000), "Name": Variant("s", "alice"), "State": Variant("s", "active"), "Linger": Variant("b", False)}
    feed.service.objects[f"{root}/user/_1000"] = "User", 1000, {**user, "Sessions": sessions, "IdleHint": Variant("b", False)}
    feed.service.objects[f"{root}/seat/seat0"] = "Seat", "seat0", {"Id": Variant("s", "seat0"), "Sessions": sessions}
    await feed.service.own(LoginManager.NAME)
    await feed.begin()
    yield feed
    await feed.end()


def test_a_snapshot_has_sessions_users_seats_and_shutdowns_but_no_remote_address(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as feed:
            state = {key: payload for key, payload in feed.output.published if "snapshot" not in key}
            assert state[ONE] == {
                "event": "snapshot",
                "session": "1",
                "uid": 1000,
                "user": "alice",
                "seat": None,
                "class": "user",
                "type": "tty",
                "state": "active",
                "active": True,
                "idle": False,
                "locked": False,
                "remote": True,
                "service": "sshd",
                "since": 1_700_000_000.5,
            }
            user = {"uid": 1000, "user": "alice", "state": "active", "sessions": ["1"], "idle": False, "linger": False}
            assert state["logind/user/1000"] == {"event": "snapshot", **user}
            seat = {"seat": "seat0", "active_session": None, "sessions": ["1"], "idle": None}
            assert state["logind/seat/seat0"] == {"event": "snapshot", **seat}
            assert state[SLEEP] == state["logind/prepare/shutdown"] == {"event": "snapshot", "preparing": False}
            assert state[SCHEDULED] == {"event": "snapshot", "type": None, "at": None}

    run(test)


def test_remote_addresses_are_published_on_request(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon, has_addresses=True) as feed:
            assert feed.output.last(ONE)["remote_host"] == "192.0.2.7"
            assert feed.output.last(ONE)["remote_user"] is None

    run(test)


def test_sessions_come_change_and_go(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as feed:
            feed.service.add_session("2", Class=Variant("s", "greeter"))
            await feed.has(TWO, event="new", **{"class": "greeter"})
            feed.service.change_session("1", "LockedHint", Variant("b", True))
            await feed.has(ONE, event="change", locked=True, old={"locked": False})
            feed.service.remove_session("1")
            await feed.has(ONE, event="remove", locked=True, user="alice")
            # It is gone before it could be read.
            feed.service.add_session("3")
            feed.service.remove_session("3")
            feed.service.add_session("4")
            await feed.has("logind/session/4", event="new")
            assert feed.output.events_of("logind/session/3") == []
            assert feed.counters.corrected == 0

    run(test)


def test_shutdowns_are_announced_and_scheduled_ones_are_asked_for(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as feed:
            feed.service.manager["PreparingForSleep"] = Variant("b", True)
            feed.service.manager["ScheduledShutdown"] = Variant("(st)", ["reboot", 1_700_000_600_000_000])
            feed.service.signal("PrepareForSleep", "b", True)
            await feed.has(SLEEP, event="change", preparing=True, old={"preparing": False})
            await feed.has(SCHEDULED, type="reboot", at=1_700_000_600)
            feed.service.manager["PreparingForSleep"] = Variant("b", False)
            feed.service.signal("PrepareForSleep", "b", False)
            await feed.has(SLEEP, preparing=False)

    run(test)


def test_changes_without_signals_are_found(daemon: DBusDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logind, "READ_SECONDS", 0.2)

    async def test() -> None:
        async with feeding(daemon) as feed:
            feed.service.change_session("1", "State", Variant("s", "closing"), is_silent=True)
            await feed.has(ONE, state="closing")
            feed.service.add_session("2", is_silent=True)
            await feed.has(TWO, event="new")
            feed.service.manager["ScheduledShutdown"] = Variant("(st)", ["poweroff", 1])
            await feed.has(SCHEDULED, type="poweroff")
            assert feed.counters.corrected == 1

    run(test)


def test_another_logind_is_read_again(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as feed:
            feed.service.close()
            feed.service = await LoginManager.connect(daemon.address)
            feed.service.begin()
            feed.service.add_session("2")
            await feed.service.own(LoginManager.NAME)
            await feed.has(ONE, event="remove")
            await feed.has(TWO, event="new")
            assert feed.output.last("logind/lost")["reason"] == "restarted"

    run(test)


def test_unexpected_values_are_an_error_of_one_line_and_the_feed_goes_on(daemon: DBusDaemon) -> None:
    async def test() -> None:
        async with feeding(daemon) as feed:
            feed.service.signal("SessionNew", "ii", 1, 2)
            feed.service.change_session("1", "Name", Variant("ai", [1, 2]))
            feed.service.add_session("2")
            await feed.has(TWO, event="new")
            assert feed.counters.undecodable == 1
            assert all("\n" not in line for line in feed.said)
            feed.service.change_session("1", "Name", Variant("s", "alicia"))
            await feed.has(ONE, user="alicia")

    run(test)
