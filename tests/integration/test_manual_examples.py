"""The examples of sbus(7) and sbus-protocol(7), taken from the pages as they stand, do what is shown on a real bus."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon
from tests.support.skips import require_program
from tests.support.wire import RawClient
from tools.stage import ROOT

OVERVIEW, PROTOCOL = ROOT / "man" / "sbus.7", ROOT / "man" / "sbus-protocol.7"

SYSTEM_PATH = "/run/sbus.socket"

TIMEOUT_SECONDS = 120.0
"""When output that has not come is a failure; no test waits that long when it passes."""

_BLOCK = re.compile(r"^\.Bd -literal -offset indent\n(.*?)^\.Ed$", re.MULTILINE | re.DOTALL)

_PUBLISHED = re.compile(r"(?:\bpub (?:--lines )?|MSG )'?([^\s'\\]+)")
"""The key that a command of the tour publishes to."""


SHARES_BUS = True


def _examples(page: Path, section: str) -> list[str]:
    """Return the literal blocks of one section, with the escapes of the page resolved."""
    text = page.read_text("utf-8").split(f"\n.Sh {section}\n")[1].split("\n.Sh ")[0]
    return [block.replace("\\e", "\\") for block in _BLOCK.findall(text)]


TOUR = [block.replace("\\e", "\\") for block in _BLOCK.findall(OVERVIEW.read_text("utf-8")) if block.startswith("$ ")]
"""The blocks of the overview that are typed into a shell."""


class Terminal:
    """Runs the commands of a block on one bus and reads their output; stops remaining programs at the end."""

    def __init__(self, bus: Daemon) -> None:
        self._bus = bus
        self._client = bus.client()
        self._env = {"SBUS_ADDRESS": bus.path, "PYTHONPATH": str(ROOT), "PATH": os.defpath, "LANG": "C.UTF-8"}
        self._ends = ExitStack()
        self._running: list[subprocess.Popen[bytes]] = []
        self._unread = b""
        self.failures = 0
        """Commands that ended with another status than 0."""

    def __enter__(self) -> Self:
        """Open the pipe that all commands print to."""
        self._reader, self._writer = os.pipe()
        self._ends.callback(os.close, self._reader)
        self._ends.callback(os.close, self._writer)
        return self

    def __exit__(self, *_error: object) -> None:
        """End what still runs, which only a failed test leaves."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._ends.close()

    def type(self, line: str) -> None:
        """Run a command to its end, or, with ``&`` at its end, start it."""
        if (published := _PUBLISHED.search(line)) and self._running:
            self._wait_for_recipient(published[1].encode())
        program = shlex.join([sys.executable, "-m", "sbusctl.main"])
        command = line.removesuffix(" &").replace(SYSTEM_PATH, self._bus.path)
        process = subprocess.Popen(
            ["sh", "-c", f'sbusctl() {{ {program} "$@"; }}\n{command}'],
            stdin=subprocess.DEVNULL,
            stdout=self._writer,
            stderr=self._writer,
            env=self._env,
            cwd="/",
            start_new_session=True,
        )
        self._running.append(process)
        if not line.endswith(" &"):
            self._finish(process)

    def read_line(self) -> str:
        """Return the next line that was printed, without its end."""
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._reader], [], [], TIMEOUT_SECONDS)
            assert ready, f"nothing came behind {self._unread!r}"
            self._unread += os.read(self._reader, 65_536)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def finish(self) -> None:
        """Wait until all commands have ended, and fail if they have printed more than was read."""
        for process in list(self._running):
            self._finish(process)
        ready, _, _ = select.select([self._reader], [], [], 0)
        assert (self._unread, ready) == (b"", [])

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of one command."""
        self.failures += process.wait(TIMEOUT_SECONDS) != 0
        self._running.remove(process)

    def _said(self) -> bytes:
        """Return what has been printed and not been read."""
        ready, _, _ = select.select([self._reader], [], [], 0)
        return self._unread + (os.read(self._reader, 65_536) if ready else b"")

    def _wait_for_recipient(self, key: bytes) -> None:
        """Wait until a command in the background has subscribed to *key*, according to the bus."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if json.loads(self._client.ask(controls.TRACE, key))["recipients"]:
                return
            ended = [process.args for process in self._running if process.poll() is not None]
            assert not ended, f"{ended} ended before it got a message; it said {self._said()!r}"
            time.sleep(0.01)  # leaves the processor to the program that is to subscribe
        pytest.fail(f"no client has subscribed to {key!r}")


def _steps(block: str) -> Iterator[tuple[bool, str]]:
    """Return the lines of a block, the continued ones joined: for each whether it is typed, and without its prompt."""
    lines = re.sub(r"\n>\s+", " ", block).replace(" \\\n", " ").splitlines()
    return ((line.startswith("$ "), line.removeprefix("$ ")) for line in lines)


def _as_this_user(block: str) -> str:
    """Return *block* with the ids of the user who runs the test instead of those of its author."""
    uid, gid = os.getuid(), os.getgid()
    block = block.replace("!/cred//1001/", f"!/cred//{uid + 1}/").replace("!/cred//1000/", f"!/cred//{uid}/")
    return block.replace("!/cred/1000/1000/", f"!/cred/{gid}/{uid}/")


@pytest.mark.parametrize("block", TOUR, ids=lambda block: block.splitlines()[0].split()[1])
def test_the_tour(bus: Daemon, block: str) -> None:
    if "socat" in block:
        require_program("socat", "socat")
    block, refusals = _as_this_user(block), block.count("\nsbusctl: ")
    with Terminal(bus) as terminal:
        for is_typed, line in _steps(block):
            if is_typed:
                terminal.type(line)
            else:
                # The number of a process is another in each run.
                expected = re.sub(r"(!/cred/\d+/\d+/)\d+(?![\d/])", r"\1[0-9]+", line)
                pattern = "[0-9]+".join(re.escape(part) for part in expected.split("[0-9]+"))
                assert re.fullmatch(pattern, terminal.read_line()), line
        terminal.finish()
        assert terminal.failures == refusals


def test_the_tour_is_long_enough_to_show_something() -> None:
    assert len(TOUR) == 4
    assert sum(is_typed for block in TOUR for is_typed, _ in _steps(block)) >= 8


def _play(bus: Daemon, lines: Iterable[str]) -> None:
    """Send and receive what a transcript shows, each client by its letter."""
    clients: dict[str, RawClient] = {}
    ended: set[str] = set()
    for line in lines:
        parts = re.fullmatch(r"([A-Z])([<>]) (.+)", line)
        assert parts, line
        name, direction, text = parts.groups()
        client = clients[name] = clients.get(name) or bus.client()
        packet = text.replace("\\0", "\0").encode()
        if direction == ">":
            client.send(packet)
        elif text == "end":
            assert client.receive() == b"", line
            ended.add(name)
        elif text.endswith(" ..."):
            assert client.receive().startswith(packet.removesuffix(b"...")), line
        else:
            assert client.receive() == packet, line
    for name in clients.keys() - ended:
        assert clients[name].barrier() == [], f"{name} got what is not shown"


def test_the_session(bus: Daemon) -> None:
    session, _ = _examples(PROTOCOL, "EXAMPLES")
    lines = session.splitlines()
    assert {line[:2] for line in lines} == {"A>", "A<", "B>", "B<"}
    _play(bus, lines)


def test_the_program(bus: Daemon) -> None:
    _, program = _examples(PROTOCOL, "EXAMPLES")
    assert SYSTEM_PATH in program
    code = program.replace(SYSTEM_PATH, bus.path)
    done = subprocess.run([sys.executable, "-W", "ignore::ResourceWarning", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("chat/python hello\n", "")


def _members(value: object) -> Iterator[str]:
    """Return the names of all members of a JSON value, of those within it too."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _members(each)
    elif isinstance(value, list):
        for each in value:
            yield from _members(each)


def test_every_member_of_an_answer_is_documented(bus: Daemon) -> None:
    section = PROTOCOL.read_text("utf-8").split("\n.Sh 6. ")[1].split("\n.Sh 7. ")[0]
    documented = set(re.findall(r"\w+", " ".join(re.findall(r"^\.(?:It )?Cm (.+)$", section, re.MULTILINE))))
    client, other = bus.client(), bus.client()
    client.subscribe(b"a/")
    other.barrier()
    asked = ((controls.STATS, None), (controls.CONNECTIONS, None), (controls.TRACE, b"a/b"), (controls.TRACE, b"!/bus/x"))
    answered = {name for key, payload in asked for name in _members(json.loads(client.ask(key, payload)))}
    assert {"counters", "connections", "recipients", "others", "hidden", "patterns"} <= answered
    assert answered <= documented
