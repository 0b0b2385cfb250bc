"""Rules about units on a real bus: control groups as systemd makes them, two users, and what hostile ones of them do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.fdstore import Manager
from tests.support.kernels import old_kernel
from tests.support.recorder_fakes import recorded
from tests.support.relays import wait_for
from tests.support.shell import Shell
from tests.support.unit_tree import Connector, UnitTree
from tests.support.users import FIRST, SECOND, User
from tests.support.wire import RawClient, error_code, message
from tools.stage import Stage

pytestmark = pytest.mark.usefixtures("needs_root")

RULES = """
[[policy]]
keys = "web/"
publish = "allow"
subscribe = "allow"
units = ["web.service", "app@*.service"]

[[policy]]
keys = "web/"
publish = "deny"
subscribe = "deny"
comment = "only the web services"

[[policy]]
keys = "log/"
publish = "deny"
units = ["bad.service"]
"""

Connect = Callable[..., Connector]


@pytest.fixture
def tree() -> Iterator[UnitTree]:
    """Control groups of units."""
    made = UnitTree()
    yield made
    made.remove()


only_this_kernel = pytest.mark.parametrize("kernel", ["this kernel"], indirect=True)
"""For tests of what other programs do with a unit, however the bus has read it."""


@pytest.fixture(params=["this kernel", "Linux 6.12"])
def kernel(request: pytest.FixtureRequest, folder: Path) -> dict[str, str]:
    """The environment of the bus: with a kernel that reports control groups at once, if this one does, or without."""
    return old_kernel(folder) if request.param == "Linux 6.12" else {}


@pytest.fixture
def bus(daemon: StartDaemon, folder: Path, kernel: dict[str, str]) -> Daemon:
    """A bus with the rules."""
    (folder / "sbusd.toml").write_text(RULES)
    return daemon("-C", str(folder / "sbusd.toml"), env=kernel)


@pytest.fixture
def connect(tree: UnitTree, bus: Daemon) -> Iterator[Connect]:
    """Connect processes in units: ``connect("web.service", user=FIRST)``. The processes live until the end of the test."""
    made: list[Connector] = []

    def start(unit: str, *, user: User = FIRST, owner: User | None = None) -> Connector:
        made.append(Connector(tree.unit(unit, owner=owner), bus.path, user=user))
        return made[-1]

    yield start
    for each in made:
        each.close()


def may_use(client: RawClient, key: bytes = b"web/x") -> bool:
    """Return whether a client may publish to a key and subscribe to it: both or neither."""
    client.subscribe(key)
    client.publish(key)
    packets = client.barrier()
    if packets == [message(key)]:
        client.unsubscribe(key)
        return True
    assert [error_code(packet) for packet in packets] == ["EPERM", "EPERM"]
    return False


def placed(observer: RawClient, connection: int) -> dict[str, object]:
    """Return what an observer sees of the unit of a connection."""
    listed = json.loads(observer.ask(controls.CONNECTIONS))["connections"]
    (found,) = [each for each in listed if each["id"] == connection]
    return {name: found[name] for name in ("unit", "slice", "user_unit")}


def wait_until_placed(observer: RawClient, client: RawClient, unit: str) -> None:
    """Wait until the bus has read that a client is in *unit*."""
    number = number_of(client)
    wait_for(lambda: placed(observer, number)["unit"] == unit, f"the unit {unit}")


def number_of(client: RawClient) -> int:
    """Return the number of the connection of *client*."""
    return int(client.ask(controls.ADDRESS).split(b"/")[2])


def test_only_processes_in_the_unit_may(connect: Connect) -> None:
    for unit, allowed in (("web.service", True), ("app@1.service", True), ("web.scope", False), ("mail.service", False)):
        assert may_use(connect(unit).client) is allowed, unit
    # Of two connections of one unit the second one is known from the first one.
    assert may_use(connect("web.service").client)
    assert may_use(connect("web.service", user=SECOND).client)


def test_a_process_in_no_unit_or_an_unknown_one_may_not(connect: Connect, bus: Daemon) -> None:
    assert not may_use(connect("plain").client)
    # The process that made this connection has ended.
    assert not may_use(bus.client(FIRST))


def test_a_rule_that_denies_is_about_its_units_and_unknown_ones(connect: Connect, bus: Daemon) -> None:
    denied = {"bad.service": True, "good.service": False, "plain": False}
    for unit, is_denied in denied.items():
        client = connect(unit).client
        client.publish(b"log/x")
        assert len(client.barrier()) == is_denied, unit
    ended = bus.client(FIRST)
    ended.publish(b"log/x")
    assert len(ended.barrier()) == 1


def test_a_name_in_a_delegated_tree_is_not_a_unit(connect: Connect, tree: UnitTree, bus: Daemon) -> None:
    """The user makes control groups with the names of units, in its own part of the tree, and connects from there."""
    tree.unit("user@1000.service", owner=FIRST)
    box = tree.unit("box.service", owner=FIRST)

    def forge() -> None:
        for path in (
            "user@1000.service/web.service",
            "box.service/web.service",
            "box.service/system.slice",
            "box.service/system.slice/web.service",
        ):
            (tree.folder / path).mkdir()

    FIRST.call(forge)
    observer = bus.client()
    shown = {}
    for path in ("user@1000.service/web.service", "box.service/web.service", "box.service/system.slice/web.service"):
        client = connect(path).client
        assert not may_use(client), path
        shown[path] = placed(observer, number_of(client))
    assert list(shown.values()) == [
        {"unit": "user@1000.service", "slice": tree.slice, "user_unit": "web.service"},
        *[{"unit": "box.service", "slice": tree.slice, "user_unit": None}] * 2,
    ]

    # The kernel lets no user leave its own part.
    def leave() -> None:
        (tree.folder / "web.service" / "cgroup.procs").write_text(str(os.getpid()))

    tree.unit("web.service")
    with pytest.raises(PermissionError):
        FIRST.call(leave)
    assert box.is_dir()


def test_a_process_that_moves_later_keeps_its_unit(connect: Connect, tree: UnitTree, bus: Daemon) -> None:
    tree.unit("web.service")
    outside, inside = connect("mail.service", user=User(0, 0)), connect("web.service", user=User(0, 0))
    observer = bus.client()
    # The bus reads the unit after the connect; a process that moved before that would be in its new unit.
    wait_until_placed(observer, outside.client, "mail.service")
    wait_until_placed(observer, inside.client, "web.service")
    outside.move(tree.unit("web.service"))
    inside.move(tree.unit("mail.service"))
    assert not may_use(outside.client)
    assert may_use(inside.client)
    assert placed(observer, number_of(outside.client))["unit"] == "mail.service"


def test_a_socket_that_is_passed_on_keeps_the_unit_of_the_connect(connect: Connect) -> None:
    """The process that uses the socket, here the test, is in another unit. The one that connected may end: the unit was read."""
    inside, outside = connect("web.service"), connect("mail.service")
    assert may_use(inside.client)
    assert not may_use(outside.client)
    inside.end()
    outside.end()
    assert may_use(inside.client)
    assert not may_use(outside.client)


def test_one_user_cannot_make_another_wait(connect: Connect, bus: Daemon) -> None:
    """A flood of connections of one user, whose units have to be read, while another user connects."""
    flood = os.fork()
    if not flood:
        os.setresuid(FIRST.uid, FIRST.uid, FIRST.uid)
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock, contextlib.suppress(OSError):
                sock.connect(bus.path)
    try:
        for _ in range(5):
            # A unit that is read too late is unknown, on a busy machine too.
            wait_for(lambda: may_use(connect("web.service", user=SECOND).client), "a connection whose unit is known")
    finally:
        os.kill(flood, signal.SIGKILL)
        os.waitpid(flood, 0)
    control = json.loads(bus.client().ask(controls.STATS))["control"]
    assert control["internal_errors"] == 0


@only_this_kernel
def test_only_those_who_see_a_connection_see_its_unit(connect: Connect, bus: Daemon) -> None:
    number = number_of(connect("web.service").client)
    assert placed(bus.client(), number)["unit"] == placed(connect("plain").client, number)["unit"] == "web.service"
    other = connect("plain", user=SECOND).client
    assert number not in [each["id"] for each in json.loads(other.ask(controls.CONNECTIONS))["connections"]]


@only_this_kernel
def test_a_reload_applies_rules_to_the_units_of_all_clients(connect: Connect, bus: Daemon, folder: Path) -> None:
    web, mail = connect("web.service").client, connect("mail.service").client
    observer = bus.client()
    mail.subscribe(b"log/")
    web.subscribe(b"web/")
    assert mail.barrier() == web.barrier() == []
    (folder / "sbusd.toml").write_text(RULES.replace("web.service", "mail.service"))
    bus.process.send_signal(signal.SIGHUP)
    (said,) = _until_error(web)
    assert error_code(said) == "EPERM"
    assert may_use(mail)
    assert not may_use(web)
    assert observer.barrier() == []


def _until_error(client: RawClient) -> list[bytes]:
    """Return the packets that come without a request: the errors after a reload."""
    return [client.receive()]


@only_this_kernel
def test_the_unit_is_in_the_outputs_of_sbusctl(connect: Connect, tree: UnitTree, bus: Daemon, stage: Stage) -> None:
    shell = Shell(stage, bus)
    number = number_of(connect("web.service").client)
    lines = shell.succeed("--no-pager", "connections").decode().splitlines()
    (row,) = [line.split() for line in lines if line.split()[:1] == [str(number)] and "listed" not in line]
    assert row[4:6] == ["web.service", tree.slice]
    report = json.loads(shell.succeed("--json=short", "top", "--once"))
    (row,) = [each for each in report["connections"] if each["id"] == number]
    assert (row["unit"], row["slice"]) == ("web.service", tree.slice)
    explain = ("explain", "--unit", "web.service", str(FIRST.uid), "publish", "web/x")
    assert b"may publish to web/x: allowed by rule 1 of" in shell.succeed(*explain)
    denied = shell.run("explain", "--unit", "mail.service", str(FIRST.uid), "publish", "web/x")
    assert (denied.returncode, b"only the web services" in denied.stdout) == (7, True)
    unknown = shell.run("explain", str(FIRST.uid), "publish", "web/x")
    assert unknown.returncode == 7
    wrong = shell.run("explain", "--unit", "web", str(FIRST.uid), "publish", "web/x")
    assert (wrong.returncode, b"is not the name of a unit" in wrong.stderr) == (2, True)


@only_this_kernel
def test_the_journal_and_the_error_name_the_rule(connect: Connect, bus: Daemon) -> None:
    client = connect("mail.service").client
    client.publish(b"web/x")
    (error,) = client.barrier()
    assert b"only the web services" in error


def test_a_restart_reads_the_units_again(tree: UnitTree, folder: Path, kernel: dict[str, str]) -> None:
    """In place and after a kill; a process that has ended meanwhile is in an unknown unit, so its subscriptions end."""
    (folder / "sbusd.toml").write_text(RULES)
    with Manager(folder, options=("-C", str(folder / "sbusd.toml")), env=kernel) as manager:
        manager.start()
        inside, ended = (Connector(tree.unit("web.service"), manager.path, user=FIRST) for _ in range(2))
        try:
            for each, key in ((inside, b"web/1"), (ended, b"web/2")):
                each.client.subscribe(key)
                assert each.client.barrier() == []
            manager.reload()
            assert publishes(inside.client, b"web/1")
            assert publishes(ended.client, b"web/2")
            ended.end()
            manager.end(signal.SIGKILL)
            manager.start()
            lost = b"CMSG !/bus/lost\x000"
            assert inside.client.barrier() == [lost]
            assert publishes(inside.client, b"web/1")
            packets = ended.client.barrier()
            assert lost in packets
            packets.remove(lost)
            if not kernel and not packets:
                # Since Linux 6.16 the control group of an ended process is known; its path is, because another process is in it.
                assert publishes(ended.client, b"web/2")
            else:
                assert [error_code(packet) for packet in packets] == ["EPERM"]
        finally:
            inside.close()
            ended.close()


def publishes(client: RawClient, key: bytes) -> bool:
    """Return whether a client that has subscribed to *key* receives what it publishes there."""
    client.publish(key)
    return client.barrier() == [message(key)]


@only_this_kernel
def test_the_record_has_the_unit(tree: UnitTree, bus: Daemon, connect: Connect, folder: Path, stage: Stage) -> None:
    pytest.importorskip("pyarrow")
    from tests.integration.test_recorder import Service

    early = connect("web.service").client
    assert early.barrier() == []
    service = Service(folder, stage, User(0, 0), bus.path)
    try:
        service.wait_ready()
        tree.unit("user@1000.service")
        late = connect("user@1000.service/app.service")
        early.publish(b"a")
        late.client.publish(b"b")
        assert early.barrier() == late.client.barrier() == []
    finally:
        service.end()
    units = {row.key: row.unit for row in recorded(service.folder / "archive") if row.kind == "message"}
    assert units == {"a": "web.service", "b": "user@1000.service/app.service"}
