"""``sbusctl bench`` on a real bus: its counts add up, no other client receives its messages, and it cleans up. Speed is not tested."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import time

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.shell import TIMEOUT_SECONDS, Shell, ended
from tests.support.users import User
from tools.stage import Stage

SHORT = ("--round-trips", "20", "-n", "500")


@pytest.fixture
def shell(stage: Stage, bus: Daemon) -> Shell:
    """sbusctl on a bus that everyone may use."""
    return Shell(stage, bus)


def wait_until_alone(shell: Shell) -> None:
    """Wait until only the test's own connections are left."""
    observer = shell.daemon.client()
    end = time.monotonic() + TIMEOUT_SECONDS
    while any(each["pid"] != os.getpid() for each in json.loads(observer.ask(controls.CONNECTIONS))["connections"]):
        assert time.monotonic() < end, "connections of the bench are still there"
        time.sleep(0.05)


def test_its_counts_add_up(shell: Shell, first_user: User) -> None:
    report = json.loads(shell.succeed("bench", "-c", "2", "-S", "3", "-s", "16,5000", *SHORT, "--json=short", user=first_user))
    assert (report["clients"], report["subscribers"], report["trips"]["count"]) == (2, 3, 20)
    assert [run["size"] for run in report["runs"]] == [16, 5000]
    for run in report["runs"]:
        assert (run["published"], run["delivered"], run["lost"], run["refused"]) == (1000, 3000, 0, 0)
        assert run["publish_seconds"] > 0
        assert run["deliver_seconds"] > 0
        assert 0 < run["latency"]["p50"] <= run["latency"]["p99"] <= run["latency"]["max"]
    assert 0 < report["trips"]["p50"] <= report["trips"]["max"]
    wait_until_alone(shell)


def test_nothing_is_lost_when_messages_leave_together(shell: Shell) -> None:
    report = json.loads(shell.succeed("bench", "--coalesce", "-s", "16,70000", *SHORT, "--json=short"))
    assert report["coalesce"] is True
    assert [(run["published"], run["delivered"], run["lost"]) for run in report["runs"]] == [(500, 500, 0)] * 2


def test_it_is_a_table_with_notes_or_figures_alone(shell: Shell) -> None:
    heading, row, trips, *notes = shell.succeed("bench", *SHORT).decode().splitlines()
    assert heading.split()[:5] == ["SIZE", "PUBLISHED", "/S", "DELIVERED", "/S"]
    assert row.split()[:2] == ["64B", "500"]
    assert trips.startswith("round trip (idle): p50 ")
    assert notes
    assert all(note.startswith("note: ") for note in notes)
    (row,) = shell.succeed("bench", "-S", "0", "--round-trips", "0", "-n", "10", "--no-legend").decode().splitlines()
    assert row.split()[0] == "64B"


def test_no_other_client_receives_it(shell: Shell, first_user: User, second_user: User) -> None:
    everything = [shell.daemon.client(user) for user in (first_user, second_user)]
    for listener in everything:
        for pattern in (b"", b"*/cred/", b"!*/"):
            listener.send(b"SUB " + pattern)
        listener.ask(controls.PING)
    shell.succeed("bench", *SHORT, user=first_user)
    for listener in everything:
        assert listener.ask(controls.PING) == b""  # the next packet is the answer: none came before it


def test_a_time_bounds_it(shell: Shell) -> None:
    (run,) = json.loads(shell.succeed("bench", "-t", "0.1", "--round-trips", "0", "--json=short"))["runs"]
    assert run["published"] == run["delivered"] > 0


def test_progress_is_shown_on_a_terminal_and_not_on_a_pipe(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    with subprocess.Popen(
        shell.stage.program("sbusctl", "bench", "-t", "1", "--round-trips", "0", "--no-legend"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**shell.env, "TERM": "xterm"},
        cwd="/",
    ) as bench:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while part := os.read(ours, 4096):
                shown += part
        os.close(ours)
        out, _ = bench.communicate(timeout=TIMEOUT_SECONDS)
    assert b"of 1s  published " in shown
    assert len(out.splitlines()) == 1
    assert b"published" not in out


def test_a_quota_that_stops_it_is_named(stage: Stage, daemon: StartDaemon, first_user: User) -> None:
    shell = Shell(stage, daemon(config="[quotas]\nconnections = 4\n"))
    said = shell.fail("bench", "-S", "8", "--round-trips", "0", user=first_user)
    assert "of 8: " in said
    assert f"connections: 4 of 4 used by user {first_user.uid}" in said
    wait_until_alone(shell)


def test_ctrl_c_stops_it_and_prints_its_results(shell: Shell) -> None:
    with start(shell, "bench", "-t", "3600", "--round-trips", "20", "--json=short") as bench:
        bench.send_signal(signal.SIGINT)
        status, out, err = ended(bench)
    report = json.loads(out)
    assert (status, err) == (130, b"")
    assert report["runs"][0]["published"] == report["runs"][0]["delivered"] > 0
    wait_until_alone(shell)


def test_its_workers_end_with_it_however_it_ends(shell: Shell) -> None:
    with start(shell, "bench", "-t", "3600", "-c", "2", "-S", "2", "--round-trips", "0") as bench:
        bench.kill()
        bench.wait()
        wait_until_alone(shell)


def start(shell: Shell, *arguments: str) -> subprocess.Popen[bytes]:
    """Start sbusctl, and return when the run has begun."""
    bench = subprocess.Popen(
        shell.stage.program("sbusctl", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=shell.env, cwd="/"
    )
    observer = shell.daemon.client()
    end = time.monotonic() + TIMEOUT_SECONDS
    while not any(each["received_packets"] > 100 for each in json.loads(observer.ask(controls.CONNECTIONS))["connections"]):
        assert time.monotonic() < end, "the bench has not begun"
        time.sleep(0.05)
    return bench
