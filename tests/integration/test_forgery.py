"""What users of a real daemon try against each other's addresses, senders, events and taps: rejected, reported, and in the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code, message

pytestmark = pytest.mark.usefixtures("needs_root")

VERIFIED = b"!/from/%d/!/cred/%d/%d/"

FORGED_WORDS = [
    *[b"!/event/disconnect/1", b"!/event/connect/1", b"!/event/subscribe/1/a", b"!/bus/error", b"!/bus/lost", b"!/bus/receipt"],
    *[b"!/from/1/!/cred/0/0/1", b"!/tap", b"!/conn/1", b"!/batch"],
]
CLOSED_PATTERNS = [b"!/bus/", b"!/bus/error", b"!/from/", b"!/tap", b"!/", b"!/conn/", b"!/conn/*/", b"!/conn/*/x", b"!/event"]


def refused_record(bus: Daemon, uid: int) -> str:
    """Stop the bus and return its first record of a reserved key that was refused to *uid*."""
    bus.stop()
    return next(line for line in bus.stderr.splitlines() if "packets with a reserved key" in line and f"uid={uid}" in line)


def number_of(client: RawClient) -> int:
    """Return the number of a client's connection."""
    return int(client.ask(controls.ADDRESS).split(b"/")[2])


def test_no_client_can_publish_to_keys_of_the_bus(bus: Daemon) -> None:
    victim, root, forger = bus.client(FIRST), bus.client(), bus.client(SECOND)
    victim.control(controls.SENDER_ON)
    for pattern in (b"", b"*/", b"!/event/", victim.ask(controls.ADDRESS)):
        victim.subscribe(pattern)
    victim.barrier()
    for each in (forger, root):
        for key in FORGED_WORDS:
            each.publish(key, b'{"id":1}')
            assert [error_code(packet) for packet in each.barrier()] == ["EPERM"], key
    assert victim.barrier() == []
    assert refused_record(bus, SECOND.uid)


def test_no_client_can_subscribe_to_keys_of_the_bus(bus: Daemon) -> None:
    eavesdropper = bus.client(SECOND)
    for pattern in CLOSED_PATTERNS:
        eavesdropper.subscribe(pattern)
        assert [error_code(packet) for packet in eavesdropper.barrier()] == ["EPERM"], pattern
    assert refused_record(bus, SECOND.uid)


def test_no_other_connection_can_subscribe_to_an_address_not_even_as_root(bus: Daemon) -> None:
    victim, twin, other_user, root = bus.client(FIRST), bus.client(FIRST), bus.client(SECOND), bus.client()
    address = victim.ask(controls.ADDRESS)
    victim.subscribe(address)
    victim.barrier()
    for eavesdropper in (twin, other_user, root):
        for rest in (b"", b"x", b"*"):
            eavesdropper.subscribe(address + rest)
        for wide in (b"", b"*", b"*/", b"!*/", b"*/conn/", b"*/*/*/"):
            eavesdropper.subscribe(wide)
        assert [error_code(packet) for packet in eavesdropper.barrier()] == ["EPERM"] * 3
    other_user.publish(address + b"letter", b"for you alone")
    assert other_user.barrier() == []
    assert victim.barrier() == [message(address + b"letter", b"for you alone")]
    assert twin.barrier() == root.barrier() == []
    assert refused_record(bus, SECOND.uid)


def test_address_is_never_given_out_again(bus: Daemon) -> None:
    first = bus.client(FIRST)
    address = first.ask(controls.ADDRESS)
    first.close()
    addresses = {bus.client(SECOND).ask(controls.ADDRESS) for _ in range(10)}
    assert len(addresses) == 10
    assert address not in addresses


def test_the_sender_has_the_peer_credentials(bus: Daemon) -> None:
    hearer, liar = bus.client(FIRST), bus.client(SECOND)
    hearer.control(controls.SENDER_ON)
    hearer.subscribe(b"a")
    hearer.barrier()
    liar.publish(b"a", b"!/from/1/!/cred/0/0/1\0MSG a\0trust me")
    liar.barrier()
    (packet,) = hearer.barrier()
    head, _, rest = packet.partition(b"\0")
    assert head.startswith(b"CMSG " + VERIFIED % (number_of(liar), SECOND.gid, SECOND.uid))
    assert head.removeprefix(b"CMSG !/from/%d/" % number_of(liar)) == liar.ask(controls.WHOAMI)
    assert rest == message(b"a", b"!/from/1/!/cred/0/0/1\0MSG a\0trust me")


def test_tap_is_for_owners_alone(bus: Daemon) -> None:
    victim, spy, root = bus.client(FIRST), bus.client(SECOND), bus.client()
    secret = b"!/cred//%d//x" % FIRST.uid
    for client in (spy, root):
        client.control(controls.TAP_ON, secret)
    assert [error_code(packet) for packet in spy.barrier()] == ["EPERM"]
    assert root.barrier() == []
    victim.publish(secret, b"word")
    victim.barrier()
    assert spy.barrier() == []
    (reported,) = root.barrier()
    line, _, packet = reported.removeprefix(b"CMSG !/tap\0").partition(b"\n")
    assert packet == message(secret, b"word")
    assert json.loads(line)["cred"] == victim.ask(controls.WHOAMI).decode()
    bus.stop()
    assert "rejected tap" in bus.stderr


def test_presence_events_hide_private_keys_of_other_users(bus: Daemon) -> None:
    other_user, twin, root = bus.client(SECOND), bus.client(FIRST), bus.client()
    for listener in (other_user, twin, root):
        listener.subscribe(b"!/event/")
        listener.barrier()
    for listener in (other_user, twin, root):
        listener.barrier()
    victim = bus.client(FIRST)
    secret = b"!/cred//%d//x" % FIRST.uid
    for pattern in (secret, b"open"):
        victim.subscribe(pattern)
    number = number_of(victim)
    kinds = {who: _kinds(client.barrier()) for who, client in (("other user", other_user), ("twin", twin), ("root", root))}
    everything = [b"connect/%d" % number, b"subscribe/%d/%b" % (number, secret), b"subscribe/%d/open" % number]
    assert kinds == {"other user": everything[:1], "twin": everything, "root": everything}
    other_user.control(controls.MEMBERS, secret)
    assert [error_code(packet) for packet in other_user.barrier()] == ["EPERM"]
    victim.close()
    assert _kinds([other_user.receive()]) == [b"disconnect/%d" % number]


def _kinds(packets: list[bytes]) -> list[bytes]:
    """Return the keys of events, without their head."""
    assert all(packet.startswith(b"MSG !/event/") for packet in packets)
    return [packet.removeprefix(b"MSG !/event/").partition(b"\0")[0] for packet in packets]


def test_storm_of_subscriptions_is_bounded_by_its_user_s_quota(daemon: StartDaemon, folder: Path) -> None:
    config = folder / "sbusd.toml"
    config.write_text("[quotas]\ncontrol_burst = 100\ncontrol_rate = 1\nowner_factor = 1000\n")
    bus = daemon("--config", str(config))
    listener, storm, bystander = bus.client(), bus.client(SECOND), bus.client(FIRST)
    listener.subscribe(b"!/event/")
    listener.barrier()
    for _ in range(250):
        storm.subscribe(b"a")
        storm.unsubscribe(b"a")
    bystander.publish(b"x")
    assert bystander.barrier() == []
    codes = [error_code(storm.receive()) for _ in range(300)]
    assert set(codes) == {"EDQUOT"}
    received = [kind for kind in _kinds(listener.barrier()) if kind.endswith(b"/a")]
    assert 50 <= len(received) <= 200
