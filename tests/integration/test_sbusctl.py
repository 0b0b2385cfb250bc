"""sbusctl(1) on a real bus, as a new user uses it: each command, each mistake, each way to end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from sbus import __version__
from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.relays import wait_for
from tests.support.shell import TIMEOUT_SECONDS, Shell, ended
from tests.support.users import User
from tests.support.wire import RawClient
from tools.stage import ROOT, Stage

SHARES_BUS = True


@pytest.fixture
def shell(stage: Stage, bus: Daemon) -> Shell:
    """sbusctl on a bus that everyone may use."""
    return Shell(stage, bus)


@pytest.fixture
def own_shell(stage: Stage, daemon: StartDaemon) -> Shell:
    """sbusctl on a bus of this test."""
    return Shell(stage, daemon())


# What each command prints


def test_whoami(shell: Shell, first_user: User) -> None:
    gid, uid, pid = shell.succeed("whoami", user=first_user).decode().removeprefix("!/cred/").strip().split("/")
    assert (gid, uid) == (str(first_user.gid), str(first_user.uid))
    assert pid.isdigit()


def test_a_message_reaches_a_subscriber(shell: Shell) -> None:
    with shell.subscriber(b"a/b", "-n", "3", "a/*") as subscriber:
        assert shell.succeed("pub", "a/b", "hello") == b""
        shell.succeed("pub", "a/x", "-", stdin=b"\x1b[2Jone\ntwo\xff")
        shell.succeed("pub", "other", "unseen")
        shell.succeed("pub", "a/", "-", stdin=b"piped")
        assert ended(subscriber) == (0, b"a/b\thello\na/x\t\\x1b[2Jone\\ntwo\\xff\na/\tpiped\n", b"")


def test_lines_are_messages_in_their_order(shell: Shell) -> None:
    with shell.subscriber(b"k", "--raw", "-0", "-n", "4", "k", "k") as subscriber:
        shell.succeed("pub", "--lines", "k", stdin=b"one\n\nthree\xff\nlast")
        assert ended(subscriber) == (0, b"one\0\0three\xff\0last\0", b"")


def test_raw_payloads_are_exact(shell: Shell) -> None:
    with shell.subscriber(b"k", "--raw", "-n", "2", "k") as subscriber:
        shell.succeed("pub", "k", "-", stdin=b"one\n")
        shell.succeed("pub", "k", "-", stdin=b"\0two")
        assert ended(subscriber) == (0, b"one\n\0two", b"")


def test_a_receipt_has_the_number_of_recipients(shell: Shell) -> None:
    with shell.subscriber(b"k", "-n", "2", "k"):
        assert shell.succeed("pub", "--receipt", "k", "x") == b"1 recipient\n"
        assert shell.succeed("pub", "--receipt", "-j", "k", "x") == b'{"recipients":1}\n'
    done = shell.run("pub", "--receipt", "unused", "x")
    assert (done.returncode, done.stdout) == (3, b"0 recipients\n")
    done = shell.run("pub", "--receipt", "--lines", "k")
    assert (done.returncode, b"omit it or --lines" in done.stderr) == (2, True)


def test_a_subscriber_can_outlive_the_bus(shell: Shell) -> None:
    path = shell.daemon.path
    with shell.subscriber(b"k", "--reconnect", "-n", "2", "k") as subscriber:
        shell.succeed("pub", "k", "before")
        shell.daemon.stop()
        command = [sys.executable, "-m", "sbusd.daemon.main", "-f", "-g", "-o", "-a", path]
        with subprocess.Popen(command, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL) as again:
            try:
                wait_for(lambda: shell.run("pub", "--receipt", "k", "after").returncode == 0, "the subscriber on the new bus")
                status, out, err = ended(subscriber)
            finally:
                again.terminate()
    assert (status, out) == (0, b"k\tbefore\nk\tafter\n")
    assert err == b"sbusctl: reconnected: messages published in the meantime are lost\n"


def test_json_of_messages(shell: Shell) -> None:
    with shell.subscriber(b"k/x", "--json=short", "-n", "2", "k/") as subscriber:
        shell.succeed("pub", "-l", "k/x", stdin=b"text\n\xff\n")
        status, out, _ = ended(subscriber)
    first, second = (json.loads(line) for line in out.splitlines())
    assert (status, first["key"], first["payload"], second["payload_base64"]) == (0, "k/x", "text", "/w==")


def test_it_ends_in_time(shell: Shell) -> None:
    assert shell.succeed("sub", "--timeout", "0.05", "a") == b""
    assert shell.fail("sub", "--timeout", "0.05", "-n", "2", "a") == "sbusctl: timed out after 0.05 s: received 0 of 2 messages\n"


def test_ping(shell: Shell) -> None:
    figures = json.loads(shell.succeed("ping", "-c", "5", "-i", "0", "--json=short"))
    assert figures["count"] == 5
    assert 0 < figures["min"] <= figures["p50"] <= figures["p90"] <= figures["p99"] <= figures["max"]
    assert shell.succeed("ping", "-c", "1").splitlines()[0].split() == b"COUNT MIN P50 P90 P99 MAX".split()


def test_connections_of_the_owner_and_of_another(shell: Shell, first_user: User, second_user: User) -> None:
    with shell.subscriber(b"a", "a"):
        shell.daemon.client(second_user)
        seen = json.loads(shell.succeed("--json=short", "connections"))
        assert [each["subscriptions"] for each in seen["connections"] if each["subscriptions"]] == [1]
        assert second_user.uid in [each["uid"] for each in seen["connections"]]
        assert seen["hidden"] == 0
        hidden = json.loads(shell.succeed("connections", "--json=short", user=first_user))
        assert {each["uid"] for each in hidden["connections"]} == {first_user.uid}
        # The subscriber, the one that watched for it, and the second user's.
        assert hidden["hidden"] == 3
        table = shell.succeed("connections", user=first_user).decode().splitlines()
        assert table[0].split()[:4] == ["ID", "PID", "USER", "COMMAND"]
        assert table[-1] == "1 connection listed, 3 of other users hidden."
        assert len(shell.succeed("connections", "--no-legend", user=first_user).splitlines()) == 1


def test_many_connections_are_all_listed_once(shell: Shell) -> None:
    clients = [shell.daemon.client() for _ in range(700)]
    listed = [each["id"] for each in json.loads(shell.succeed("-j", "connections"))["connections"]]
    assert len(listed) == len(set(listed)) == len(clients) + 1


def test_stats_of_the_owner_and_of_another(own_shell: Shell, first_user: User) -> None:
    own_shell.succeed("pub", "a", "b")
    owner = json.loads(own_shell.succeed("stats", "-j"))
    assert (owner["scope"], owner["counters"]["messages"]) == ("bus", 1)
    assert json.loads(own_shell.succeed("stats", "-j", user=first_user))["scope"] == "connection"
    assert b"COUNTERS" in own_shell.succeed("stats")
    assert own_shell.succeed("stats", user=first_user).startswith(b"version")


def test_trace(shell: Shell) -> None:
    with shell.subscriber(b"a/b", "a/*", "x/"):
        reported = json.loads(shell.succeed("-j", "trace", "a/b"))
        assert [each["patterns"] for each in reported["recipients"]] == [["a/*"]]
        lines = shell.succeed("trace", "q/r").decode().splitlines()
        assert lines[0].startswith("q/r: may be published")
        assert lines[-1].startswith("0 connections would receive it")
    assert shell.succeed("trace", "!/bus/x").decode().startswith("!/bus/x: may not be published")


def test_trace_of_a_key_that_is_not_text(shell: Shell) -> None:
    assert shell.succeed("trace", "a\udcff").decode().startswith(r"a\xff: may be published")


def test_version(shell: Shell) -> None:
    assert shell.succeed("version").decode() == f"sbusctl {__version__}\nbus {__version__} (compiled switch)\n"


def test_doctor(shell: Shell, first_user: User) -> None:
    for user in (None, first_user):
        done = shell.run("doctor", "-j", user=user)
        results = {each["check"]: each["result"] for each in json.loads(done.stdout)["checks"]}
        assert done.returncode == 0
        for name in ("address", "socket", "owner", "directory", "connection", "protocol", "version"):
            assert results[name] == "ok", name
        # Every user may read the limits of a process.
        assert results["descriptors"] in {"ok", "warn"}


# Mistakes of a new user


def test_no_bus(shell: Shell) -> None:
    for command in (["whoami"], ["pub", "a", "b"], ["sub", "a"], ["ping"], ["connections"], ["stats"], ["trace", "a"]):
        said = shell.fail("-a", "/run/none/none", *command)
        assert said.startswith("sbusctl: cannot connect to /run/none/none: no such socket")


def test_no_permission(own_shell: Shell, first_user: User) -> None:
    os.chmod(own_shell.daemon.path, 0o600)
    assert "permission denied" in own_shell.fail("whoami", user=first_user)
    done = own_shell.run("doctor", "-j", user=first_user)
    failed = [each["check"] for each in json.loads(done.stdout)["checks"] if each["result"] == "fail"]
    assert (done.returncode, failed) == (1, ["socket", "connection"])


def test_something_else_listens(shell: Shell, folder: object) -> None:
    import socket

    path = f"{folder}/stream"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(path)
        other.listen()
        assert "not of type SEQPACKET" in shell.fail("-a", path, "whoami")


def test_a_payload_that_is_too_large(shell: Shell) -> None:
    assert "at most 409600 can be sent; 'sbusctl pub --blob FILE KEY' sends more" in shell.fail("pub", "a", "-", stdin=bytes(409_599))
    large = "payload too large: the maximum packet size is 409600 bytes"
    assert f"{large}; 'sbusctl pub --blob FILE KEY' sends more" in shell.fail("pub", "a", "-", stdin=bytes(500_000))
    assert shell.fail("call", "a", "-", stdin=bytes(409_599)).endswith("at most 409600 can be sent\n")
    for command in (["call", "a", "-"], ["store", "put", "a", "-"]):
        assert shell.fail(*command, stdin=bytes(500_000)) == f"sbusctl: {large}\n"
    said = shell.fail("pub", "-l", "a", stdin=b"one\ntwo\n" + b"x" * 409_599 + b"\nfour\n")
    assert said.startswith("sbusctl: cannot publish message 3 of standard input: ")
    assert said.endswith("; published 2 messages before it\n")
    with shell.subscriber(b"a", "a", "-n", "1", "-F", "%l") as subscriber:
        shell.succeed("pub", "a", "-", stdin=bytes(409_594))
        assert ended(subscriber) == (0, b"409594\n", b"")


@pytest.mark.parametrize("pattern", ["!/", "!/*", "!/bus/ping", "!/conn/0/"])
def test_a_reserved_pattern(shell: Shell, pattern: str) -> None:
    assert "EPERM" in shell.fail("sub", pattern)


def test_secrets_of_others(shell: Shell, first_user: User, second_user: User) -> None:
    pattern = f"!/cred//{first_user.uid}//x"
    assert "EACCES" in shell.fail("sub", pattern, user=second_user)
    assert shell.succeed("sub", pattern, "--timeout", "0", user=first_user) == b""


@pytest.mark.parametrize("key", ["!/x", "!/cred/1/2", "k" * 5000])
def test_a_key_to_which_no_user_may_publish(shell: Shell, key: str) -> None:
    said = shell.fail("pub", key, "x")
    assert "the bus refused" in said
    assert "EPERM" in said or "EMSGSIZE" in said
    assert len(said) < 600


# Ways to end


def test_ctrl_c_is_quiet(shell: Shell) -> None:
    with shell.subscriber(b"a", "a") as subscriber:
        shell.succeed("pub", "a", "b")
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline() == b"a\tb\n"
        subscriber.send_signal(signal.SIGINT)
        assert ended(subscriber) == (130, b"", b"")


_SIGNALLED = """
import signal, sys
from sbus import Subscription
from sbusctl.main import main
receive, received = Subscription.receive, []
def receive_and_end(subscription, timeout):
    if received:
        signal.raise_signal(int(sys.argv.pop()))
    received.append(receive(subscription, timeout))
    return received[0]
Subscription.receive = receive_and_end
main()
"""
"""A sbusctl sub that gets a signal, its last argument, when it has received a message and not yet written it."""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_is_buffered_is_printed_when_a_signal_ends_it(shell: Shell, number: signal.Signals, status: int) -> None:
    command = [shell.stage.python, "-c", _SIGNALLED, "sub", "--count", "2", "--", "a", str(int(number))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env=shell.env) as process:
        wait_for(lambda: shell.run("pub", "--receipt", "a", "x").returncode == 0, "the subscriber")
        assert ended(process) == (status, b"a\tx\n", b"")


def test_a_subscriber_that_waits_ends_with_the_status_of_a_shell(shell: Shell) -> None:
    with shell.subscriber(b"a", "a") as subscriber:
        subscriber.terminate()
        assert ended(subscriber) == (143, b"", b"")


def test_a_payload_that_begins_with_a_hyphen_follows_two(shell: Shell) -> None:
    with shell.subscriber(b"a", "-n", "1", "a") as subscriber:
        shell.succeed("pub", "a", "--", "-x")
        assert ended(subscriber) == (0, b"a\t-x\n", b"")
    assert b"Write '--' before arguments" in shell.run("pub", "a", "-x").stderr


def test_ctrl_c_stops_ping_and_prints_its_results(shell: Shell) -> None:
    observer = shell.daemon.client()
    with subprocess.Popen(
        shell.stage.program("sbusctl", "ping", "-c", "1000000", "-i", "0.001"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=shell.env,
        cwd="/",
    ) as ping:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not _has_sent(observer, ping.pid, packets=10):
            assert time.monotonic() < end, "ping has not begun"
        ping.send_signal(signal.SIGINT)
        status, out, err = ended(ping)
    heading, figures = out.decode().splitlines()
    assert (status, err, heading.split()[0]) == (130, b"", "COUNT")
    assert int(figures.split()[0]) >= 4


def _has_sent(observer: RawClient, pid: int, *, packets: int) -> bool:
    """Return whether the bus has read as many packets from the process *pid*."""
    listed = json.loads(observer.ask(controls.CONNECTIONS))["connections"]
    return any(each["pid"] == pid and each["received_packets"] >= packets for each in listed)


def test_a_reader_that_closes_the_pipe_is_not_an_error(shell: Shell) -> None:
    with shell.subscriber(b"a", "a") as subscriber:
        assert subscriber.stdout is not None
        subscriber.stdout.close()
        shell.succeed("pub", "a", "b")
        assert subscriber.wait(TIMEOUT_SECONDS) == 141
        assert subscriber.stderr is not None
        assert subscriber.stderr.read() == b""


def test_a_bus_that_ends_is_one_line(shell: Shell) -> None:
    with shell.subscriber(b"a", "a") as subscriber:
        shell.daemon.stop()
        status, out, err = ended(subscriber)
    assert (status, out) == (1, b"")
    assert err.startswith(b"sbusctl: disconnected from ")
    assert err.count(b"\n") == 1


def test_losses_are_reported_in_their_places(shell: Shell, first_user: User) -> None:
    """The subscriber's output is not read, so it blocks and its queue on the bus overflows: another user must not be blocked."""
    count, payload = 600, bytes(100_000)
    publisher = shell.daemon.client(first_user)
    with shell.subscriber(b"k", "--json=short", "k") as subscriber:
        for _ in range(count):
            publisher.publish(b"k", payload)
        publisher.barrier()
        assert subscriber.stdout is not None
        received = 0
        while (item := json.loads(subscriber.stdout.readline()))["type"] == "message":
            received += 1
            # One more at the end of the queue gives the bus occasion to say what was lost before it.
            publisher.publish(b"k", b"")
        assert item["type"] == "gap"
        assert 0 < item["lost"] < count
        assert 0 < received < count
        # It is said there right after it is written here.
        assert subscriber.stderr is not None
        assert subscriber.stderr.readline().decode().startswith(f"sbusctl: lost {item['lost']} message")


# On a terminal


def _on_terminal(shell: Shell, *arguments: str, columns: int = 80) -> bytes:
    """Run one command with a terminal for standard output, and return what it wrote."""
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        command = shell.stage.program("sbusctl", *arguments)
        env = {**shell.env, "TERM": "xterm"}
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE, check=False, env=env, cwd="/")
        assert done.stderr == b""
    finally:
        os.close(slave)
    shown = b""
    with os.fdopen(master, "rb", buffering=0) as reader, contextlib.suppress(OSError):  # how a terminal ends
        while part := reader.read(65_536):
            shown += part
    return shown.replace(b"\r\n", b"\n")


_ESCAPED = rb"\x1b[31m\xff" + b"\n"


@pytest.mark.parametrize(
    ("arguments", "written"),
    [(["-F", "%r"], _ESCAPED), (["-F", "%p"], _ESCAPED), (["--raw"], b"\x1b[31m\xff")],
)
def test_nothing_raw_reaches_a_terminal_unless_asked_for(shell: Shell, arguments: list[str], written: bytes) -> None:
    master, slave = pty.openpty()
    with open(master, "rb", buffering=0) as reader, open(slave, "wb", buffering=0) as writer:
        with shell.subscriber(b"k", "-n", "1", "k", *arguments, stdout=writer) as subscriber:
            shell.succeed("pub", "k", "-", stdin=b"\x1b[31m\xff")
            assert ended(subscriber)[0] == 0
        assert reader.read(1000).replace(b"\r\n", b"\n") == written


def test_a_table_is_cut_to_the_terminal_and_whole_elsewhere(shell: Shell) -> None:
    shown = _on_terminal(shell, "connections", "--no-pager", columns=40)
    assert all(len(line.decode()) <= 40 for line in shown.splitlines()[:2])
    assert b"REFUSED" in shell.succeed("connections")


def test_80_columns_have_whole_headings(shell: Shell) -> None:
    long = b"application/front-end/worker-" + b"0123456789/" * 8
    with shell.subscriber(long, long.decode()):
        for command, needed in (
            (["connections"], "ID PID USER COMMAND QUEUED LOST"),
            (["trace", long.decode()], "ID USER COMMAND RECEIVES REASON"),
            (["members", long.decode()], "ID PID USER COMMAND UNIT"),
        ):
            shown = _on_terminal(shell, *command, "--no-pager").decode().splitlines()
            assert any(set(needed.split()) <= set(line.split()) for line in shown), shown
            # The first line of trace has the whole key.
            assert all(len(line) <= 80 for line in shown if not line.startswith("application/"))


def test_short_json_elsewhere_and_pretty_on_a_terminal(shell: Shell) -> None:
    assert shell.succeed("whoami", "-j").startswith(b'{"key":"')
    assert _on_terminal(shell, "whoami", "-j").startswith(b'{\n  "key": "')
