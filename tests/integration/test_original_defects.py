"""What was wrong with the original server, found on a running one; each defect has a test here that it would fail.

The list: wildcards that read everybody's secrets; one's own private key refused; one that never reads stops everybody; a peer
that closes within a broadcast kills the server; UNSUB that loses another pattern; an end by SIGSTOP and SIGCONT; and what was
announced and not built: credentials, echo and ``-u``.
"""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import FIRST, SECOND
from tests.support.wire import error_code, message

pytestmark = pytest.mark.usefixtures("needs_root")


@pytest.mark.parametrize("pattern", [b"", b"*/", b"!*/", b"*/cred/", b"*", b"*/*/*/*/*/*", b"!*", b"!*/*/77/77/77/secret", b"**/"])
def test_defect_wildcards_read_secret_messages(bus: Daemon, pattern: bytes) -> None:
    spy, speaker = bus.client(SECOND), bus.client(FIRST)
    spy.subscribe(pattern)
    assert spy.barrier() == []
    speaker.publish(b"!/cred/77/77/77/secret", b"x")
    speaker.publish(b"!/cred/////secret", b"x")
    speaker.barrier()
    assert spy.barrier() == []


@pytest.mark.parametrize(
    ("pattern", "code"), [(b"!/", "EPERM"), (b"!/*/", "EPERM"), (b"!/cred/", "EACCES"), (b"!/cred/*/", "EACCES"), (b"!/c*/", "EPERM")]
)
def test_defect_wildcards_behind_the_literal_prefix_read_secret_messages(bus: Daemon, pattern: bytes, code: str) -> None:
    spy, witness = bus.client(SECOND), bus.client()
    spy.subscribe(pattern)
    assert error_code(spy.receive()) == code
    assert b'"recipients":[]' in witness.ask(controls.TRACE, b"!/cred/77/77/77/secret")


def test_defect_one_s_own_full_key_is_refused(bus: Daemon) -> None:
    # Of this very process, for a key that names a process ends with that.
    client = bus.client()
    key = client.ask(controls.WHOAMI) + b"/mine"
    client.subscribe(key)
    client.publish(key, b"x")
    assert client.barrier() == [message(key, b"x")]


def test_defect_ids_are_compared_without_their_first_digit(bus: Daemon) -> None:
    client = bus.client(FIRST)
    other = str(FIRST.uid)
    for digit in "123456789".replace(other[0], ""):
        other_user = bus.client(FIRST)
        other_user.subscribe(b"!/cred//%b//x" % (digit + other[1:]).encode())
        (reported,) = other_user.receive_to_end()
        assert error_code(reported) == "EACCES"
    assert client.barrier() == []


def test_defect_one_that_does_not_read_stops_the_bus(bus: Daemon) -> None:
    deaf, listener, speaker = bus.client(SECOND), bus.client(SECOND), bus.client(FIRST)
    for client in (deaf, listener):
        client.subscribe(b"a")
        client.barrier()
    # The original stopped after about 100 of them.
    for number in range(3_000):
        speaker.publish(b"a", b"%d " % number + bytes(1_000))
        if number % 50 == 49:
            speaker.barrier()
            expected = [message(b"a", b"%d " % each + bytes(1_000)) for each in range(number - 49, number + 1)]
            assert listener.barrier() == expected
    # And every loss of the deaf client is reported to it.
    received = deaf.barrier()
    lost = sum(int(packet.rpartition(b"\0")[2]) for packet in received if packet.startswith(b"CMSG !/bus/lost\0"))
    assert lost + sum(packet.startswith(b"MSG ") for packet in received) == 3_000


@pytest.mark.parametrize("reads_first", [False, True])
def test_defect_a_peer_that_closes_within_a_broadcast_kills_the_bus(bus: Daemon, reads_first: bool) -> None:
    speaker, listener = bus.client(FIRST), bus.client(FIRST)
    listener.subscribe(b"a")
    listener.barrier()
    for number in range(40):
        leaving = [bus.client(SECOND if number == 0 else None) for _ in range(5)]
        for client in leaving:
            client.subscribe(b"a")
            client.barrier()
        for part in range(20):
            speaker.publish(b"a", b"%d %d" % (number, part) + bytes(5_000))
            if part % 4 == 3:
                client = leaving.pop()
                if reads_first:
                    client.receive()
                client.close()
        speaker.barrier()
        assert listener.barrier() == [message(b"a", b"%d %d" % (number, part) + bytes(5_000)) for part in range(20)]
    assert bus.process.poll() is None


@pytest.mark.parametrize("removed", range(4))
def test_defect_unsubscribing_one_loses_another(bus: Daemon, removed: int) -> None:
    client = bus.client(FIRST)
    keys = [b"first", b"second", b"third", b"fourth"]
    for key in keys:
        client.subscribe(key)
    client.unsubscribe(keys[removed])
    for key in keys:
        client.publish(key)
    assert client.barrier() == [message(key) for key in keys if key != keys[removed]]


def test_defect_unsubscribing_in_any_order_loses_another(bus: Daemon) -> None:
    keys = [b"first", b"second", b"third", b"fourth"]
    for order in itertools.permutations(keys):
        client = bus.client()
        for key in keys:
            client.subscribe(key)
        left = list(keys)
        for key in order:
            client.unsubscribe(key)
            left.remove(key)
            for each in keys:
                client.publish(each)
            assert client.barrier() == [message(each) for each in left]
        client.close()


def process_state(pid: int) -> str:
    """Return the letter of the state of a process, proc(5): T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_defect_stopping_and_continuing_ends_the_bus(bus: Daemon) -> None:
    speaker, listener = bus.client(FIRST), bus.client(SECOND)
    listener.subscribe(b"a")
    listener.barrier()
    for number in range(5):
        os.kill(bus.pid, signal.SIGSTOP)
        while process_state(bus.pid) != "T":
            os.sched_yield()
        speaker.publish(b"a", b"%d" % number)
        os.kill(bus.pid, signal.SIGCONT)
        speaker.barrier()
        assert listener.barrier() == [message(b"a", b"%d" % number)]
    assert bus.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGWINCH, signal.SIGCHLD, signal.SIGURG, signal.SIGPIPE])
def test_signals_that_mean_nothing_to_a_bus_do_not_end_it(bus: Daemon, number: signal.Signals) -> None:
    client = bus.client(FIRST)
    for _ in range(10):
        os.kill(bus.pid, number)
        assert client.barrier() == []
    assert bus.process.poll() is None


def test_announced_and_not_built_echo(bus: Daemon) -> None:
    client = bus.client(FIRST)
    client.subscribe(b"a")
    client.control(controls.ECHO_OFF)
    client.publish(b"a")
    assert client.barrier() == []


def test_announced_and_not_built_allowed_users(daemon: StartDaemon) -> None:
    bus = daemon("-u", str(FIRST.uid))
    assert bus.client(FIRST).barrier() == []
    (reported,) = bus.client(SECOND).receive_to_end()
    assert error_code(reported) == "EACCES"
