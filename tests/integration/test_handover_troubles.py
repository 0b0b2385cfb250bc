"""Restarts at the wrong moment, and without memory: the bus forgets no request, and disconnects no client."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.daemons import READY_SECONDS
from tests.support.fdstore import Manager
from tests.support.wire import message

LOST = b"CMSG !/bus/lost\x000"


def _wait(until: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + READY_SECONDS
    while not until():
        assert time.monotonic() < end
        time.sleep(0.001)


def _children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended and waits for its parent."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_stop_during_a_restart_in_place_stops_the_bus(manager: Manager) -> None:
    """The signal comes just before the restart in place: the new program must not forget that it has to stop."""
    client = manager.client()
    assert client.barrier() == []
    os.kill(manager.pid, signal.SIGUSR2)
    _wait(lambda: bool(_children(manager.pid)))
    os.kill(manager.pid, signal.SIGSTOP)
    (examined,) = _children(manager.pid)
    _wait(lambda: _has_ended(examined))
    os.kill(manager.pid, signal.SIGTERM)
    os.kill(manager.pid, signal.SIGCONT)
    assert manager.process is not None
    assert manager.process.wait(READY_SECONDS) == 0
    manager.drain()
    manager.start()
    assert client.barrier() == []


def test_without_room_for_the_state_a_restart_is_like_a_kill(manager: Manager) -> None:
    """Pending packets are lost and reported; connections and subscriptions are kept."""
    reader, writer = manager.client(), manager.client()
    reader.subscribe(b"a")
    assert reader.barrier() == []
    for _ in range(100):
        writer.publish(b"a", bytes(60_000))
    assert writer.barrier() == []
    _, hard = resource.prlimit(manager.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(manager.pid, resource.RLIMIT_FSIZE, (1 << 20, hard))
    assert manager.end(signal.SIGTERM) == 0
    manager.start()
    assert writer.receive() == LOST
    writer.publish(b"a", b"last")
    assert writer.barrier() == []
    while (packet := reader.receive()) != message(b"a", b"last"):
        assert packet in (LOST, message(b"a", bytes(60_000)))
