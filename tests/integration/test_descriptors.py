"""Descriptors that clients send: refused by this kernel, and by the bus where a kernel cannot. Spec: sbus-protocol(7) §1.

Nothing is measured here: the process that closes such a descriptor last sleeps for longer than any test waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.attacker import Attackers
from tests.attacks.dirty_files import LeavesDirtyFile
from tests.attacks.filesystems import why_no_fuse
from tests.support.daemons import Daemon, StartDaemon
from tests.support.fdstore import Manager
from tests.support.kernels import old_kernel, require_refusal
from tests.support.lingering import pass_on, pass_on_lingering, stopped
from tests.support.relays import wait_for
from tests.support.skips import require
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code, message

VICTIM, HOSTILE = FIRST, SECOND
SECONDS = 60.0


@pytest.fixture
def old_bus(daemon: StartDaemon, folder: Path) -> Daemon:
    """A bus on a kernel that cannot refuse descriptors."""
    return daemon(env=old_kernel(folder))


@pytest.fixture
def peers() -> Iterator[contextlib.ExitStack]:
    """What the receiving ends of lingering sockets are kept open by."""
    with contextlib.ExitStack() as kept:
        yield kept


def test_this_kernel_refuses_them_and_the_sender_stays(bus: Daemon, peers: contextlib.ExitStack) -> None:
    require_refusal()
    hostile, victim = bus.client(HOSTILE), bus.client(VICTIM)
    victim.subscribe(b"a")
    victim.barrier()
    for packet in (message(b"a", b"x"), b"SUB b", b"CMSG !/bus/ping\0x"):
        with pytest.raises(PermissionError):
            peers.enter_context(pass_on_lingering(hostile.socket, packet))
    assert hostile.barrier() == []
    assert victim.barrier() == []


def test_one_packet_with_a_lingering_socket_blocks_no_client(old_bus: Daemon, peers: contextlib.ExitStack) -> None:
    hostile, victim = old_bus.client(HOSTILE), old_bus.client(VICTIM)
    victim.subscribe(b"a")
    victim.barrier()
    with stopped(old_bus.pid):
        peers.enter_context(pass_on_lingering(hostile.socket, message(b"a", b"x")))
    (said,) = hostile.receive_to_end()
    assert error_code(said) == "EPROTO"
    assert victim.barrier() == []
    assert json.loads(old_bus.client().ask(b"!/bus/stats"))["control"]["descriptor_senders"] == 1


def test_packets_before_it_are_delivered_and_none_after_it(old_bus: Daemon, peers: contextlib.ExitStack) -> None:
    hostile, victim = old_bus.client(HOSTILE), old_bus.client(VICTIM)
    victim.subscribe(b"a")
    victim.barrier()
    with stopped(old_bus.pid):
        hostile.publish(b"a", b"1")
        hostile.publish(b"a", b"2" * 20_000)
        peers.enter_context(pass_on_lingering(hostile.socket, message(b"a", b"3")))
        hostile.publish(b"a", b"4")
    assert error_code(hostile.receive_to_end()[-1]) == "EPROTO"
    assert victim.barrier() == [message(b"a", b"1"), message(b"a", b"2" * 20_000)]


@pytest.mark.parametrize("first", [b"", message(b"a", b"1")], ids=["empty", "message"])
def test_a_client_that_sends_them_and_disconnects_blocks_no_client(old_bus: Daemon, peers: contextlib.ExitStack, first: bytes) -> None:
    victim = old_bus.client(VICTIM)
    for _ in range(5):
        hostile = old_bus.client(HOSTILE)
        with stopped(old_bus.pid):
            hostile.socket.send(first)
            peers.enter_context(pass_on_lingering(hostile.socket, b""))
            peers.enter_context(pass_on_lingering(hostile.socket, b"SUB x"))
            hostile.close()
    assert victim.barrier() == []


def test_a_packet_of_no_bytes_does_not_hide_another(old_bus: Daemon, peers: contextlib.ExitStack) -> None:
    """One that was looked at and not taken out is passed over by the next look, unix(7), SO_PEEK_OFF: it must not be taken out instead."""
    victim = old_bus.client(VICTIM)
    hostile = old_bus.client(HOSTILE)
    hostile.socket.setsockopt(socket.SOL_SOCKET, 32, 2 << 20)  # SO_SNDBUFFORCE: the test is root
    with stopped(old_bus.pid):
        # With a time-out Python waits until the socket is writable, which it is not: half of its buffer is in use.
        hostile.socket.setblocking(False)
        hostile.socket.send(message(b"a", bytes(600_000)))
        hostile.socket.send(b"")
        hostile.publish(b"a", b"1")
        peers.enter_context(pass_on_lingering(hostile.socket, b""))
    hostile.receive_to_end()
    assert victim.barrier() == []


def test_a_close_that_sleeps_is_ended(daemon: StartDaemon, folder: Path, peers: contextlib.ExitStack) -> None:
    """Else one lingering socket would hold up the next ones, and the quota of their user, for as long as it likes."""
    bus = daemon(config="[quotas]\nconnections = 3\n", env=old_kernel(folder))
    clients = [bus.client(HOSTILE) for _ in range(3)]
    with stopped(bus.pid):
        for hostile in clients:
            for _ in range(3):
                peers.enter_context(pass_on_lingering(hostile.socket, b"SUB x"))
    for hostile in clients:
        assert error_code(hostile.receive_to_end()[-1]) == "EPROTO"
    assert bus.client(VICTIM).barrier() == []
    deadline = time.monotonic() + 60.0
    for _ in range(3):
        while not admitted(bus):
            assert time.monotonic() < deadline


def admitted(bus: Daemon) -> bool:
    """Return whether a connection of the hostile user, which stays open, is within its quota."""
    client = bus.client(HOSTILE)
    with contextlib.suppress(ConnectionError):  # it may be rejected already
        client.control(b"!/bus/ping", b"x")
    return client.receive() == b"CMSG !/bus/ping\0x"


def test_finally_closed_descriptors_are_not_counted(daemon: StartDaemon, folder: Path) -> None:
    bus = daemon(config="[quotas]\nconnections = 3\n", env=old_kernel(folder))
    reader, writer = os.pipe()
    for _ in range(20):
        hostile = bus.client(HOSTILE)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pass_on(hostile.socket, b"SUB x", writer, count=250)
        said = hostile.receive_to_end()
        if error_code(said[-1]) == "EDQUOT":
            continue
        os.close(writer)
        # The end of the pipe: no process holds the sent descriptor, so this connection is closed, or about to be.
        assert os.read(reader, 1) == b""
        os.close(reader)
        reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)


def test_one_that_waited_before_the_bus_was_started(folder: Path) -> None:
    """The service manager's socket takes connections, and descriptors, before there is a bus."""
    # The peers go first: else it is the manager of this test that does the last close.
    with Manager(folder) as manager, contextlib.ExitStack() as peers:
        hostile = HOSTILE.connect(manager.path)
        peers.enter_context(pass_on_lingering(hostile, message(b"a", b"x")))
        manager.start()
        (said,) = RawClient(hostile).receive_to_end()
        assert error_code(said) == "EPROTO"
        assert manager.client().barrier() == []
        hostile.close()


def test_one_that_is_there_when_the_bus_is_killed(folder: Path) -> None:
    with Manager(folder, env=old_kernel(folder)) as manager, contextlib.ExitStack() as peers:
        manager.start()
        hostile, victim = manager.client(), manager.client()
        hostile.barrier()
        victim.barrier()
        os.kill(manager.pid, signal.SIGSTOP)
        peers.enter_context(pass_on_lingering(hostile.socket, message(b"a", b"x")))
        manager.end(signal.SIGKILL)
        manager.start()
        assert error_code(hostile.receive_to_end()[-1]) == "EPROTO"
        assert victim.barrier()[-1:] in ([], [b"CMSG !/bus/lost\x000"])


def test_a_bus_that_restarts_in_place_closes_the_remaining_descriptors(old_bus: Daemon, peers: contextlib.ExitStack) -> None:
    hostile, victim = old_bus.client(HOSTILE), old_bus.client(VICTIM)
    with stopped(old_bus.pid):
        for _ in range(2):
            peers.enter_context(pass_on_lingering(hostile.socket, b"SUB x"))
    hostile.receive_to_end()
    victim.barrier()
    os.kill(old_bus.pid, signal.SIGUSR2)
    assert victim.barrier() == []
    assert victim.ask(b"!/bus/ping", b"x") == b"x"


def test_a_close_that_hangs_delays_neither_a_restart_in_place_nor_the_end(daemon: StartDaemon, folder: Path) -> None:
    """execve(2) would wait for its thread, and no client would be served. At the end the kernel keeps only that thread."""
    require(not (reason := why_no_fuse()), reason, could_run=False)

    def send(address: str, fd: int) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(address)
        pass_on(sock, message(b"a", b"x"), fd)
        return sock

    bus = daemon(env=old_kernel(folder))
    victim = bus.client(VICTIM)
    victim.barrier()
    with stopped(bus.pid):
        attackers = Attackers(bus.path, [LeavesDirtyFile(send)], HOSTILE, None, is_urgent=True)
    try:
        wait_for(lambda: "D" in _states(bus.pid), "the close to hang")
        os.kill(bus.pid, signal.SIGUSR2)
        wait_for(lambda: "end the file server that it waits for" in bus.stderr, "the refusal to be logged")
        assert victim.barrier() == []
        os.kill(bus.pid, signal.SIGTERM)
        wait_for(lambda: _states(bus.pid)[0] == "Z", "the program to end")
    finally:
        attackers.stop()
    assert bus.process.wait(SECONDS) == 0


def _states(pid: int) -> list[str]:
    """Return the states of the threads of a process, the main thread first, see proc_pid_stat(5)."""
    states = []
    for thread in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda thread: int(thread.name)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states
