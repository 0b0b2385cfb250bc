"""Private keys on a real daemon: their owners, and that no other user can use them."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code, message

pytestmark = pytest.mark.usefixtures("needs_root")


def run_client(path: str, act: Callable[[RawClient, bytes, bytes, bytes], list[bytes]]) -> Callable[[], list[bytes]]:
    """Return a function that connects to *path* and acts, with the ids of its own process as the bus spells them."""

    def run() -> list[bytes]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(path)
            return act(RawClient(sock), b"%d" % os.getgid(), b"%d" % os.getuid(), b"%d" % os.getpid())

    return run


def subscribe_to_all_own(client: RawClient, gid: bytes, uid: bytes, pid: bytes) -> list[bytes]:
    """Subscribe to every combination of the user's own and empty ids, publish to each, and return the received messages."""
    keys = [b"!/cred/%b/%b/%b/x" % ids for ids in itertools.product([b"", gid], [b"", uid], [b"", pid])]
    for key in keys:
        client.subscribe(key)
    for key in keys:
        client.publish(key, b"for me")
    assert client.barrier() == [message(key, b"for me") for key in keys]
    return keys


def test_every_combination_of_one_s_own_ids_is_one_s_own(bus: Daemon) -> None:
    keys = FIRST.call(run_client(bus.path, subscribe_to_all_own))
    assert len(set(keys)) == 8


def test_another_user_may_publish_to_a_secret_key_and_only_its_owner_hears(bus: Daemon) -> None:
    owner, same_user, other_user, root = bus.client(FIRST), bus.client(FIRST), bus.client(SECOND), bus.client()
    key = b"!/cred//%d//letters" % FIRST.uid
    owner.subscribe(key)
    for client in (other_user, root):
        for pattern in (b"", b"*", b"*/", b"!*/", b"!*/*", b"*/cred/", b"*/*/*/*/*/*"):
            client.subscribe(pattern)
    for client in (owner, same_user, other_user, root):
        client.barrier()
    other_user.publish(key, b"psst")
    other_user.barrier()
    assert owner.barrier() == [message(key, b"psst")]
    assert same_user.barrier() == other_user.barrier() == root.barrier() == []


def test_any_process_of_the_user_can_share_a_channel(bus: Daemon) -> None:
    key = b"!/cred//%d//all" % FIRST.uid
    clients = [bus.client(FIRST) for _ in range(3)]
    for client in clients:
        client.subscribe(key)
        client.barrier()
    bus_speaker = bus.client(SECOND)
    bus_speaker.publish(key, b"x")
    bus_speaker.barrier()
    assert [client.barrier() for client in clients] == [[message(key, b"x")]] * 3


@pytest.mark.parametrize("gid", [FIRST.gid, *FIRST.groups])
def test_a_group_s_channel_is_for_its_members_supplementary_ones_too(bus: Daemon, gid: int) -> None:
    key = b"!/cred/%d///board" % gid
    member, other = bus.client(FIRST), bus.client(SECOND)
    member.subscribe(key)
    assert member.barrier() == []
    other.subscribe(key)
    if gid in SECOND.groups:
        assert other.barrier() == []
    else:
        (reported,) = other.receive_to_end()
        assert error_code(reported) == "EACCES"
    member.publish(key, b"to the board")
    assert member.barrier() == [message(key, b"to the board")]


@pytest.mark.parametrize(
    "pattern",
    [
        b"!/cred//61002//x",
        b"!/cred/61002///x",
        b"!/cred/61001/61002//x",
        b"!/cred///1/x",
        b"!/cred/0/0/0/",
        b"!/cred/*///x",
        b"!/cred//*//x",
        b"!/cred///*/x",
        b"!/cred//6100*//x",
        b"!/cred/",
        b"!/cred/61001/61001",
        b"!/cred//61001/",
        b"!/cred//-1//x",
        b"!/cred//4295028297//x",
    ],
)
def test_a_foreign_private_key_is_rejected_logged_and_ends_the_connection(bus: Daemon, pattern: bytes) -> None:
    client = bus.client(FIRST)
    client.subscribe(pattern)
    (reported,) = client.receive_to_end()
    assert error_code(reported) == "EACCES"
    bus.stop()
    (line,) = [line for line in bus.stderr.splitlines() if "subscription to a private key" in line]
    assert f"uid={FIRST.uid}" in line
    assert f"key={pattern.decode()}" in line


def test_a_rest_may_be_a_pattern(bus: Daemon) -> None:
    client, other_user = bus.client(FIRST), bus.client(SECOND)
    head = b"!/cred//%d//" % FIRST.uid
    client.subscribe(head + b"a/*/c/")
    client.barrier()
    for rest in (b"a/b/c/", b"a/b/c/d", b"a/b/c", b"b"):
        other_user.publish(head + rest)
    other_user.barrier()
    assert client.barrier() == [message(head + b"a/b/c/"), message(head + b"a/b/c/d")]


def test_a_key_cut_short_cannot_be_published_to(bus: Daemon) -> None:
    client = bus.client(FIRST)
    for key in (b"!/cred/", b"!/cred/1/2/3", b"!/cred"):
        client.publish(key)
    assert [error_code(packet) for packet in client.barrier()] == ["EPERM"] * 3


def test_behind_a_server_secrets_begin_with_its_prefix(daemon: StartDaemon) -> None:
    bus = daemon(config='credential_prefix = "!/cred/100/1000/1111"\n')
    client, rude = bus.client(), bus.client(FIRST)
    head = client.ask(controls.WHOAMI)
    assert head == b"!/cred/100/1000/1111/!/cred/%d/%d/%d" % (os.getgid(), os.getuid(), os.getpid())
    key = b"!/cred/100/1000/1111/!/cred//%d//x" % os.getuid()
    for pattern in (head + b"/y", key):
        client.subscribe(pattern)
    client.publish(key, b"1")
    client.publish(head + b"/y", b"2")
    assert client.barrier() == [message(key, b"1"), message(head + b"/y", b"2")]
    for pattern in (b"!/cred/100/1000/1111/*", b"!/cred/100/1000/1111/"):
        leak = bus.client(SECOND)
        leak.subscribe(pattern)
        (reported,) = leak.receive_to_end()
        assert error_code(reported) == "EACCES"
    rude.subscribe(b"!/cred//%d//x" % FIRST.uid)
    (reported,) = rude.receive_to_end()
    assert error_code(reported) == "EACCES"


def test_with_dots_as_separator_there_are_no_private_keys_and_slashes_are_ordinary(daemon: StartDaemon) -> None:
    bus = daemon(config='separator = "."\n')
    first, second = bus.client(FIRST), bus.client(SECOND)
    first.subscribe(b"a.*.c.")
    first.subscribe(b"!/cred/0/0/0/x")
    assert first.barrier() == []
    for key in (b"a.b.c.", b"a.b/x.c.d", b"a/b/c/", b"!/cred/0/0/0/x"):
        second.publish(key)
    assert second.barrier() == []
    assert first.barrier() == [message(b"a.b.c."), message(b"a.b/x.c.d"), message(b"!/cred/0/0/0/x")]
    assert first.ask(controls.WHOAMI).startswith(b"!/cred/%d/%d/" % (FIRST.gid, FIRST.uid))


def be_process(path: str, *, heir_says: int | None) -> Callable[[], int]:
    """Return a function that subscribes to a key of its process, publishes, and leaves its socket to a child, if *heir_says* is a pipe.

    It returns the pid. The child writes to the pipe all that it receives, until the bus closes the connection.
    """

    def run() -> int:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(path)
        client = RawClient(sock)
        client.subscribe(b"!/cred///%d/x" % os.getpid())
        client.barrier()
        if heir_says is None:
            for number in range(200):
                client.publish(b"farewell", b"%d" % number)
        elif not os.fork():
            try:
                os.write(heir_says, b"\n".join(client.receive_to_end()))
            finally:
                os._exit(0)
        return os.getpid()

    return run


def test_a_private_key_of_a_process_ends_with_it_even_if_the_socket_is_inherited(bus: Daemon) -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as pipe:
        try:
            pid = FIRST.call(be_process(bus.path, heir_says=writer))
        finally:
            os.close(writer)
        said = pipe.read()
    assert said == b"CMSG !/bus/error\0EACCES process %d has ended, so the subscription !/cred///%d/x has ended" % (pid, pid)
    asker = bus.client()
    stats = json.loads(asker.ask(controls.STATS))
    assert stats["counters"]["connections"] == 1
    assert stats["counters"]["subscriptions"] == 0
    bus.stop()
    (line,) = [line for line in bus.stderr.splitlines() if "private key names has ended" in line]
    assert f"uid={FIRST.uid}" in line


def test_messages_sent_before_the_end_of_a_process_are_delivered(bus: Daemon) -> None:
    listener = bus.client()
    listener.subscribe(b"farewell")
    listener.barrier()
    FIRST.call(be_process(bus.path, heir_says=None))
    assert [listener.receive() for _ in range(200)] == [message(b"farewell", b"%d" % number) for number in range(200)]
    assert listener.barrier() == []
    bus.stop()
    assert "private key names has ended" not in bus.stderr


def test_a_secret_of_a_process_that_has_ended_is_refused(bus: Daemon) -> None:
    # The process that connected this one is gone; the test holds its socket.
    heir = bus.client(FIRST)
    pid = heir.ask(controls.WHOAMI).rsplit(b"/", 1)[1]
    heir.subscribe(b"!/cred//%d//x" % FIRST.uid)
    assert heir.barrier() == []
    heir.subscribe(b"!/cred///%b/x" % pid)
    (reported,) = heir.receive_to_end()
    assert error_code(reported) == "EACCES"
