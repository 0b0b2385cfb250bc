"""Queue groups in C, with ``clients/c/sbus.h``, on a real bus: memberships, and what remains of them after a reconnection."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.c_programs import Actor, client_program
from tests.support.daemons import Daemon, StartDaemon

SHARES_BUS = True


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program."""
    return client_program("actor", tmp_path_factory.mktemp("c"))


@pytest.fixture
def member(program: Path, bus: Daemon) -> Iterator[Actor]:
    """A client that connects again."""
    actor = Actor(program, bus.path, "r")
    yield actor
    actor.close()


def _members(bus: Daemon, key: bytes) -> int:
    """Return how many connections would get a message with *key*."""
    return len(json.loads(bus.client().ask(b"!/bus/members", key))["members"])


def test_one_member_gets_each_message(bus: Daemon, member: Actor, program: Path) -> None:
    members = [member, Actor(program, bus.path)]
    for each in members:
        each.ok("join", "workers", "job/*")
        each.barrier()
    client = bus.client()
    for number in range(20):
        client.publish(b"job/%d" % number)
    client.barrier()
    shares = [each.barrier() for each in members]
    assert sorted(packet.key for share in shares for packet in share) == sorted(b"job/%d" % number for number in range(20))
    assert all(share for share in shares)
    assert {packet.group for share in shares for packet in share} == {b"workers"}
    member.ok("leave", "workers", "job/*")
    member.barrier()
    client.publish(b"job/x")
    client.barrier()
    assert member.barrier() == []
    assert [packet.key for packet in members[1].barrier()] == [b"job/x"]
    members[1].close()


def test_memberships_are_made_again_after_a_reconnection(daemon: StartDaemon, program: Path) -> None:
    """Each of them once, with other subscriptions to the same pattern. Those that were left are not made again."""
    bus = daemon()
    actor = Actor(program, bus.path, "r")
    for group, pattern in (("a", "job/*"), ("b", "job/*"), ("a", "gone"), ("b", "gone"), ("a", "")):
        actor.ok("join", group, pattern)
    actor.ok("subscribe", "job/*")
    for group, pattern in (("a", "gone"), ("b", "gone"), ("a", "")):
        actor.ok("leave", group, pattern)
    actor.barrier()
    bus.stop()
    other = daemon()
    Path(bus.path).symlink_to(other.path)
    assert actor.next().kind == "reconnected"
    assert actor.barrier() == []
    assert _members(other, b"job/1") == 1
    assert _members(other, b"gone") == 0
    client = other.client()
    client.publish(b"job/1")
    client.barrier()
    assert sorted(packet.group for packet in actor.barrier()) == [b"", b"a", b"b"]
    for group in ("a", "b"):
        actor.ok("leave", group, "job/*")
    actor.ok("unsubscribe", "job/*")
    actor.barrier()
    assert _members(other, b"job/1") == 0
    actor.close()


def test_what_the_bus_refuses_is_reported(member: Actor) -> None:
    """And the connection goes on."""
    wrong = [("", "k", errno.EINVAL), ("a/b", "k", errno.EINVAL), ("g" * 5000, "k", errno.EINVAL), ("g", "k" * 5000, errno.EMSGSIZE)]
    for group, pattern, error in wrong:
        member.ok("join", group, pattern)
        refused = member.next()
        assert (refused.kind, refused.error) == ("refused", error), (group[:10], pattern[:10])
    assert member.barrier() == []


def test_a_connection_with_a_membership_makes_no_calls(member: Actor) -> None:
    """Messages of the group would arrive during the call."""
    member.ok("join", "g", "k")
    assert member.do("call", "echo", "1", "30000").startswith(f"error\t{errno.EBUSY}\t")
    member.ok("leave", "g", "k")
    assert member.do("call", "echo", "1", "30000").startswith(f"error\t{errno.ENOENT}\t")
