"""What a receipt says of a private key on a real daemon, to several users: not more than ``!/bus/members`` does."""

from __future__ import annotations

import json
import os
import socket

import pytest

from sbus import Bus
from sbus.protocol import controls
from sbus.protocol.packets import join_batch
from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import FIRST, SECOND, User
from tests.support.wire import RawClient, error_code, message

pytestmark = pytest.mark.usefixtures("needs_root")

ADMIN = User(61_077, 61_077)

DEMANDS = (b"receipt/always", b"receipt/undeliverable")


@pytest.fixture
def administered(daemon: StartDaemon) -> Daemon:
    """A bus with an admin."""
    return daemon(config=f"admins = [{ADMIN.uid}]\n")


def said_by_members(client: RawClient, key: bytes) -> int | None:
    """Return how many connections ``!/bus/members`` lists for *key*, None if the client may not know."""
    client.control(controls.MEMBERS, key)
    answer = client.receive()
    if answer.startswith(b"CMSG !/bus/error\0"):
        assert error_code(answer) == "EPERM"
        return None
    return len(json.loads(answer.partition(b"\0")[2])["members"])


def said_by_receipts(client: RawClient, key: bytes, *, batched: bool) -> list[list[bytes]]:
    """Return the receipts of two messages, one for each kind of demand."""
    reported = []
    for demand in DEMANDS:
        packets = [b"CMSG %b\0t" % demand, message(key, b"x")]
        for packet in [join_batch(packets)] if batched else packets:
            client.send(packet)
        reported.append([packet for packet in client.barrier() if not packet.startswith(b"MSG ")])
    return reported


def receipts_of(count: int | None) -> list[list[bytes]]:
    """Return what the two kinds of receipt tell to a client that members tells *count*."""
    head = b"CMSG !/bus/receipt\0t\0"
    if count is None:
        return [[head + b"-"]] * 2
    return [[head + b"%d" % count], [] if count else [head + b"0"]]


@pytest.mark.parametrize("batched", [False, True])
def test_a_receipt_says_no_more_than_members_does(administered: Daemon, batched: bool) -> None:
    owner = administered.client(FIRST)
    _, _, gid, uid, pid = owner.ask(controls.WHOAMI).split(b"/")
    group = b"%d" % FIRST.groups[0]
    listened = [b"!/cred//%b//backup" % uid, b"!/cred/%b///board" % gid, b"!/cred/%b/%b//both" % (group, uid)]
    unmatched = [b"!/cred//%b//other" % uid, b"!/cred/%b///other" % gid, b"!/cred/%b/%b//other" % (group, uid)]
    unmatched.append(b"!/cred//%b/%b/x" % (uid, pid))
    public = [b"!/cred////x", b"!/conn/1/x", b"ordinary"]
    for key in listened:
        owner.subscribe(key)
    assert owner.barrier() == []
    knowing = {name: administered.client(user) for name, user in (("same user", FIRST), ("admin", ADMIN), ("root", None))}
    other_user = administered.client(SECOND)
    for key in listened + unmatched:
        assert said_by_members(other_user, key) is None, key
        assert said_by_receipts(other_user, key, batched=batched) == receipts_of(None), key
        for name, client in knowing.items():
            if key.endswith(b"/%b/x" % pid) and name == "same user":
                continue  # a process of the same user, but not that one
            count = int(key in listened)
            assert (name, key, said_by_members(client, key)) == (name, key, count)
            assert said_by_receipts(client, key, batched=batched) == receipts_of(count), (name, key)
    for key in public:
        for client in (other_user, *knowing.values()):
            assert said_by_receipts(client, key, batched=batched) == receipts_of(said_by_members(client, key)), key
    received = [packet for packet in owner.barrier() if packet.startswith(b"MSG ")]
    # Each message of the four senders was delivered, two for each key, whatever their receipts said.
    assert received == [message(key, b"x") for key in listened for _ in range(8)]


def test_the_secret_of_a_process_is_not_even_for_others_of_its_user(administered: Daemon) -> None:
    same_user, other_user = administered.client(FIRST), administered.client(SECOND)

    def act() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bus:
            bus.connect(administered.path)
            own = RawClient(bus)
            key = b"!/cred//%d/%d/own" % (os.getuid(), os.getpid())
            own.subscribe(key)
            assert own.barrier() == []
            for each in (key, key + b"/other"):
                for other in (same_user, other_user):
                    assert said_by_members(other, each) is None
                    assert said_by_receipts(other, each, batched=False) == receipts_of(None)
                assert said_by_receipts(own, each, batched=False) == receipts_of(int(each == key))

    FIRST.call(act)


def test_the_python_client_returns_none_for_a_withheld_receipt(administered: Daemon) -> None:
    def act() -> list[int | None]:
        with Bus.connect(administered.path) as bus:
            return [bus.publish(f"!/cred//{uid}//x", receipt=True) for uid in (FIRST.uid, SECOND.uid)]

    assert SECOND.call(act) == [None, 0]
