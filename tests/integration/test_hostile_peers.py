"""Attacks of hostile users on a real daemon, which affect no other user."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code, message

pytestmark = pytest.mark.usefixtures("needs_root")

HOSTILE, VICTIM = SECOND, FIRST


def descriptors(bus: Daemon) -> list[str]:
    """Return what the daemon has open, sockets without their numbers."""
    found = []
    for fd in Path(f"/proc/{bus.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(fd).partition(":")[0])
    return sorted(found)


def read_units(bus: Daemon, owner: RawClient) -> None:
    """Let the bus start the thread that reads control groups, which has two sockets: else that comes when a client has been there for
    50 ms."""
    owner.control(controls.TAP_ON, b"none")
    assert owner.barrier() == []
    client = bus.client()  # with a tap, the unit of a new client is read at once
    client.barrier()
    client.close()
    owner.control(controls.TAP_OFF)
    assert owner.barrier() == []


def wait_for_descriptors(bus: Daemon, before: list[str]) -> None:
    """Wait until the daemon has nothing open that it had not before."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while more := Counter(descriptors(bus)) - Counter(before):
        assert time.monotonic() < deadline, more
        time.sleep(0.01)


def counters(owner: RawClient) -> dict[str, int]:
    """Return the bus's counters."""
    return cast(dict[str, int], json.loads(owner.ask(controls.STATS))["counters"])


SETTLE_SECONDS = 60.0
"""When a bus that still has too many connections has leaked them, on a machine however slow."""


def settle(owner: RawClient, connections: int) -> dict[str, int]:
    """Wait until the bus has *connections* connections including its owner's, and return its counters.

    At first there is one more than a test has made: the fixture's probe, whose end may not have been noticed yet.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while (found := counters(owner))["connections"] != connections:
        assert time.monotonic() < deadline, f"{found['connections']} connections, not {connections}"
        os.sched_yield()
    return found


@pytest.fixture
def small_bus(daemon: StartDaemon) -> Daemon:
    """A bus on which little may wait for a client."""
    return daemon(config='[limits]\nqueue_packets = 100\nqueue_bytes = "1MiB"\n')


def test_one_that_never_reads_while_it_is_flooded_costs_others_nothing(small_bus: Daemon) -> None:
    owner, deaf = small_bus.client(), small_bus.client(HOSTILE)
    speaker, listener = small_bus.client(VICTIM), small_bus.client(VICTIM)
    for client in (deaf, listener):
        client.subscribe(b"a")
        client.barrier()
    for number in range(2_000):
        speaker.publish(b"a", b"%d" % number + bytes(1_000))
        if number % 40 == 39:
            speaker.barrier()
            assert listener.barrier() == [message(b"a", b"%d" % each + bytes(1_000)) for each in range(number - 39, number + 1)]
    found = counters(owner)
    # In a queue of 100, messages of another user have the space that these leave free.
    assert found["queued_packets"] == 50
    assert found["lost_packets"] > 1_000
    deaf.close()
    found = settle(owner, 3)
    assert found["queued_packets"] == found["queued_bytes"] == 0


def test_many_stopped_readers_use_at_most_their_limit(small_bus: Daemon) -> None:
    owner, speaker = small_bus.client(), small_bus.client(VICTIM)
    deaf = [small_bus.client(HOSTILE) for _ in range(10)]
    for client in deaf:
        client.subscribe(b"")
        client.subscribe(b"a/")
        client.barrier()
    for _ in range(600):
        speaker.publish(b"a/b", bytes(2_000))
        speaker.barrier()
    found = counters(owner)
    # In ten queues of 100, messages of another user have the space that these leave free.
    assert found["queued_packets"] == 500
    parts = ("delivered_packets", "queued_packets", "lost_packets", "replaced_packets", "abandoned_packets")
    assert found["deliveries"] == sum(found[name] for name in parts)


def test_a_flood_from_one_does_not_keep_others_from_their_answers(bus: Daemon) -> None:
    flooder, victim = bus.client(HOSTILE), bus.client(VICTIM)
    flooder.socket.setblocking(False)
    for _ in range(30):
        # As much as its socket takes; bounded, for a fast bus takes as much as comes.
        with contextlib.suppress(BlockingIOError):
            for _ in range(2_000):
                flooder.publish(b"unused/key", bytes(10))
        assert victim.ask(controls.PING, b"x") == b"x"


def test_random_packets_of_all_sorts_end_only_their_senders(bus: Daemon) -> None:
    dice = random.Random(20261120)
    heads = [b"", b"MSG ", b"SUB ", b"UNSUB ", b"CMSG ", b"CMSG !/", b"SUB !/cred/", b"MSG !/cred/", b"CMSG !/bus/trace\0", b"msg "]
    victim = bus.client(VICTIM)
    victim.subscribe(b"safe")
    victim.barrier()
    for number in range(300):
        hostile = bus.client()
        with contextlib.suppress(ConnectionError):
            for _ in range(dice.randrange(1, 6)):
                body = bytes(dice.choice(b"\0*/!.a\xff\n 0") for _ in range(dice.randrange(30)))
                hostile.send(dice.choice(heads) + body * dice.choice([1, 1, 1, 100]))
        hostile.close()
        victim.publish(b"safe", b"%d" % number)
        assert message(b"safe", b"%d" % number) in victim.barrier()
    owner = bus.client()
    control = json.loads(owner.ask(controls.STATS))["control"]
    assert control["internal_errors"] == 0
    settle(owner, 2)


def test_hanging_up_at_every_moment_leaves_nothing_behind(bus: Daemon) -> None:
    owner = bus.client()
    read_units(bus, owner)
    settle(owner, 1)  # the probe that found the bus ready has gone too
    before = descriptors(bus)
    steps = [b"SUB a", b"SUB !/cred////x", message(b"a", b"x"), b"CMSG !/cred/whoami", b"UNSUB a", b"CMSG !/bus/connections", b"", b"BAD"]
    for length in range(len(steps) + 1):
        for receives in (False, True):
            for half in (False, True):
                client = bus.client()
                with contextlib.suppress(ConnectionError):
                    for packet in steps[:length]:
                        client.send(packet)
                    if receives and length in (3, 4):
                        client.receive()
                    if half:
                        client.socket.shutdown(socket.SHUT_WR)
                client.close()
    found = settle(owner, 1)
    assert found["queued_packets"] == found["queued_bytes"] == found["subscriptions"] == 0
    wait_for_descriptors(bus, before)


def test_patterns_as_long_as_they_may_be_and_as_deep(bus: Daemon) -> None:
    hostile, victim = bus.client(HOSTILE), bus.client(VICTIM)
    for pattern in (b"*/" * 2_048, b"*/" * 2_047 + b"x", b"a/" * 2_048, b"*" * 4_096, b"/" * 4_096, b"x" * 4_096):
        hostile.subscribe(pattern)
    assert hostile.barrier() == []
    hostile.subscribe(b"*/" * 2_048 + b"*")
    assert [error_code(packet) for packet in hostile.barrier()] == ["EMSGSIZE"]
    victim.subscribe(b"a/b")
    for key in (b"a/" * 2_048, b"a/b", b"/" * 4_096):
        victim.publish(key)
    assert victim.barrier() == [message(b"a/b")]
    assert hostile.barrier() == [message(b"a/" * 2_048), message(b"/" * 4_096)]


def test_deep_patterns_with_wildcards_do_not_multiply(bus: Daemon) -> None:
    # Every combination of a and * in 12 segments: a matcher that walks them one by one would try 4,096 ways for each key.
    hostile, victim, owner = bus.client(HOSTILE), bus.client(VICTIM), bus.client()
    for number in range(4_096):
        hostile.subscribe(b"/".join(b"*" if number >> bit & 1 else b"a" for bit in range(12)))
        if number % 64 == 63:
            hostile.barrier()
    for number in range(200):
        victim.publish(b"a/" * 11 + b"%d" % number)
    victim.barrier()
    assert len(hostile.barrier()) == 200
    assert counters(owner)["subscriptions"] == 4_096


def test_ten_thousand_subscriptions_of_one_do_no_harm_and_go_with_it(bus: Daemon) -> None:
    hostile, victim, owner = bus.client(HOSTILE), bus.client(VICTIM), bus.client()
    victim.subscribe(b"k/77/x")
    victim.barrier()
    for number in range(10_000):
        hostile.subscribe(b"k/%d/*" % number)
        if number % 50 == 49:
            hostile.barrier()
    assert counters(owner)["subscriptions"] == 10_001
    victim.publish(b"k/77/x", b"1")
    assert victim.barrier() == [message(b"k/77/x", b"1")]
    assert hostile.barrier() == [message(b"k/77/x", b"1")]
    hostile.close()
    settle(owner, 2)
    assert counters(owner)["subscriptions"] == 1
    victim.publish(b"k/77/x", b"2")
    assert victim.barrier() == [message(b"k/77/x", b"2")]


def test_packets_of_the_bus_cannot_be_forged(bus: Daemon) -> None:
    hostile, victim = bus.client(HOSTILE), bus.client(VICTIM)
    victim.subscribe(b"")
    victim.barrier()
    for packet in (
        b"CMSG !/bus/error\0EPROTO go away",
        b"CMSG !/bus/lost\0100",
        message(b"!/bus/error", b"EPROTO"),
        message(b"!/bus/lost"),
    ):
        hostile.send(packet)
    assert [error_code(packet) for packet in hostile.barrier()] == ["ENOSYS", "ENOSYS", "EPERM", "EPERM"]
    assert victim.barrier() == []


def test_connects_and_disconnects_leave_no_descriptor_and_nothing_counted(bus: Daemon) -> None:
    owner = bus.client()
    read_units(bus, owner)
    start = settle(owner, 1)
    before = descriptors(bus)
    for number in range(500):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(bus.path)
            client = RawClient(sock)
            client.subscribe(b"a/%d" % number)
            if number % 3:
                client.publish(b"a/%d" % number, bytes(1_000))
            if number % 5 == 0:
                client.barrier()
    found = settle(owner, 1)
    assert found["accepted"] == start["accepted"] + 500
    assert found["subscriptions"] == found["queued_packets"] == found["queued_bytes"] == 0
    assert found["deliveries"] == found["delivered_packets"] + found["lost_packets"] + found["abandoned_packets"]
    wait_for_descriptors(bus, before)


def memory_kib(bus: Daemon) -> int:
    """Return how much memory of its own the daemon holds, VmRSS without what it shares with files, in KiB."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{bus.pid}/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0])


def test_churn_leaves_no_memory_behind(bus: Daemon) -> None:
    owner = bus.client()

    def churn() -> None:
        for number in range(1_000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(bus.path)
                client = RawClient(sock)
                for part in range(5):
                    client.subscribe(b"a/%d/%d/*" % (number, part))
                client.publish(b"a/%d/3/x" % number, bytes(1_000))
                if number % 20 == 0:
                    client.barrier()
        settle(owner, 1)

    churn()
    before = memory_kib(bus)
    churn()
    churn()
    # A connection has some KiB: one in ten leaked would be more than this.
    assert memory_kib(bus) - before < 512


def test_a_client_that_is_killed_while_others_publish_to_it_is_all_that_ends(bus: Daemon) -> None:
    owner, speaker, listener = bus.client(), bus.client(VICTIM), bus.client(VICTIM)
    listener.subscribe(b"a")
    listener.barrier()
    for number in range(5):
        child = subscribed_child(bus.path)
        for part in range(100):
            speaker.publish(b"a", b"%d %d" % (number, part) + bytes(1_000))
            if part == 50:
                os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        speaker.barrier()
        assert listener.barrier() == [message(b"a", b"%d %d" % (number, part) + bytes(1_000)) for part in range(100)]
        settle(owner, 3)


def subscribed_child(path: str) -> int:
    """Return the id of a process that has subscribed and never reads."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(path)
                client = RawClient(sock)
                client.subscribe(b"a")
                client.barrier()
                os.write(writer, b"x")
                signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    return child


def test_without_descriptors_a_new_client_gets_an_error_and_the_bus_continues(bus: Daemon) -> None:
    victim = bus.client(VICTIM)
    victim.subscribe(b"a")
    victim.barrier()
    settle(bus.client(), 2)
    used = len(descriptors(bus))
    soft, hard = resource.prlimit(bus.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(bus.pid, resource.RLIMIT_NOFILE, (used + 5, hard))
    crowd = [bus.client() for _ in range(20)]
    reported = [error_code(packets[0]) for client in crowd if (packets := refused_packets(client))]
    assert set(reported) == {"EMFILE"}
    assert 20 - len(reported) in range(1, 7)  # also when the socket of the probe was still open
    victim.publish(b"a", b"still here")
    assert victim.barrier() == [message(b"a", b"still here")]
    for client in crowd:
        client.close()
    while True:
        newcomer = bus.client()
        if newcomer_is_served(newcomer):
            break
    resource.prlimit(bus.pid, resource.RLIMIT_NOFILE, (soft, hard))
    bus.stop()
    assert "Too many open files" in bus.stderr


def refused_packets(client: RawClient) -> list[bytes]:
    """Return the packets for a rejected client; an empty list if it is served."""
    with contextlib.suppress(ConnectionError):
        client.control(controls.PING, b"x")
    first = client.receive()
    return [] if first == b"CMSG !/bus/ping\0x" else [first, *client.receive_to_end()]


def newcomer_is_served(client: RawClient) -> bool:
    """Return whether a client is served."""
    return not refused_packets(client)
