"""The maximum size of the state that one packet, and one step between turns, may write: in bytes, so that no machine is too slow."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sbusd.restart.handover import Handover
from sbusd.restart.inherited_state import InheritedState
from sbusd.restart.state_log import StateLog
from sbusd.state import log_file as statefile
from sbusd.state import syscalls
from tests.support.in_process_bus import InProcessBus, MakeBus

PATTERNS, PATTERN_BYTES = 400, 3_900
"""1.6 MB of state: above the minimum size of a rewrite."""

MOST_BYTES = 64 << 10
"""Some tens of microseconds. One packet writes its pattern twice; one step writes 16 KiB and a pattern."""


@pytest.fixture
def kept(make_bus: MakeBus, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[InProcessBus, StateLog]]:
    """A bus whose state a service manager keeps."""
    monkeypatch.setenv("FDSTORE", "16")
    bus = make_bus()
    state_log = Handover.begin(bus.broker, bus.journal, InheritedState())._state_log
    systemd.close()
    assert state_log is not None
    yield bus, state_log
    state_log.file.close()
    state_log.store.close()


def test_neither_a_packet_nor_a_step_writes_more_than_some_kilobytes(
    kept: tuple[InProcessBus, StateLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with many changes makes the log grow. It is rewritten several times, and no turn waits for that."""
    bus, state_log = kept
    written = 0
    write_at = syscalls.write_at

    def count(fd: int, data: memoryview, place: int) -> int:
        nonlocal written
        written += len(data)
        return write_at(fd, data, place)

    monkeypatch.setattr(statefile, "write_at", count)
    holder, churner = bus.client(uid=1), bus.client(uid=2)
    packets, steps = [], []
    for number in range(3 * PATTERNS):
        if number < PATTERNS:
            holder.subscribe(b"%03d" % number + b"\xff" * PATTERN_BYTES)
        for word in (b"SUB ", b"UNSUB "):
            churner.send(word + b"\xfe" * PATTERN_BYTES)
            written = 0
            bus.run()
            packets.append(written)
        written = 0
        bus.broker.settle()
        steps.append(written)
    assert sum(packets) > 10 * (1 << 20)
    assert max(packets) < MOST_BYTES
    # A turn does some steps. Each is limited to little more than this.
    monkeypatch.setattr("sbusd.broker.broker.MAX_SETTLE_SECONDS", 0.0)
    while not bus.broker.is_settled:
        written = 0
        bus.broker.settle()
        assert written < MOST_BYTES
    assert state_log.counts()["state_rewrites"] >= 3
    assert state_log.file.size < 8 * PATTERNS * PATTERN_BYTES
