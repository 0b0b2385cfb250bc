"""Who may connect to a real daemon."""

from __future__ import annotations

import contextlib

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import FIRST, SECOND, User
from tests.support.wire import error_code

pytestmark = pytest.mark.usefixtures("needs_root")


def check_served(bus: Daemon, user: User | None) -> None:
    """Fail unless *user* is served."""
    assert bus.client(user).ask(controls.PING, b"x") == b"x"


def check_refused(bus: Daemon, user: User) -> None:
    """Fail unless *user* receives the reason, is disconnected, and is logged."""
    (reported,) = bus.client(user).receive_to_end()
    assert error_code(reported) == "EACCES"
    assert f"user {user.uid} is not admitted".encode() in reported
    bus.stop()
    assert [line for line in bus.stderr.splitlines() if "rejected connection" in line and f"uid={user.uid}" in line]


def test_without_u_everyone_is_served(bus: Daemon) -> None:
    for user in (None, FIRST, SECOND):
        check_served(bus, user)


def test_with_u_only_those_users_and_the_bus_s_own(daemon: StartDaemon) -> None:
    bus = daemon("-u", str(FIRST.uid))
    check_served(bus, None)
    check_served(bus, FIRST)
    check_refused(bus, SECOND)


def test_u_accepts_a_name_and_can_be_repeated(daemon: StartDaemon) -> None:
    bus = daemon("-u", "nobody", "-u", str(SECOND.uid))
    nobody = User(65_534, 65_534)
    check_served(bus, nobody)
    check_served(bus, SECOND)
    check_refused(bus, FIRST)


def test_u_adds_to_the_configuration(daemon: StartDaemon) -> None:
    bus = daemon("-u", str(SECOND.uid), config=f"allowed_users = [{FIRST.uid}]\n")
    check_served(bus, FIRST)
    check_served(bus, SECOND)
    check_refused(bus, User(61_003, 61_003))


def test_a_bus_of_a_user_serves_that_user(daemon: StartDaemon) -> None:
    bus = daemon("-u", str(SECOND.uid), user=FIRST)
    check_served(bus, FIRST)
    check_served(bus, SECOND)
    check_refused(bus, User(61_003, 61_003))


def test_a_refused_user_s_packets_are_never_handled(daemon: StartDaemon) -> None:
    bus = daemon("-u", str(FIRST.uid))
    listener = bus.client(FIRST)
    listener.subscribe(b"")
    listener.barrier()
    for _ in range(20):
        intruder = bus.client(SECOND)
        with contextlib.suppress(ConnectionError):  # refused even before
            intruder.publish(b"a", b"from outside")
            intruder.subscribe(b"")
        assert [error_code(packet) for packet in intruder.receive_to_end()] == ["EACCES"]
    assert listener.barrier() == []


def test_the_owner_of_a_user_s_bus_is_that_user_and_root(daemon: StartDaemon) -> None:
    bus = daemon(user=FIRST)
    for user in (FIRST, None):
        assert b'"scope":"bus"' in bus.client(user).ask(controls.STATS)
    assert b'"scope":"connection"' in bus.client(SECOND).ask(controls.STATS)


def test_an_admin_is_an_owner(daemon: StartDaemon) -> None:
    bus = daemon(config=f"admins = [{SECOND.uid}]\n")
    assert b'"scope":"bus"' in bus.client(SECOND).ask(controls.STATS)
    assert b'"scope":"connection"' in bus.client(FIRST).ask(controls.STATS)
