"""``sbusctl top`` on a real bus, with a reader that does not read, and on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from tests.support.daemons import Daemon
from tests.support.shell import TIMEOUT_SECONDS, Shell
from tests.support.users import User
from tests.support.wire import RawClient
from tools.stage import Stage

_SEQUENCE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_INTERVAL = "0.1"
"""Seconds: the shortest that there is."""

PAYLOAD = bytes(10_000)
"""Of 6,000 of them what a user may leave unread of another one is only a part."""


SHARES_BUS = True


@pytest.fixture
def shell(stage: Stage, bus: Daemon) -> Shell:
    """sbusctl on a bus that everyone may use."""
    return Shell(stage, bus)


@pytest.fixture
def slow(shell: Shell, first_user: User, second_user: User) -> tuple[RawClient, RawClient]:
    """A reader that does not read, whose queue is full, and its publisher: of two users, so that neither can hold up the other."""
    reader, publisher = shell.daemon.client(first_user), shell.daemon.client(second_user)
    reader.subscribe(b"k")
    reader.barrier()
    for _ in range(6_000):
        publisher.publish(b"k", PAYLOAD)
    publisher.barrier()
    return reader, publisher


def _report(shell: Shell, *arguments: str, user: User | None = None) -> dict[str, list[dict[str, float]]]:
    """Return one report."""
    return cast(dict[str, list[dict[str, float]]], json.loads(shell.succeed("top", "--once", "-i", _INTERVAL, "-j", *arguments, user=user)))


def test_a_reader_that_does_not_read_is_first_with_its_queues_and_losses(
    shell: Shell, slow: tuple[RawClient, RawClient], first_user: User
) -> None:
    seen = _report(shell)
    first = seen["connections"][0]
    assert first["uid"] == first_user.uid
    assert first["queued_packets"] > 0
    assert first["lost_packets"] > 0
    # Each packet is delivered to its socket, or waits, or is lost. One more it has read: the answer to its barrier.
    unread = first["delivered_packets"] - 1
    assert unread + first["queued_packets"] + first["lost_packets"] == 6_000
    kernel = cast(dict[str, bool], seen["kernel"])
    assert kernel == {"available": True}
    # A packet is 6 bytes longer than its payload.
    assert first["client_receive_bytes"] == unread * (len(PAYLOAD) + 6)
    assert first["bus_send_bytes"] > first["client_receive_bytes"]
    assert first["bus_receive_bytes"] == 0
    totals = cast(dict[str, float], seen["totals"])
    assert totals["queued_packets"] == first["queued_packets"]
    assert totals["lost_packets"] == first["lost_packets"]


def test_rates_cover_the_time_between_two_reports(shell: Shell, slow: tuple[RawClient, RawClient], second_user: User) -> None:
    _, publisher = slow
    with _running(shell, "-j", "top", "-i", _INTERVAL, stdout=subprocess.PIPE) as top:
        assert top.stdout is not None
        while True:
            publisher.publish(b"k", PAYLOAD)
            seen = json.loads(top.stdout.readline())
            rows = {row["uid"]: row for row in seen["connections"]}
            writer, reader = rows[second_user.uid], seen["connections"][0]
            # However slow the machine is, one of the reports begins before a packet and ends behind it.
            if writer["received_packets_per_second"] and reader["lost_packets_per_second"]:
                break
    packets = writer["received_packets_per_second"] * seen["seconds"]
    assert packets == pytest.approx(round(packets), rel=1e-4)
    assert writer["received_bytes_per_second"] == pytest.approx(writer["received_packets_per_second"] * (len(PAYLOAD) + 6))
    assert reader["lost_packets_per_second"] == pytest.approx(writer["received_packets_per_second"])
    assert seen["totals"]["received_packets_per_second"] >= writer["received_packets_per_second"]


def test_modes(shell: Shell, first_user: User) -> None:
    client = shell.daemon.client(first_user)
    for control in (b"blocking/soft/discard", b"blocking/hard/error", b"order/stack"):
        client.control(control)
    client.barrier()
    modes = {row["uid"]: row["mode"] for row in _report(shell)["connections"]}
    assert modes == {first_user.uid: cast(object, "discard/error/stack"), 0: cast(object, "queue/discard/queue")}


def test_by_user(shell: Shell, slow: tuple[RawClient, RawClient], first_user: User, second_user: User) -> None:
    users = {row["uid"]: row for row in _report(shell, "--by-uid")["users"]}
    assert users[first_user.uid]["connections"] == users[second_user.uid]["connections"] == 1
    assert users[first_user.uid]["lost_packets"] > 0
    assert users[first_user.uid]["queued_bytes"] > 0
    assert users[second_user.uid]["queued_bytes"] == 0
    assert users[second_user.uid]["received_packets"] >= 6_000


def test_others_see_their_own_alone(shell: Shell, slow: tuple[RawClient, RawClient], second_user: User) -> None:
    seen = _report(shell, user=second_user)
    assert {row["uid"] for row in seen["connections"]} == {second_user.uid}
    assert seen["scope"] == cast(object, "connections")
    assert cast(dict[str, float], seen["totals"])["hidden"] == 1
    text = shell.succeed("top", "--once", "-i", _INTERVAL, user=second_user).decode().splitlines()
    assert text[0].endswith("2 connections, 1 of other users hidden; totals of those listed")
    assert [row["uid"] for row in _report(shell, "--by-uid", user=second_user)["users"]] == [second_user.uid]


def test_a_pipe_gets_reports_one_below_the_other(shell: Shell) -> None:
    lines = shell.succeed("top", "-n", "2", "-i", _INTERVAL, "--sort", "id").decode().splitlines()
    head = [number for number, line in enumerate(lines) if line.startswith("ID ")]
    assert len(head) == 2
    assert lines[head[0]].split()[-1] == "MODE"
    assert lines[head[1] - 5] == ""
    assert "\x1b" not in "".join(lines)
    assert len(shell.succeed("top", "--once", "-i", _INTERVAL, "--no-legend").splitlines()) == 1


def test_a_reader_of_reports_that_closes_the_pipe_is_not_an_error(shell: Shell) -> None:
    with _running(shell, "top", "-i", _INTERVAL, stdout=subprocess.PIPE) as top:
        assert top.stdout is not None
        assert top.stderr is not None
        top.stdout.readline()
        top.stdout.close()
        assert top.wait(TIMEOUT_SECONDS) == 141
        assert top.stderr.read() == b""


@contextmanager
def _running(shell: Shell, *arguments: str, stdout: int, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """Start sbusctl, and end it with the block."""
    command = shell.stage.program("sbusctl", *arguments)
    env = {**shell.env, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=env, cwd="/")
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


# On a terminal


class Terminal:
    """A terminal of 80 columns and 24 lines with ``sbusctl top`` on it."""

    def __init__(self, keyboard: int, program: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.shown = b""
        self._keyboard = keyboard
        self._program = program
        self.before = termios.tcgetattr(program)

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._keyboard, key)

    def wait_for(self, text: bytes, times: int = 1) -> None:
        """Read until *text* has been shown *times* times."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while self.shown.count(text) < times:
            ready, _, _ = select.select([self._keyboard], [], [], max(0.0, end - time.monotonic()))
            assert ready, self.shown
            self.shown += os.read(self._keyboard, 65_536)

    def ended(self) -> tuple[int, bytes]:
        """Return the status and the words on standard error of the program, which must end by itself, and read the rest."""
        assert self.process.stderr is not None
        end = time.monotonic() + TIMEOUT_SECONDS
        while self.process.poll() is None:
            # It may wait for room on the terminal.
            assert time.monotonic() < end, self.shown
            self._read_ready(0.05)
        self._read_ready(0)
        return self.process.returncode, self.process.stderr.read()

    def _read_ready(self, seconds: float) -> None:
        """Read all that is there, after waiting for the first of it."""
        while select.select([self._keyboard], [], [], seconds)[0]:
            self.shown += os.read(self._keyboard, 65_536)
            seconds = 0

    def check_restored(self) -> None:
        """Fail unless the first screen is back, with the cursor on it and the keyboard as it was."""
        assert self.shown.rindex(b"\x1b[?1049h") < self.shown.rindex(b"\x1b[?1049l")
        assert self.shown.rindex(b"\x1b[?25l") < self.shown.rindex(b"\x1b[?25h")
        assert termios.tcgetattr(self._program) == self.before


@contextmanager
def _live(shell: Shell, *arguments: str) -> Iterator[Terminal]:
    """Run ``sbusctl top`` on a terminal, live."""
    keyboard, program = pty.openpty()
    try:
        fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(program)
        with _running(shell, "top", "-i", _INTERVAL, *arguments, stdout=program, stdin=program) as process:
            terminal = Terminal(keyboard, program, process)
            terminal.before = before
            yield terminal
    finally:
        os.close(program)
        os.close(keyboard)


def test_it_is_live_until_q(shell: Shell, slow: tuple[RawClient, RawClient]) -> None:
    with _live(shell) as terminal:
        terminal.wait_for(b"QBYTES", times=3)
        terminal.press(b"q")
        assert terminal.ended() == (0, b"")
        terminal.check_restored()
    live, _, left = terminal.shown.rpartition(b"\x1b[?1049l")
    # Never an empty screen in between.
    assert b"\x1b[2J" not in live.partition(b"\x1b[?1049h")[2]
    for line in _SEQUENCE.sub(b"", live.replace(b"\x1b[H", b"\r\n")).split(b"\r\n"):
        assert len(line.decode().rstrip()) <= 80
    headings = b"USER         PID COMMAND         IN/s OUT/s QUEUED QBYTES  K-IN K-OUT  LOST\r\n"
    # The last report is left on the first screen, whole.
    assert headings in left
    assert left.endswith(b"\r\n")
    assert b"\x1b" not in left


def test_it_ends_after_as_many_reports_as_asked_for(shell: Shell) -> None:
    with _live(shell, "-n", "2", "--by-uid") as terminal:
        assert terminal.ended() == (0, b"")
        terminal.check_restored()
    # One without rates, two that were asked for, and the last one left behind.
    assert terminal.shown.count(b"CONNS") == 4


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_leave_the_terminal_as_it_was(shell: Shell, number: signal.Signals, status: int) -> None:
    with _live(shell) as terminal:
        terminal.wait_for(b"QBYTES")
        terminal.process.send_signal(number)
        assert terminal.ended() == (status, b"")
        terminal.check_restored()


def test_a_bus_that_ends_is_one_line_on_the_first_screen(shell: Shell) -> None:
    with _live(shell) as terminal:
        terminal.wait_for(b"QBYTES")
        shell.daemon.stop()
        status, said = terminal.ended()
        terminal.check_restored()
    assert status == 1
    assert said.startswith(b"sbusctl: disconnected from ")
    assert said.count(b"\n") == 1
