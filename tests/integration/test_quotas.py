"""Quotas on a real daemon, by real users: each is exhausted by one user while another works on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from sbus import AsyncBus, Bus, NoBus
from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code, message

pytestmark = pytest.mark.usefixtures("needs_root")


class OtherUser:
    """Two clients of the second user, who talk to each other whatever the first user does."""

    def __init__(self, bus: Daemon) -> None:
        self.listener, self.talker = bus.client(SECOND), bus.client(SECOND)
        self.listener.subscribe(b"neighbour")
        self.listener.barrier()
        self.count = 0

    def works(self) -> None:
        """Fail unless a message still goes from one to the other, and nothing else has come."""
        self.count += 1
        self.talker.publish(b"neighbour", b"%d" % self.count)
        assert self.talker.barrier() == []
        assert self.listener.barrier() == [message(b"neighbour", b"%d" % self.count)]


def users(client: RawClient) -> dict[int, dict[str, Any]]:
    """Return what the bus says of users, by their ids."""
    return {user["uid"]: user for user in json.loads(client.ask(controls.USERS))["users"]}


def recorded(bus: Daemon, what: str) -> list[str]:
    """Return the lines of the record that say *what*; the bus is ended."""
    bus.stop()
    return [line for line in bus.stderr.splitlines() if what in line]


def test_connecting_beyond_the_quota_fails(daemon: StartDaemon) -> None:
    bus = daemon(config="[quotas]\nconnections = 2\nowner_factor = 1\n")

    async def connect() -> None:
        await AsyncBus.connect(str(bus.path))

    with Bus.connect(str(bus.path)), Bus.connect(str(bus.path), reconnect=True, background=True) as second:
        for attempt in (lambda: Bus.connect(str(bus.path), reconnect=True), lambda: asyncio.run(connect())):
            with pytest.raises(NoBus, match=re.escape(f"cannot connect to {bus.path!s}: EDQUOT connections: 2 of 2 used by user 0")):
                attempt()
        assert second.ping() > 0


def test_connections(daemon: StartDaemon) -> None:
    bus = daemon(config="[quotas]\nconnections = 3\n")
    neighbour = OtherUser(bus)
    clients = [bus.client(FIRST) for _ in range(3)]
    assert [client.barrier() for client in clients] == [[]] * 3
    (reported,) = bus.client(FIRST).receive_to_end()
    assert reported == b"CMSG !/bus/error\0EDQUOT connections: 3 of 3 used by user 61001"
    neighbour.works()
    clients[0].close()
    while users(clients[1])[FIRST.uid]["connections"] > 2:
        neighbour.works()  # who has just cost much is served behind others, and its end is seen as late
    assert bus.client(FIRST).barrier() == []
    (line,) = recorded(bus, "a user that reached a quota")
    assert f"uid={FIRST.uid}" in line
    assert "connections: 3 of 3 used by user 61001; largest holders: pid " in line


def test_connection_attempts(daemon: StartDaemon) -> None:
    bus = daemon(config="[quotas]\nconnection_rate = 1\nconnection_burst = 40\n")
    neighbour = OtherUser(bus)
    reported: list[bytes] = []
    # A token comes each second: some more attempts than the burst find none, however slow the machine is.
    while not reported:
        client = bus.client(FIRST)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.control(controls.PING, b"x")
        first = client.receive()
        reported = [first] if first.startswith(b"CMSG !/bus/error") else []
        client.close()
    assert reported[0].startswith(b"CMSG !/bus/error\0EDQUOT connection_rate: 40 of 40 attempts used by user 61001; 1 more each second")
    neighbour.works()


def test_subscriptions_and_bytes_of_patterns(daemon: StartDaemon) -> None:
    bus = daemon(config='[quotas]\nsubscriptions = 50\npattern_bytes = "64KiB"\n')
    neighbour = OtherUser(bus)
    many, long = bus.client(FIRST), bus.client(FIRST)
    for number in range(50):
        many.subscribe(b"%d" % number)
    assert many.barrier() == []
    many.subscribe(b"one more")
    long.subscribe(b"one more")
    assert many.barrier() == long.barrier() == [b"CMSG !/bus/error\0EDQUOT subscriptions: 50 of 50 used by user 61001"]
    neighbour.works()
    many.close()
    while users(long)[FIRST.uid]["connections"] > 1:
        neighbour.works()  # who has just cost much is served behind others, and its end is seen as late
    # Each is charged 26,154 bytes: a hundred segments of 256, its own bytes four times, and 154.
    for _ in range(4):
        long.subscribe(b"x/" + b"/" * 98)
    assert long.barrier() == [b"CMSG !/bus/error\0EDQUOT pattern_bytes: 52308 of 65536 used by user 61001"] * 2
    neighbour.works()
    own = users(long)
    assert own.keys() == {FIRST.uid}
    assert own[FIRST.uid]["refused"] == {"subscriptions": 2, "pattern_bytes": 2}
    assert users(bus.client()).keys() == {0, FIRST.uid, SECOND.uid}


def test_control_packets(daemon: StartDaemon) -> None:
    bus = daemon(config="[quotas]\ncontrol_rate = 1\ncontrol_burst = 100\n")
    neighbour = OtherUser(bus)
    client, other = bus.client(FIRST), bus.client(FIRST)
    answers: list[bytes] = []
    while not answers or answers[-1]:
        # Together: the bus forgives 100 refused packets a second, and a slow machine makes no more round trips.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(50):
                client.control(controls.PING, b"x")
        for _ in range(50):
            answers.append(client.receive())
            if not answers[-1]:
                break
    assert set(answers) == {
        b"CMSG !/bus/ping\0x",
        b"CMSG !/bus/error\0EDQUOT control_rate: 100 of 100 packets used by user 61001; 1 more each second",
        b"",
    }
    assert answers.index(b"CMSG !/bus/ping\0x") == 0
    assert sum(packet.startswith(b"CMSG !/bus/error") for packet in answers) > 900
    # Another connection of that user shares the exhausted rate but stays; publishing does not count as control.
    other.publish(b"x")
    neighbour.works()


def test_what_waits(daemon: StartDaemon) -> None:
    bus = daemon(config="[quotas]\nqueued_packets = 100\n")
    neighbour = OtherUser(bus)
    slow, talker = bus.client(FIRST), bus.client(FIRST)
    slow.subscribe(b"flood")
    slow.barrier()
    for _ in range(1_000):
        talker.publish(b"flood", bytes(1_000))
        talker.barrier()
    user = users(talker)[FIRST.uid]
    assert user["queued_packets"] <= 100
    assert user["lost_packets"] > 0
    neighbour.works()
    # No loss is silent: received and reported losses add up to all messages.
    came = lost = 0
    while came + lost < 1_000:
        packet = slow.receive()
        if packet.startswith(b"CMSG !/bus/lost\0"):
            lost += int(packet.partition(b"\0")[2])
        else:
            assert packet == message(b"flood", bytes(1_000))
            came += 1
    assert (came + lost, slow.barrier()) == (1_000, [])
    assert lost >= user["lost_packets"]


def test_overrides_for_a_user_and_for_a_group(daemon: StartDaemon) -> None:
    bus = daemon(
        config=f"""
[quotas]
connections = 1
owner_factor = 5
[[quotas.overrides]]
users = [{FIRST.uid}]
connections = 2
[[quotas.overrides]]
groups = [{FIRST.groups[1]}]
connections = 3
subscriptions = 1
"""
    )
    admitted = {}
    for user, limit in ((FIRST, 2), (SECOND, 3), (None, 5)):
        clients = [bus.client(user) for _ in range(limit)]
        assert [client.barrier() for client in clients] == [[]] * limit
        (reported,) = bus.client(user).receive_to_end()
        assert b"EDQUOT connections: %d of %d used" % (limit, limit) in reported
        admitted[limit] = clients[0]
    # The second override has what the first leaves open, and both users are in that group.
    for limit in (2, 3):
        admitted[limit].subscribe(b"a")
        admitted[limit].subscribe(b"b")
        assert [error_code(packet) for packet in admitted[limit].barrier()] == ["EDQUOT"]


def test_quotas_are_read_again(daemon: StartDaemon, folder: Path) -> None:
    config = folder / "sbusd.toml"
    config.write_text("[quotas]\nsubscriptions = 1\n")
    bus = daemon("-C", str(config))
    client = bus.client(FIRST)
    client.subscribe(b"a")
    assert client.barrier() == []
    config.write_text("[quotas]\nsubscriptions = 2\n")
    bus.process.send_signal(signal.SIGHUP)
    # The signal is handled between two turns: the bus answers this one before it or after.
    while users(client)[FIRST.uid]["limits"]["subscriptions"] != 2:
        pass
    client.subscribe(b"b")
    client.subscribe(b"c")
    assert [error_code(packet) for packet in client.barrier()] == ["EDQUOT"]
