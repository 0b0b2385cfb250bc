"""The demonstration of ``make run``: it succeeds, leaves nothing behind, and fails if a step does not have the announced result."""

from __future__ import annotations

import os
import pwd
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sbus import Bus, Message
from tests.support.journals import JournalFolder
from tests.support.spark import require_spark
from tools.demo.activation import ActivatedBus, activated_bus
from tools.demo.blobs import BlobDemo
from tools.demo.events import FeedsDemo
from tools.demo.host_processes import accepts_clients
from tools.demo.hosts import HostsDemo
from tools.demo.linked_hosts import LinkedHostsDemo
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import Programs
from tools.demo.record import RecordDemo
from tools.demo.scenes import DemoEnvironment, show
from tools.demo.users import RAW_IDS, DemoUser
from tools.stage import ROOT, Stage, own_stage

pytestmark = [pytest.mark.machine, pytest.mark.usefixtures("needs_root", "needs_systemd_socket_activate", "needs_namespaces")]

USERS = (DemoUser("first", 61_021, 61_021), DemoUser("second", 61_022, 61_022))


def _traces() -> set[str]:
    """Return what a demonstration creates and must remove: users, namespaces, folders."""
    users = {entry.pw_name for entry in pwd.getpwall() if entry.pw_name in RAW_IDS}
    folders = {str(path) for path in Path("/tmp").glob("sbus-demo-*")}
    namespaces = Path("/run/netns")
    return users | folders | ({path.name for path in namespaces.glob("sbus-demo-*")} if namespaces.is_dir() else set())


@pytest.mark.timeout(1_800)
def test_demonstration_ends_well_and_leaves_nothing_behind_but_the_report(tmp_path: Path) -> None:
    """All scenes once, with a recorder, three linked hosts and Spark."""
    require_spark()
    report = tmp_path / "new" / "report.html"
    before = _traces()
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), "TERM": os.environ.get("TERM", "dumb")}
    command = [sys.executable, "-m", "tools.demo", "--report", str(report)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=1_500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for said in (
        "EACCES",
        "9 m/s from the north",
        "for your eyes only",
        "hello sbus-demo-b, user " if os.path.exists("/usr/sbin/useradd") else "hello ",
        "the caller cannot forge this",
        "the call failed at once",
        "remote host 1002 unreachable",
        'the caller received "hello from 1001, and back from 1002" once',
        "hello host 1001\n       and goodbye",
        'host/beta/net/link/demo0-peer\t{"event":"new"',
        "or another host was not reached",
        'host/alpha/net/link/demo2-peer\t{"event":"new"',
        "sbus-blob passed a sealed memory file, and did not copy it",
        "subscribes later, and receives:",
        "forecast/oslo\tsnow\n",
        "gets the job at once:",
        "dead, 2 tries",
        "received all 2000 numbers in order, once each, and no client had to reconnect",
        '"event":"new"',
        '"event":"remove"',
        f"3 calls, 1 failed; 0 messages lost, 1 refusal; nothing is known to be missing\n       written to {report}\n",
        "The demonstration succeeded",
    ):
        assert said in done.stdout
    recorded = re.search(r"recorded (\d+) messages and (\d+) other rows into ", done.stdout)
    assert recorded is not None
    messages, others = (int(number) for number in recorded.groups())
    # The numbers, the users' messages, and at least the loopback link and its address.
    assert messages >= 2_000 + 4 + 2 + 3
    assert f": {messages + others:,} rows\n" in done.stdout
    assert f"\n       {messages:,} messages of " in done.stdout
    assert "weather/oslo" in report.read_text()
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    assert _traces() <= before


@dataclass(frozen=True, slots=True)
class BrokenStage(Stage):
    """A stage that replaces one program."""

    broken: str = ""
    instead: str = ""

    def program(self, name: str, *arguments: str) -> list[str]:
        """Return the command of the program, or of its replacement."""
        # slots=True replaces the class, so that super() without arguments fails before Python 3.14.
        return [self.instead] if name == self.broken else Stage.program(self, name, *arguments)


@pytest.mark.parametrize(
    ("broken", "instead", "reason"),
    [
        ("sbusctl", "true", "first has group 61021 and user 61021, but the bus reports ''"),
        ("sbusctl", "false", "the program ended with status 1 instead of 0"),
        ("sbusd", "false", "the program ended with status 1"),
    ],
)
def test_demonstration_fails_when_something_does_not_happen(stage: Stage, folder: Path, broken: str, instead: str, reason: str) -> None:
    made = BrokenStage(stage.python, stage.env, stage.folder, broken, instead)
    with pytest.raises(DemoError, match=reason):
        show(DemoEnvironment(made, made, folder, folder / "report.html"), Narrator(), USERS)
    assert not (folder / "report.html").exists()
    assert not (Path("/run/netns") / f"sbus-demo-{os.getpid()}").exists()


def show_hosts(bus: ActivatedBus, stage: Stage, narrator: Narrator, folder: Path) -> None:
    """Show the calls between hosts."""
    HostsDemo(bus.path, stage, Programs(stage, str(bus.path), narrator), narrator, folder).show()


def show_linked_hosts(bus: ActivatedBus, stage: Stage, narrator: Narrator, folder: Path) -> None:
    """Show the linked hosts."""
    LinkedHostsDemo(stage, Programs(stage, str(bus.path), narrator), narrator, folder).show()


def show_blobs(bus: ActivatedBus, stage: Stage, narrator: Narrator, folder: Path) -> None:
    """Show a blob."""
    BlobDemo(bus, Programs(stage, str(bus.path), narrator), narrator, folder).show(*USERS)


@pytest.mark.parametrize(
    ("scene", "broken", "reason"),
    [
        (show_hosts, "sbus-relay", "the relay of host 1001 has not started, status 1"),
        (show_linked_hosts, "sbus-feed", "the feed of host alpha has not started, status 1"),
        (show_linked_hosts, "sbus-link", "the link of host alpha has not started, status 1"),
        (show_blobs, "sbus-blob", "sbus-blob does not listen on "),
    ],
)
def test_a_scene_fails_when_its_program_does(
    stage: Stage, folder: Path, scene: Callable[[ActivatedBus, Stage, Narrator, Path], None], broken: str, reason: str
) -> None:
    narrator, before = Narrator(), _traces()
    made = BrokenStage(stage.python, stage.env, stage.folder, broken, "false")
    with activated_bus(stage, folder, narrator) as bus, pytest.raises(DemoError, match=reason):
        scene(bus, made, narrator, folder)
    assert _traces() <= before


def test_a_bus_whose_socket_exists_but_does_not_listen_yet_is_awaited(folder: Path) -> None:
    path = folder / "bus"
    assert not accepts_clients(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        assert path.is_socket()
        assert not accepts_clients(path)
        listener.listen()
        assert accepts_clients(path)


def test_a_missing_redis_is_reported(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    narrator, own = Narrator(), own_stage()
    HostsDemo(folder / "bus", own, Programs(own, str(folder / "bus"), narrator), narrator, folder).show()
    assert capsys.readouterr().out.endswith("-> skipped: this machine has no redis-server and no redis-cli\n")


def test_journal_is_shown_to_root_alone(stage: Stage, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = JournalFolder(folder / "journal")
    files.add("first", "last", unit="web.service")
    narrator = Narrator()
    with activated_bus(stage, folder, narrator) as bus:
        programs = Programs(stage, str(bus.path), narrator)
        with Bus.connect(str(bus.path)) as root, root.subscribe("journal/") as subscription:
            FeedsDemo(bus, programs, narrator, folder, files.path).show(USERS[1])
            root.ping()
            delivered = [item for item in (subscription.receive(1.0) for _ in range(2)) if isinstance(item, Message)]
    assert [item.key for item in delivered] == ["journal/web.service/info"] * 2
    said = capsys.readouterr().out
    assert "EPERM" in said
    assert said.endswith("or all if there are fewer; second cannot read them\n")


def test_a_missing_journal_is_reported(stage: Stage, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty").mkdir()
    narrator = Narrator()
    with activated_bus(stage, folder, narrator) as bus:
        FeedsDemo(bus, Programs(stage, str(bus.path), narrator), narrator, folder, folder / "empty").show(USERS[1])
    said = capsys.readouterr().out
    assert "net/snapshot/end" in said
    assert said.endswith("-> this machine has no journal, as in a container without systemd; recording network events only\n")


@pytest.mark.parametrize(("broken", "instead"), [("sbus-pipeline", "false"), ("sbusctl", "false")])
def test_end_fails_when_a_program_does(folder: Path, broken: str, instead: str) -> None:
    narrator, own = Narrator(), own_stage()
    with activated_bus(own, folder, narrator) as bus:
        made = BrokenStage(own.python, own.env, own.folder, broken, instead)
        record = RecordDemo(bus, Programs(made, str(bus.path), narrator), narrator, folder)
        with pytest.raises(DemoError, match="status 1"), record.running() as recorder:
            record.finish(recorder, folder / "report.html")
    assert not (folder / "report.html").exists()
