"""Direct messages on a real daemon: a store of one user, subscribers of another, and what neither can do to the other."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import Bus, Message, RemoteRefusal
from sbus.protocol import controls
from sbus.protocol.direct_messages import direct_packet
from sbus.protocol.packets import join_batch
from sbus.protocol.vouching import vouched_packet
from tests.support.daemons import Daemon, StartDaemon
from tests.support.fdstore import Manager
from tests.support.shell import Shell
from tests.support.users import FIRST, SECOND, User
from tests.support.vouched_messages import publish_vouched
from tests.support.wire import RawClient, error_code, message
from tools.stage import Stage

pytestmark = pytest.mark.usefixtures("needs_root")

ORIGIN = b"!/local/!/cred/%d/%d/77" % (FIRST.gid, FIRST.uid)
WAIT_SECONDS = 30.0
RIGHTS = f"[rights]\ndeliver = {{ users = [{SECOND.uid}] }}\nvouch = {{ users = [{SECOND.uid}] }}\n"
RULES = f"""
[[policy]]
keys = "lab/"
publish = "deny"
users = [{SECOND.uid}]
"""
BOUNDS = '[limits]\nqueue_packets = 100\nqueue_bytes = "1MiB"\n'
MANY = 10_000


@pytest.fixture
def config(folder: Path) -> Path:
    """The file of the bus: the second user may send direct messages, except with keys under lab/."""
    file = folder / "sbusd.toml"
    file.write_text(BOUNDS + RIGHTS + RULES)
    return file


@pytest.fixture
def bus(daemon: StartDaemon, config: Path) -> Daemon:
    """A bus on which the second user keeps a store."""
    return daemon("-C", str(config))


def number_of(client: RawClient) -> int:
    """Return the number of a client's connection."""
    return int(client.ask(controls.ADDRESS).split(b"/")[2])


def connected(bus: Daemon, user: User) -> Bus:
    """Return the Python client of a user."""
    return Bus.connect(f"/dev/fd/{user.connect(bus.path).detach()}")


def subscribed(bus: Daemon, user: User, *patterns: bytes) -> RawClient:
    """Return a client with these patterns."""
    client = bus.client(user)
    for pattern in patterns:
        client.subscribe(pattern)
    assert client.barrier() == []
    return client


def counter(bus: Daemon, name: str) -> int:
    """Return one counter of the bus."""
    owner = bus.client()
    count: int = json.loads(owner.ask(controls.STATS))["counters"][name]
    owner.close()
    return count


def test_a_stored_message_reaches_one_subscriber_as_its_senders(bus: Daemon) -> None:
    with connected(bus, SECOND) as store, connected(bus, FIRST) as reader, connected(bus, FIRST) as other:
        reader.tell(controls.SENDER_ON)
        with reader.subscribe("net/") as found, other.subscribe("net/") as not_found:
            number = int(reader.address.split("/")[2])
            publish_vouched(store, ORIGIN, "net/link", "stored", to=number)
            assert store.publish("net/link", "again", to=number, receipt=True) == 1
            assert store.publish("else", "", to=number, receipt=True) == 0
            assert store.publish("net/link", "for all", receipt=True) == 2
            items = [found.receive(WAIT_SECONDS) for _ in range(3)]
            only = not_found.receive(WAIT_SECONDS)
    stored, again, for_all = (item for item in items if isinstance(item, Message))
    assert [each.text for each in (stored, again, for_all)] == ["stored", "again", "for all"]
    assert stored.sender is not None
    assert stored.sender.origin_bytes == ORIGIN
    assert stored.sender.voucher == again.sender
    assert isinstance(only, Message)
    assert only.text == "for all"


def test_other_users_cannot_and_the_rules_hold(bus: Daemon) -> None:
    store, root, other = bus.client(SECOND), bus.client(), bus.client(FIRST)
    reader = subscribed(bus, FIRST, b"")
    number = number_of(reader)
    for client in (root, other):
        client.send(direct_packet(number, message(b"net/link", b"forged")))
        assert [error_code(packet) for packet in client.barrier()] == ["EPERM"]
    for key in (b"lab/oven", b"!/event/connect/1", b"!/conn/%d/lab/oven" % number):
        store.send(direct_packet(number, message(key)))
        assert [error_code(packet) for packet in store.barrier()] == ["EPERM"], key
    assert reader.barrier() == []
    bus.stop()
    records = [line for line in bus.stderr.splitlines() if "for one connection alone" in line]
    assert [f"uid={uid}" in line for uid, line in zip((0, FIRST.uid), records, strict=True)] == [True] * 2


def test_it_says_nothing_about_private_patterns_of_others(bus: Daemon) -> None:
    store = bus.client(SECOND)
    key = b"!/cred//%d//mail" % FIRST.uid
    with_it, without = subscribed(bus, FIRST, key), subscribed(bus, FIRST, b"")
    for reader in (with_it, without):
        store.control(controls.RECEIPT_ALWAYS, b"t")
        store.send(direct_packet(number_of(reader), message(key, b"x")))
        assert store.barrier() == [b"CMSG !/bus/receipt\0t\0-"]
    assert with_it.barrier() == [message(key, b"x")]
    assert without.barrier() == []


def test_many_to_absent_connections_cost_others_nothing(bus: Daemon) -> None:
    store, victim = bus.client(SECOND), subscribed(bus, FIRST, b"work")
    absent = [direct_packet(10**12 + each, message(b"work", b"%d" % each)) for each in range(MANY)]
    for start in range(0, MANY, 100):
        store.send(join_batch(absent[start : start + 100]))
        victim.publish(b"work", b"%d" % start)
        assert victim.barrier() == [message(b"work", b"%d" % start)]
    assert store.barrier() == []
    assert counter(bus, "undeliverable") == MANY
    assert counter(bus, "queued_packets") == counter(bus, "lost_packets") == 0


@pytest.mark.parametrize("mode", [b"blocking/hard/discard", b"blocking/hard/block"])
def test_a_recipient_that_does_not_read_blocks_no_user_and_is_notified_of_its_losses(bus: Daemon, mode: bytes) -> None:
    store, slow, victim = bus.client(SECOND), subscribed(bus, FIRST, b"work"), subscribed(bus, FIRST, b"else")
    slow.control(mode)
    slow.barrier()
    number = number_of(slow)
    packets = [message(b"work", b"%d " % each + bytes(1_000)) for each in range(MANY)]
    for start in range(0, MANY, 100):
        store.send(join_batch([direct_packet(number, packet) for packet in packets[start : start + 100]]))
        store.publish(b"else", b"%d" % start)
        assert victim.receive() == message(b"else", b"%d" % start)
    assert store.barrier() == []
    owner = bus.client()
    (shown,) = [each for each in json.loads(owner.ask(controls.CONNECTIONS))["connections"] if each["id"] == number]
    assert shown["queued_packets"] <= 100
    received = slow.barrier()
    lost = [int(packet.partition(b"\0")[2]) for packet in received if packet.startswith(b"CMSG !/bus/lost")]
    kept = [packet for packet in received if packet.startswith(b"MSG ")]
    assert len(kept) + sum(lost) == MANY
    assert kept == [packet for packet in packets if packet in set(kept)]
    assert counter(bus, "blocks") == 0


def test_a_reload_takes_the_right_away_and_gives_it_back(bus: Daemon, config: Path) -> None:
    store, reader = bus.client(SECOND), subscribed(bus, FIRST, b"net/")
    packet = direct_packet(number_of(reader), message(b"net/link", b"up"))

    def outcome() -> list[str]:
        store.send(packet)
        return [error_code(each) for each in store.barrier()]

    for text, expected in ((RULES, ["EPERM"]), (RIGHTS, [])):
        config.write_text(text)
        bus.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + WAIT_SECONDS
        while outcome() != expected:
            assert time.monotonic() < end, "the new configuration has no effect"
    assert set(reader.barrier()) == {message(b"net/link", b"up")}


def test_sbusctl_publishes_to_one_connection_and_shows_it(bus: Daemon, stage: Stage) -> None:
    shell = Shell(stage, bus)
    reader, other = subscribed(bus, FIRST, b"net/"), subscribed(bus, FIRST, b"net/")
    to = ("--to", str(number_of(reader)))
    with connected(bus, User(0, 0)) as owner, owner.tap("net/") as tap:
        shell.succeed("pub", *to, "net/link", "up", user=SECOND)
        record = tap.receive(WAIT_SECONDS)
    assert getattr(record, "fields", {})["to"] == int(to[1])
    shell.succeed("pub", "--lines", *to, "net/link", user=SECOND, stdin=b"one\ntwo\n")
    assert shell.succeed("pub", "--receipt", *to, "net/link", "last", user=SECOND) == b"1 recipient\n"
    assert shell.run("pub", "--receipt", *to, "else", "", user=SECOND).returncode == 3
    assert reader.barrier() == [message(b"net/link", each) for each in (b"up", b"one", b"two", b"last")]
    assert other.barrier() == []
    assert "only users with the deliver right" in shell.fail("pub", *to, "net/link", "up", user=FIRST)
    assert b"has the deliver right" in shell.succeed("explain", str(SECOND.uid), "publish", "net/link", user=SECOND)
    asked = ("explain", str(FIRST.uid), "publish", "lab/x")
    assert b"may publish" in shell.succeed(*asked, user=SECOND), "it may ask about others"


def test_a_refusal_reaches_the_python_client(bus: Daemon) -> None:
    with connected(bus, FIRST) as client, pytest.raises(RemoteRefusal, match="deliver right"):
        client.publish("net/link", to=1, receipt=True)


@pytest.fixture
def manager(folder: Path, config: Path) -> Iterator[Manager]:
    """A service manager that has started the bus."""
    config.write_text(RIGHTS)
    with Manager(folder, options=("-C", str(config))) as made:
        made.start()
        yield made
        assert "Traceback" not in made.stderr, made.stderr
        assert "internal error in" not in made.stderr


@pytest.mark.parametrize("in_place", [False, True])
def test_recipients_outlive_a_handover_in_the_middle(manager: Manager, in_place: bool) -> None:
    """Slow readers have messages in their queues, and the bus has read more of the store than it has handled."""
    store, *readers = (RawClient(user.connect(manager.path)) for user in (SECOND, FIRST, FIRST))
    for reader in readers:
        reader.control(controls.SENDER_ON)
        reader.subscribe(b"net/")
        reader.barrier()
    own, number, numbers = store.ask(controls.WHOAMI), number_of(store), [number_of(reader) for reader in readers]
    packets = [message(b"net/x", b"%d " % each + bytes(500)) for each in range(2_000)]
    direct = [direct_packet(numbers[each % 2], vouched_packet(ORIGIN, packet)) for each, packet in enumerate(packets)]
    for start in range(0, 2_000, 50):
        store.send(join_batch(direct[start : start + 50]))
        if start == 1_000:
            manager.reload() if in_place else manager.restart()
    assert store.barrier() == []
    head = b"CMSG !/from/%d/%b/%b\0" % (number, own, ORIGIN)
    for place, reader in enumerate(readers):
        assert reader.barrier() == [head + packet for packet in packets[place::2]]
    for client in (store, *readers):
        client.close()
