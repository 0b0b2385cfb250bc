"""The guides in docs/guides: each program in them does on a real bus what its guide says."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from sbus import Bus
from tests.support.daemons import Daemon
from tests.support.store_programs import BUS_RIGHTS, StoreProgram
from tools.stage import ROOT

GUIDES = ROOT / "docs" / "guides"
SECONDS = 60.0

_PROGRAM = re.compile(r"^```python\n(# (\w+\.py).*?)^```$", re.MULTILINE | re.DOTALL)


class Programs:
    """The programs of one guide, as files in *folder*."""

    def __init__(self, guide: str, folder: Path, bus: Daemon, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._env = {"SBUS_ADDRESS": bus.path, "PYTHONPATH": str(ROOT), "PATH": os.defpath, "LANG": "C.UTF-8"}
        for text, name in _PROGRAM.findall((GUIDES / guide).read_text()):
            (folder / name).write_text(text)

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program, which is killed at the end."""
        command = [sys.executable, "-W", "error", str(self._folder / name), *arguments]
        process = self._stack.enter_context(subprocess.Popen(command, env=self._env, stdout=subprocess.PIPE, text=True))
        self._stack.callback(process.kill)
        return process

    def run(self, name: str, *arguments: str) -> tuple[str, str]:
        """Run a program to its end, and return what it writes to standard output and standard error."""
        command = [sys.executable, "-W", "error", str(self._folder / name), *arguments]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=SECONDS, check=False)
        return done.stdout, done.stderr


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what a test has started."""
    with ExitStack() as made:
        yield made


def line(pipe: IO[str] | None) -> str:
    """Return the next line of a program."""
    assert pipe is not None
    return pipe.readline().rstrip("\n")


def test_every_program_and_every_guide_has_a_test() -> None:
    source = Path(__file__).read_text() + Path(__file__).with_name("test_readme.py").read_text()
    for guide in GUIDES.iterdir():
        assert f'"{guide.name}"' in source, guide.name
        blocks = len(re.findall(r"^```python$", guide.read_text(), re.MULTILINE))
        assert len(_PROGRAM.findall(guide.read_text())) == blocks, f"a program in {guide.name} does not begin with its name"


def test_work_queue(bus: Daemon, tmp_path: Path, stack: ExitStack) -> None:
    programs = Programs("work-queue.md", tmp_path, bus, stack)
    assert programs.run("producer.py", "a") == ("", "no worker is running\n")
    workers = [programs.start("worker.py") for _ in range(2)]
    assert [line(worker.stdout) for worker in workers] == ["ready"] * 2
    names = [f"picture{number}" for number in range(8)]
    assert programs.run("producer.py", *names) == ("", "")
    # Which worker has how many of them depends on how fast each is.
    done = ""
    while done.count("\n") < len(names):
        ready, _, _ = select.select([worker.stdout for worker in workers if worker.stdout], [], [], SECONDS)
        assert ready, done
        done += "".join(os.read(each.fileno(), 65_536).decode() for each in ready)
    assert sorted(done.splitlines()) == [f"done jobs/{name} please resize {name}" for name in names]


BUS_CONFIGURATION = BUS_RIGHTS
"""This user may run the store."""


SHARES_BUS = True


@pytest.fixture
def store(bus: Daemon, tmp_path: Path) -> Iterator[StoreProgram]:
    """A store on the bus with the streams of the guides."""
    guides = "".join((GUIDES / guide).read_text() for guide in ("stored-messages.md", "work-queue.md"))
    streams = "".join(text for text in re.findall(r"^```toml\n(.*?)^```$", guides, re.MULTILINE | re.DOTALL) if "[[stream]]" in text)
    with StoreProgram(tmp_path, bus.path, streams) as made:
        yield made


def test_stored_jobs(store: StoreProgram, bus: Daemon, tmp_path: Path, stack: ExitStack) -> None:
    programs = Programs("work-queue.md", tmp_path, bus, stack)
    assert programs.run("stored_producer.py", "a", "b") == ("", "")
    first = programs.start("stored_worker.py")
    assert line(first.stdout) == "done please send a"
    assert line(first.stdout) == "done please send b"
    first.kill()
    first.wait()
    assert programs.run("stored_producer.py", "c") == ("", "")
    second = programs.start("stored_worker.py")
    # The first worker had not acknowledged its last job before it asked for the next one; it may have.
    said = line(second.stdout)
    assert said in ("done please send b", "done please send c")
    assert said.endswith("c") or line(second.stdout) == "done please send c"


def test_stored_messages(store: StoreProgram, bus: Daemon, tmp_path: Path, stack: ExitStack) -> None:
    programs = Programs("stored-messages.md", tmp_path, bus, stack)
    with Bus.connect(bus.path) as sensors:
        sensors.store.put("sensor/attic", "19")
        latest = programs.start("latest.py")
        assert line(latest.stdout) == "sensor/attic 19"
        sensors.publish("sensor/kitchen", "22")
        assert line(latest.stdout) == "sensor/kitchen 22"
    assert programs.run("order.py", "bread", "milk") == ("1\n2\n", "")
    assert programs.run("accounts.py") == ("1 bread\n2 milk\n", "")
    assert programs.run("order.py", "eggs") == ("3\n", "")
    assert programs.run("accounts.py") == ("3 eggs\n", "")


def test_dashboard(bus: Daemon, tmp_path: Path, stack: ExitStack) -> None:
    """It draws a few times, although its socket holds hundreds of messages."""
    dashboard = Programs("dashboard.md", tmp_path, bus, stack).start("dashboard.py", "0.5")
    assert line(dashboard.stdout) == "ready"
    with Bus.connect(bus.path) as sensors:
        sensors.publish("sensor/attic", "19")
        assert line(dashboard.stdout) == "sensor/attic=19"
        os.kill(dashboard.pid, signal.SIGSTOP)
        for value in range(5_000):
            sensors.publish("sensor/kitchen", f"{value}")
        sensors.ping()
        os.kill(dashboard.pid, signal.SIGCONT)
    drawn = 1
    while line(dashboard.stdout) != "sensor/attic=19 sensor/kitchen=4999":
        drawn += 1
    assert drawn <= 3


def test_rpc_service(bus: Daemon, tmp_path: Path, stack: ExitStack) -> None:
    programs = Programs("rpc-service.md", tmp_path, bus, stack)
    assert programs.run("caller.py", "hello") == ("", "no service is running\n")
    assert line(programs.start("service.py").stdout) == "ready"
    assert programs.run("caller.py", "hello") == ("HELLO\n", "")
    assert programs.run("caller.py", "")[1].endswith("give some text\n")


@pytest.mark.parametrize(
    ("guide", "output"),
    [
        ("from-nats.md", f"orders/new 42\nresize\nnoon, user {os.getuid()}\n"),
        ("from-mqtt.md", "1 subscriber\nhome/attic/temperature 19.5\nhome/kitchen/light on\n"),
        ("from-dbus.md", "80\nbalanced\n"),
    ],
)
def test_tours(bus: Daemon, tmp_path: Path, stack: ExitStack, guide: str, output: str) -> None:
    assert Programs(guide, tmp_path, bus, stack).run("tour.py") == (output, "")
