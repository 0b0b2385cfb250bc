"""Names of connections: labels that clients give to themselves, kept over restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal

import pytest

from sbus import AsyncBus, Bus, Disconnected, ProtocolError
from sbus.protocol import controls
from tests.support.daemons import Daemon
from tests.support.fdstore import Manager
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code


def names(client: RawClient) -> list[str]:
    """Return the names of the connections that a client sees."""
    return [each["name"] for each in json.loads(client.ask(controls.CONNECTIONS))["connections"]]


def test_a_client_names_itself(bus: Daemon) -> None:
    client = bus.client()
    assert names(client) == [""]
    for name in ("web-1", "caf\u00e9", ""):
        client.control(controls.NAME, name.encode())
        assert client.barrier() == []
        assert names(client) == [name]
    for payload in (b"x" * 65, b"\x1b[2J", b"\xff"):
        client.control(controls.NAME, payload)
        assert [error_code(packet) for packet in client.barrier()] == ["EINVAL"]
        assert names(client) == [""]


def test_other_users_see_a_name_only_in_events(bus: Daemon) -> None:
    mine, theirs = bus.client(FIRST), bus.client(SECOND)
    theirs.subscribe(b"!/event/disconnect/")
    mine.control(controls.NAME, b"mine")
    mine.barrier()
    assert names(theirs) == [""]
    mine.close()
    (event,) = [theirs.receive()]
    assert json.loads(event.partition(b"\0")[2])["name"] == "mine"


def test_the_python_clients(bus: Daemon) -> None:
    observer = bus.client()

    async def run() -> None:
        async with AsyncBus.connect(bus.path, name="async") as other:
            await other.ping()
            assert names(observer) == ["", "sync", "async"]

    with Bus.connect(bus.path, name="sync") as client:
        # Nothing but connect() has been called: the name is sent at once.
        while names(observer) != ["", "sync"]:
            pass
        asyncio.run(run())
        assert client.ping() > 0
    with pytest.raises(ProtocolError, match="name of a connection"):
        Bus.connect(bus.path, name="x" * 65)
    with pytest.raises(TypeError, match="name must be str"):
        Bus.connect(bus.path, name=b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_names_outlive_a_restart(manager: Manager, number: signal.Signals) -> None:
    one, two = manager.client(), manager.client()
    one.control(controls.NAME, b"one")
    two.control(controls.NAME, b"never")
    two.control(controls.NAME, b"two")
    one.barrier()
    two.barrier()
    for _ in range(2):
        manager.end(number)
        manager.start()
        one.barrier()
        two.barrier()
        assert sorted(names(one)) == ["one", "two"]


def test_a_reconnected_client_has_its_name_again(manager: Manager) -> None:
    observer = manager.client()
    path = str(observer.socket.getpeername())
    with Bus.connect(path, name="again", reconnect=True, timeout=60) as client:
        client.ping()
        manager.empty_store()
        manager.end(signal.SIGKILL)
        manager.start()
        with contextlib.suppress(Disconnected):
            client.ping()
        client.ping()
        assert names(manager.client()) == ["again", ""]
