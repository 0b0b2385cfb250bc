"""Clients of a socket behind which the bus does not start; a program plays systemctl(1). tests/system has the real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import AsyncBus, Bus, NoBus, TimedOut
from sbus.bus_unit import BusUnit

REASON = "the bus does not start: bad key; see: systemctl status sbus.service"

FAILING = "ActiveState=failed\nStatusText=cannot start: bad key\n"
STARTING = "ActiveState=activating\nSubState=start\nNRestarts=0\n"


@pytest.fixture
def address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a socket that takes connections and never responds, as that of a service that does not start."""
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for module in ("sync.connection", "asyncio.link"):
        monkeypatch.setattr(f"sbus.{module}.unit_of", lambda _: BusUnit("sbus.service", is_user=False))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        yield str(folder / "socket")


def systemctl(folder: Path, shown: str) -> None:
    """Let systemctl print *shown*, and count its calls."""
    program = folder / "systemctl"
    program.write_text(f"#!/bin/sh\necho >>{folder}/calls\ncat <<'END'\n{shown}END\n")
    program.chmod(0o755)


@pytest.mark.parametrize("timeout", [None, 600.0])
def test_a_blocking_client_gets_the_reason(address: str, folder: Path, timeout: float | None) -> None:
    systemctl(folder, FAILING)
    with pytest.raises(NoBus) as caught:
        Bus.connect(address, timeout=timeout)
    assert str(caught.value) == f"cannot connect to {address}: {REASON}"


@pytest.mark.parametrize("timeout", [None, 600.0])
def test_a_client_in_a_loop_gets_the_reason(address: str, folder: Path, timeout: float | None) -> None:
    systemctl(folder, FAILING)

    async def run() -> None:
        async with AsyncBus.connect(address, timeout=timeout):
            pass

    with pytest.raises(NoBus) as caught:
        asyncio.run(run())
    assert str(caught.value) == f"cannot connect to {address}: {REASON}"


def test_a_bus_that_is_slow_is_waited_for(address: str, folder: Path) -> None:
    systemctl(folder, STARTING)
    with pytest.raises(TimedOut, match="took longer than 3 s"):
        Bus.connect(address, timeout=3.0)

    async def run() -> None:
        async with AsyncBus.connect(address, timeout=3.0):
            pass

    with pytest.raises(TimedOut, match="took longer than 3 s"):
        asyncio.run(run())
    # Few questions: many clients may wait.
    calls = folder / "calls"
    assert not calls.exists() or len(calls.read_text().splitlines()) <= 8


def test_a_socket_that_is_gone_is_explained(address: str, folder: Path) -> None:
    systemctl(folder, FAILING)
    with pytest.raises(NoBus) as caught:
        Bus.connect(f"{address}-none")
    assert caught.value.reason == REASON

    async def run() -> None:
        async with AsyncBus.connect(f"{address}-none"):
            pass

    with pytest.raises(NoBus) as caught:
        asyncio.run(run())
    assert caught.value.reason == REASON
