"""Messages in the name of others on a real daemon: a service of one user, readers of another, and what neither can do."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import Bus, Gap, Message
from sbus.protocol import controls
from sbus.protocol.packets import join_batch
from sbus.protocol.vouching import vouched_packet
from sbus.rpc.caller_access import Allow
from tests.support.daemons import Daemon, StartDaemon
from tests.support.fdstore import Manager
from tests.support.users import FIRST, SECOND, User
from tests.support.vouched_messages import publish_vouched
from tests.support.wire import RawClient, error_code, message

pytestmark = pytest.mark.usefixtures("needs_root")

ORIGIN = b"!/host/alpha/!/cred/0/0/1"
WAIT_SECONDS = 30.0
RIGHTS = f"[rights]\nvouch = {{ users = [{SECOND.uid}] }}\npresence = {{ users = [{SECOND.uid}] }}\n"
RULES = f"""
[[policy]]
keys = "lab/"
publish = "deny"
users = [{SECOND.uid}]
"""


@pytest.fixture
def config(folder: Path) -> Path:
    """The file of the bus: the second user may vouch, except for keys under lab/."""
    file = folder / "sbusd.toml"
    file.write_text(RIGHTS + RULES)
    return file


@pytest.fixture
def bus(daemon: StartDaemon, config: Path) -> Daemon:
    """A bus on which the second user passes messages on."""
    return daemon("-C", str(config))


def number_of(client: RawClient) -> int:
    """Return the number of a client's connection."""
    return int(client.ask(controls.ADDRESS).split(b"/")[2])


def connected(bus: Daemon, user: User) -> Bus:
    """Return the Python client of a user."""
    return Bus.connect(f"/dev/fd/{user.connect(bus.path).detach()}")


def test_readers_of_another_user_see_who_vouches_and_for_whom(bus: Daemon) -> None:
    service, reader, plain = bus.client(SECOND), bus.client(FIRST), bus.client(FIRST)
    reader.control(controls.SENDER_ON)
    for client in (reader, plain):
        client.subscribe(b"net/")
        client.subscribe(b"!/cred//%d//mail" % FIRST.uid)
        client.barrier()
    own = service.ask(controls.WHOAMI)
    inner = [message(b"net/link", b"up"), message(b"!/cred//%d//mail" % FIRST.uid, b"secret")]
    service.send(join_batch([vouched_packet(ORIGIN, packet) for packet in inner]))
    assert service.barrier() == []
    assert plain.barrier() == inner
    head = b"CMSG !/from/%d/%b/%b\0" % (number_of(service), own, ORIGIN)
    assert reader.barrier() == [head + packet for packet in inner]


def test_nobody_else_can_and_the_rules_hold(bus: Daemon) -> None:
    service, reader, root, other = bus.client(SECOND), bus.client(FIRST), bus.client(), bus.client(FIRST)
    reader.subscribe(b"")
    reader.barrier()
    for client in (root, other):
        client.send(vouched_packet(ORIGIN, message(b"net/link", b"forged")))
        client.control(controls.LOST_FOR, b"1\0")
        assert [error_code(packet) for packet in client.barrier()] == ["EPERM"] * 2
    service.send(vouched_packet(ORIGIN, message(b"lab/oven", b"on")))
    service.control(controls.LOST_FOR, b"1\0lab/*")
    assert [error_code(packet) for packet in service.barrier()] == ["EPERM"] * 2
    assert reader.barrier() == []
    bus.stop()
    records = [line for line in bus.stderr.splitlines() if "in the name of others" in line]
    assert [f"uid={uid}" in line for uid, line in zip((0, 0, FIRST.uid, FIRST.uid), records, strict=True)] == [True] * 4


def test_a_reload_takes_the_right_away_and_gives_it_back(bus: Daemon, config: Path) -> None:
    service, reader = bus.client(SECOND), bus.client(FIRST)
    reader.subscribe(b"net/")
    reader.barrier()
    packet = vouched_packet(ORIGIN, message(b"net/link", b"up"))

    def outcome() -> list[str]:
        service.send(packet)
        return [error_code(each) for each in service.barrier()]

    for text, expected in ((RULES, ["EPERM"]), (RIGHTS, [])):
        config.write_text(text)
        bus.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + WAIT_SECONDS
        while outcome() != expected:
            assert time.monotonic() < end, "the new configuration has no effect"
    assert set(reader.barrier()) == {message(b"net/link", b"up")}


def test_the_author_is_no_user_of_this_host_for_the_python_client(bus: Daemon) -> None:
    with connected(bus, SECOND) as service, connected(bus, FIRST) as reader:
        reader.tell(controls.SENDER_ON)
        with reader.subscribe("net/*") as found:
            reader.ping()
            publish_vouched(service, ORIGIN, "net/link", "up")
            service.report_lost(["net/*"], 4)
            service.report_lost(["net/*"], 0)
            service.publish("net/link", "own")
            service.ping()
            items = [found.receive(WAIT_SECONDS) for _ in range(4)]
    first, *losses, last = items
    assert isinstance(first, Message)
    assert isinstance(last, Message)
    assert losses == [Gap(4), Gap(0)]
    assert first.sender is not None
    assert (first.sender.uid, first.sender.origin_bytes) == (-1, ORIGIN)
    assert first.sender.voucher == last.sender
    assert last.sender is not None
    assert last.sender.uid == SECOND.uid
    # The origin names root. It admits nobody.
    assert not Allow(users=(0,), groups=(0,)).admits(first.sender)


def test_the_service_sees_which_patterns_are_wanted_without_the_private_ones(bus: Daemon) -> None:
    service, reader = bus.client(SECOND), bus.client(FIRST)
    service.subscribe(b"!/event/")
    service.barrier()
    for pattern in (b"net/", b"!/cred//%d//mail" % FIRST.uid):
        reader.subscribe(pattern)
    reader.barrier()
    events = [packet[4:].partition(b"\0")[0] for packet in service.barrier()]
    assert events == [b"!/event/subscribe/%d/net/" % number_of(reader)]
    page = json.loads(service.ask(controls.SUBSCRIPTIONS))
    assert [each["pattern"] for each in page["subscriptions"]] == ["!/event/", "net/"]


@pytest.fixture
def manager(folder: Path, config: Path) -> Iterator[Manager]:
    """A service manager that has started the bus."""
    with Manager(folder, options=("-C", str(config))) as made:
        made.start()
        yield made
        assert "Traceback" not in made.stderr, made.stderr
        assert "internal error in" not in made.stderr


@pytest.mark.parametrize("in_place", [False, True])
def test_origins_outlive_a_handover_in_the_middle(manager: Manager, in_place: bool) -> None:
    """A slow reader has messages in its queue, and the bus has read more of the service than it has handled."""
    service, reader = RawClient(SECOND.connect(manager.path)), RawClient(FIRST.connect(manager.path))
    reader.control(controls.SENDER_ON)
    reader.subscribe(b"net/")
    reader.barrier()
    own, number = service.ask(controls.WHOAMI), number_of(service)
    origins = [b"!/host/h%d/!/cred/0/0/1" % each for each in range(2_000)]
    packets = [message(b"net/x", b"%d " % each + bytes(500)) for each in range(2_000)]
    for start in range(0, 2_000, 50):
        some = slice(start, start + 50)
        service.send(join_batch([vouched_packet(origin, packet) for origin, packet in zip(origins[some], packets[some], strict=True)]))
        if start == 1_000:
            manager.reload() if in_place else manager.restart()
    assert service.barrier() == []
    heads = [b"CMSG !/from/%d/%b/%b\0" % (number, own, origin) for origin in origins]
    assert reader.barrier() == [head + packet for head, packet in zip(heads, packets, strict=True)]
    for client in (service, reader):
        client.close()
