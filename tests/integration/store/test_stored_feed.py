"""The netlink feed and the store on one bus: a late subscriber sees what exists, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbus import Bus, Message
from sbus_services.feeds.netlink.stored_values import PATTERNS
from tests.support.daemons import Daemon
from tests.support.relays import wait_for
from tests.support.store_programs import ENV, StoreProgram
from tools.stage import ROOT

STREAMS = (ROOT / "etc/store.toml.d/50-netlink.toml").read_text()

pytestmark = pytest.mark.usefixtures("needs_namespaces")


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace."""
    name = f"sbus-test-store-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=60)
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True, timeout=60)


def ip(namespace: str, *words: str) -> None:
    """Change the namespace."""
    subprocess.run(["ip", "-n", namespace, *words], check=True, timeout=60)


@contextmanager
def feed(bus: str, namespace: str) -> Iterator[subprocess.Popen[str]]:
    """Run the feed; it must end without a complaint."""
    words = ["sbus-feed", "netlink", "--address", bus, "--namespace", namespace]
    code = f"import sys; sys.argv = {words!r}; from sbus_services.feeds.main import main; main()"
    command = [sys.executable, "-W", "error", "-c", code]
    with subprocess.Popen(command, env=ENV, cwd="/", stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.terminate()
            _, said = process.communicate(timeout=60)
            assert (process.returncode, said) == (0, "")
        finally:
            process.kill()


def values(bus: Bus) -> dict[str, str]:
    """Return the event of each stored key."""
    return {each.key: each.json()["event"] for each in bus.store.last(*PATTERNS)}


def wait_for_links(bus: Bus, *names: str) -> None:
    """Wait until the stored links are *names*."""
    wanted = {f"net/link/{name}" for name in names}
    wait_for(lambda: {each.key for each in bus.store.last("net/link/")} == wanted, f"{wanted}")


def late(address: str, count: int) -> list[Message]:
    """Return the first *count* messages of a new subscriber to net/."""
    with Bus.connect(address, timeout=60) as bus, bus.subscribe("net/") as messages:
        found = [messages.receive(60) for _ in range(count)]
    assert all(isinstance(each, Message) for each in found)
    return [each for each in found if isinstance(each, Message)]


def test_last_values_follow_the_state(bus: Daemon, tmp_path: Path, namespace: str) -> None:
    with Bus.connect(bus.path, timeout=60) as client, StoreProgram(tmp_path, bus.path, STREAMS):
        with feed(bus.path, namespace):
            wait_for_links(client, "lo")
            ip(namespace, "link", "add", "br0", "type", "bridge")
            wait_for_links(client, "lo", "br0")
            assert all(event in ("snapshot", "new", "change") for event in values(client).values())
            seen = late(bus.path, len(values(client)))
            assert {"net/link/lo", "net/link/br0"} <= {each.key for each in seen}
            assert not [each.key for each in seen if each.key.startswith(("net/snapshot/", "net/request"))]
            assert json.loads(next(each.payload for each in seen if each.key == "net/link/br0"))["kind"] == "bridge"
            ip(namespace, "link", "delete", "br0")
            wait_for_links(client, "lo")
        ip(namespace, "link", "add", "br1", "type", "bridge")
        with feed(bus.path, namespace):
            wait_for_links(client, "lo", "br1")
        ip(namespace, "link", "delete", "br1")  # while no feed runs
        wait_for_links(client, "lo", "br1")
        with feed(bus.path, namespace):
            wait_for_links(client, "lo")


def test_a_store_that_starts_later_has_all_values(bus: Daemon, tmp_path: Path, namespace: str) -> None:
    with Bus.connect(bus.path, timeout=60) as client, feed(bus.path, namespace):
        with client.subscribe("net/snapshot/end") as snapshots:
            client.publish("net/request", "")
            snapshots.receive(60)
        with StoreProgram(tmp_path, bus.path, STREAMS):
            wait_for_links(client, "lo")


def test_values_of_other_namespaces_and_users_stay(bus: Daemon, tmp_path: Path, namespace: str) -> None:
    with Bus.connect(bus.path, timeout=60) as client, StoreProgram(tmp_path, bus.path, STREAMS):
        client.store.put("net/link/other", '{"event": "new", "namespace": "other"}')
        client.store.put("net/link/odd", "[not json")
        with feed(bus.path, namespace):
            ip(namespace, "link", "add", "br0", "type", "bridge")
            ip(namespace, "link", "delete", "br0")
            wait_for_links(client, "lo", "other", "odd")
