"""Streams of the store of another host, read through two relays: what store.toml opens to that host, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus import AsyncBus, Bus, Message, NoRecipient, RemoteError, StoredMessage, StoreError
from sbus.protocol.envelope import Envelope, parse_envelope
from sbus.protocol.framed_data import framed_data
from tests.integration.relay.conftest import bus_hosts, twins  # noqa: F401 - fixtures
from tests.support.bus_hosts import FIRST, SECOND, BusHost, MakeBusHosts
from tests.support.relays import wait_for
from tests.support.store_programs import BUS_RIGHTS, ENV, StoreCaller, StoreProgram
from tests.support.users import User

STREAMS = f"""
[[stream]]
name = "log"
keys = ["log/"]
twins = [{FIRST}]

[[stream]]
name = "state"
keys = ["state/"]
last = 1
twins = ["*"]

[[stream]]
name = "closed"
keys = ["closed/"]
last = 1

[[stream]]
name = "mail"
keys = ["mail/"]
twins = [{FIRST + 7}]
[[queue]]
name = "mail"
stream = "mail"

[limits]
readers = 2
"""

MakeStore = Callable[[str], StoreProgram]


@pytest.fixture
def hosts(bus_hosts: MakeBusHosts, folder: Path) -> tuple[BusHost, BusHost]:  # noqa: F811
    """The host that reads, and the host with the store."""
    rights = folder / "rights.toml"
    rights.write_text(BUS_RIGHTS)
    return bus_hosts("", "-C", str(rights))


@pytest.fixture
def store(hosts: tuple[BusHost, BusHost], tmp_path: Path) -> Iterator[StoreProgram]:
    """The store of the second host, which serves other hosts."""
    with StoreProgram(tmp_path, hosts[1].path, STREAMS) as made:
        wait_for_relayed(hosts[1])
        yield made


def wait_for_relayed(host: BusHost, *, serves: bool = True) -> None:
    """Wait until the store of *host* serves other hosts, or does not any more."""

    def found() -> bool:
        with host.bus() as bus:
            return bool(bus.members("relayed/store/read")) == serves

    wait_for(found, "the store's connection for other hosts")


def put(host: BusHost, key: str, *payloads: bytes) -> None:
    """Store messages on *host*."""
    with host.bus() as bus:
        for payload in payloads:
            bus.store.put(key, payload)


def payloads(items: object) -> list[bytes]:
    """Return the payloads of the messages in *items*."""
    assert hasattr(items, "__iter__")
    return [each.payload for each in items if isinstance(each, StoredMessage)]


def test_a_stream_and_last_values_are_read(hosts: tuple[BusHost, BusHost], store: StoreProgram) -> None:
    a, b = hosts
    put(b, "log/x", b"1", b"2")
    put(b, "state/x", b"old", b"new")
    put(b, "closed/x", b"secret")
    with a.bus() as bus:
        remote = bus.store.on(SECOND)
        assert remote.twin == SECOND
        assert payloads(remote.read("log", follow=False)) == [b"1", b"2"]
        assert payloads(remote.read("log", pattern="log/y", follow=False)) == []
        assert payloads(remote.last("state/")) == [b"new"]
        assert [each["name"] for each in remote.streams()["streams"]] == ["log", "state"]

    async def read() -> list[bytes]:
        async with AsyncBus.connect(a.path) as bus:
            return [each.payload async for each in bus.store.on(SECOND).read("log", follow=False) if isinstance(each, StoredMessage)]

    assert asyncio.run(read()) == [b"1", b"2"]


def test_a_reader_waits_for_new_messages(hosts: tuple[BusHost, BusHost], store: StoreProgram) -> None:
    a, b = hosts
    with a.bus() as bus, contextlib.closing(bus.store.on(SECOND).read("log")) as items:
        writing = threading.Thread(target=put, args=(b, "log/x", b"late"))
        writing.start()
        item = next(items)
        writing.join()
    assert isinstance(item, StoredMessage)
    assert item.payload == b"late"


def test_a_closed_stream_stays_closed(hosts: tuple[BusHost, BusHost], store: StoreProgram) -> None:
    """Whatever a host asks for: by name, by position, by last values, or by a pattern of keys of another stream."""
    a, b = hosts
    put(b, "closed/x", b"secret")
    put(b, "state/x", b"open")
    with a.bus() as bus:
        remote = bus.store.on(SECOND)
        for stream in ("closed", "mail"):
            with pytest.raises(StoreError, match=f"EACCES: twin {FIRST} may not read stream '{stream}'"):
                next(remote.read(stream, follow=False))
            with pytest.raises(StoreError, match="EACCES"):
                remote.set_position(stream, "r", 1)
        with pytest.raises(StoreError, match="ENOENT"):
            list(remote.last("closed/"))
        assert payloads(remote.last("")) == [b"open"]
        assert payloads(remote.read("state", pattern="closed/", follow=False)) == []
    with b.bus() as bus:
        wait_for(lambda: json.loads(bus.call("store/status"))["counters"]["remote_refusals"] >= 5, "the counter")


def test_other_calls_are_refused_at_once(hosts: tuple[BusHost, BusHost], store: StoreProgram) -> None:
    a, _ = hosts
    with a.bus() as bus:
        for name in ("put", "take", "ack", "retry", "fail", "extend", "peek", "purge", "forget", "revive", "acknowledge", "status"):
            with pytest.raises(RemoteError, match=f"EACCES store/{name} cannot be called from another host"):
                bus.call(f"store/{name}", b"{}", twin=SECOND, timeout=60)


def test_readers_of_a_host_are_durable_and_its_own(hosts: tuple[BusHost, BusHost], store: StoreProgram) -> None:
    a, b = hosts
    put(b, "log/x", b"1", b"2", b"3")
    with a.bus() as bus:
        remote = bus.store.on(SECOND)
        with contextlib.closing(remote.read("log", reader="r", follow=False)) as items:
            assert payloads([next(items), next(items)]) == [b"1", b"2"]
            # The loop has asked for the second, so the first is done.
        assert remote.position("log", "r") == 2
    store.kill()
    store.start()
    wait_for_relayed(b)
    with a.bus() as bus:
        remote = bus.store.on(SECOND)
        assert payloads(remote.read("log", reader="r", follow=False)) == [b"2", b"3"]
        remote.set_position("log", "other", 1)
        with pytest.raises(StoreError, match=f"EDQUOT: twin {FIRST} has 2 readers"):
            remote.set_position("log", "third", 1)
        remote.drop_reader("log", "other")
    with b.bus() as bus:
        assert bus.store.position("log", "r") is None, "a user of the host has other readers"
        assert payloads(bus.store.read("log", reader="r", follow=False)) == [b"1", b"2", b"3"]


def test_local_users_are_not_served_by_the_connection_for_hosts(hosts: tuple[BusHost, BusHost], store: StoreProgram) -> None:
    """Otherwise a user would be a host, or the other way around."""
    _, b = hosts
    with StoreCaller(b.path) as caller:
        for _ in range(8):
            assert caller.call("read", stream="closed")["messages"] == []
        with b.bus() as bus:
            assert len(bus.members("rpc/store/read")) == 1


def test_a_user_cannot_call_as_a_host(hosts: tuple[BusHost, BusHost], store: StoreProgram, first_user: User) -> None:
    """Also on a bus without the rules of the relay's package."""
    path = hosts[1].path

    def call() -> str:
        with Bus.connect(path) as bus, bus.subscribe(f"{bus.address}answer") as answers:
            data = framed_data({"stream": "log"})
            asked = Envelope("store/read", "u", data=data, reply_to=f"{bus.address}answer", source=FIRST, destinations=(SECOND,))
            bus.publish("relayed/store/read", asked.encode())
            item = answers.receive(60)
            assert isinstance(item, Message)
            return parse_envelope(item.payload).error

    assert f"user {first_user.uid} is not a relay and cannot call for a remote host" in first_user.call(call)


def test_the_configuration_opens_and_closes(hosts: tuple[BusHost, BusHost], store: StoreProgram) -> None:
    a, b = hosts
    put(b, "closed/x", b"1")
    store.configure(STREAMS.replace('keys = ["closed/"]', 'keys = ["closed/"]\ntwins = ["*"]'))
    store.reload()
    with a.bus() as bus:
        assert payloads(bus.store.on(SECOND).read("closed", follow=False)) == [b"1"]
    store.configure("".join(line for line in STREAMS.splitlines(keepends=True) if "twins" not in line))
    store.reload()
    wait_for_relayed(b, serves=False)


def test_a_twin_that_does_not_exist(hosts: tuple[BusHost, BusHost], store: StoreProgram, tmp_path: Path) -> None:
    a, _ = hosts
    with a.bus() as bus:
        for wrong in (0, -1, 1 << 32):
            with pytest.raises(ValueError, match="invalid twin"):
                bus.store.on(wrong)
        with pytest.raises(StoreError, match="EHOSTDOWN"):
            list(bus.store.on(9_999).read("log", follow=False))
    hosts[1].host.relay.stop()
    with Bus.connect(hosts[1].path) as bus, pytest.raises(NoRecipient):
        list(bus.store.on(FIRST).read("log", follow=False))


def test_sbusctl_reads_it(hosts: tuple[BusHost, BusHost], store: StoreProgram) -> None:
    a, b = hosts
    put(b, "log/x", b"line")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sbusctl.main", "--address", a.path, "store", words[0], "--twin", str(SECOND), *words[1:]]
        return subprocess.run(command, capture_output=True, text=True, env=ENV, check=False, timeout=120)

    done = run("read", "log")
    assert done.returncode == 0, done.stderr
    assert "log/x" in done.stdout
    assert "line" in done.stdout
    done = run("take", "mail")
    assert done.returncode == 2
    done = run("work", "mail", "true")
    assert done.returncode == 2
    assert "--twin is not an option of work" in done.stderr
