"""What a client of a real daemon can do, as two real users."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import cast

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon
from tests.support.users import FIRST, SECOND, User
from tests.support.wire import RawClient, message

pytestmark = pytest.mark.usefixtures("needs_root")

Json = dict[str, object]


def ask_json(client: RawClient, name: bytes, payload: bytes | None = None) -> Json:
    """Return an answer that is JSON."""
    return cast(Json, json.loads(client.ask(name, payload)))


def listed(answer: Json, name: str) -> list[Json]:
    """Return a list of objects in an answer."""
    return cast(list[Json], answer[name])


def asker(path: str) -> Callable[[], tuple[bytes, bytes]]:
    """Return a function that asks the bus at *path* who it is, and says who it is by itself."""

    def ask() -> tuple[bytes, bytes]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(path)
            answer = RawClient(sock).ask(controls.WHOAMI)
        return answer, b"!/cred/%d/%d/%d" % (os.getgid(), os.getuid(), os.getpid())

    return ask


@pytest.mark.parametrize("user", [FIRST, SECOND])
def test_whoami_names_the_process(bus: Daemon, user: User) -> None:
    answer, own = user.call(asker(bus.path))
    assert answer == own
    assert answer.startswith(b"!/cred/%d/%d/" % (user.gid, user.uid))


def test_a_wildcard_matches_messages_of_another_user(bus: Daemon) -> None:
    speaker = bus.client(SECOND)
    patterns = [b"a/*/c", b"a/", b"ab*/c", b"", b"*", b"a/b/c"]
    listeners = {}
    for pattern in patterns:
        listeners[pattern] = bus.client(FIRST)
        listeners[pattern].subscribe(pattern)
        listeners[pattern].barrier()
    keys = [b"a/b/c", b"a/b/c/", b"a/", b"abx/c", b"ab/c", b"x", b"", b"a/*/c"]
    for key in keys:
        speaker.publish(key, b"of " + key)
    speaker.barrier()
    delivered = {pattern: [packet[4:].partition(b"\0")[0] for packet in client.barrier()] for pattern, client in listeners.items()}
    assert delivered == {
        b"a/*/c": [b"a/b/c", b"a/*/c"],
        b"a/": [b"a/b/c", b"a/b/c/", b"a/", b"a/*/c"],
        b"ab*/c": [b"abx/c", b"ab/c"],
        b"": keys,
        b"*": [b"x", b""],
        b"a/b/c": [b"a/b/c"],
    }


def test_a_message_is_delivered_once_and_unchanged(bus: Daemon) -> None:
    speaker, listener = bus.client(FIRST), bus.client(SECOND)
    for pattern in (b"k/", b"k/*", b"k/x", b"k/x", b""):
        listener.subscribe(pattern)
    listener.barrier()
    payloads = [b"", b"\0", b"\0\0MSG k/x\0", bytes(range(256)), os.urandom(200_000)]
    for payload in payloads:
        speaker.publish(b"k/x", payload)
    speaker.barrier()
    assert listener.barrier() == [message(b"k/x", payload) for payload in payloads]


def test_any_bytes_but_nul_make_a_key(bus: Daemon) -> None:
    speaker, listener = bus.client(FIRST), bus.client(SECOND)
    key = bytes(number for number in range(1, 256) if number != 0x2A)
    listener.subscribe(key)
    listener.barrier()
    speaker.publish(key, b"x")
    speaker.publish(key[:-1], b"y")
    speaker.barrier()
    assert listener.barrier() == [message(key, b"x")]


def test_two_subscriptions_need_two_unsubscriptions(bus: Daemon) -> None:
    client = bus.client(FIRST)
    client.subscribe(b"a")
    client.subscribe(b"a\0ignored")
    for number, expected in enumerate([1, 1, 0, 0]):
        if number:
            client.unsubscribe(b"a")
        client.publish(b"a", b"%d" % number)
        assert client.barrier() == [message(b"a", b"%d" % number)] * expected


def test_an_unknown_unsubscription_is_ignored_and_counted(bus: Daemon) -> None:
    client, owner = bus.client(FIRST), bus.client()
    client.subscribe(b"a")
    client.unsubscribe(b"b")
    client.publish(b"a")
    assert client.barrier() == [message(b"a")]
    control = cast(Json, ask_json(owner, controls.STATS)["control"])
    assert control["unknown_unsubscriptions"] == 1


def test_messages_and_controls_keep_their_order(bus: Daemon) -> None:
    client = bus.client(FIRST)
    client.subscribe(b"n")
    expected = []
    for number in range(500):
        client.publish(b"n", b"%d" % number)
        expected.append(message(b"n", b"%d" % number))
        if number % 7 == 0:
            client.control(controls.PING, b"%d" % number)
            expected.append(b"CMSG !/bus/ping\0%d" % number)
        if number % 50 == 49:
            received = [client.receive() for _ in expected]
            assert received == expected
            expected = []
    assert client.barrier() == []


def test_echo_can_be_switched_off_and_on(bus: Daemon) -> None:
    client, other = bus.client(FIRST), bus.client(SECOND)
    for each in (client, other):
        each.subscribe(b"a")
        each.barrier()
    for number, control in enumerate([None, controls.ECHO_OFF, controls.ECHO_ON]):
        if control:
            client.control(control)
        client.publish(b"a", b"%d" % number)
    assert client.barrier() == [message(b"a", b"0"), message(b"a", b"2")]
    assert other.barrier() == [message(b"a", b"%d" % number) for number in range(3)]


def test_ping_is_a_barrier_for_earlier_packets(bus: Daemon) -> None:
    speaker, listener = bus.client(FIRST), bus.client(SECOND)
    listener.subscribe(b"a")
    listener.barrier()
    for number in range(200):
        speaker.publish(b"a", b"%d" % number)
    speaker.barrier()
    listener.socket.setblocking(False)
    # All is in the listener's socket now: nothing needs to be waited for.
    assert [listener.receive() for _ in range(200)] == [message(b"a", b"%d" % number) for number in range(200)]
    with pytest.raises(BlockingIOError):
        listener.receive()


def test_features_are_a_name_a_line(bus: Daemon) -> None:
    features = bus.client(FIRST).ask(controls.FEATURES).decode().split("\n")
    assert {"connections", "echo", "errors", "lost", "ping", "secret", "stats", "trace", "whoami"} <= set(features)


def test_statistics_are_the_bus_s_for_its_owner_and_one_s_own_for_others(bus: Daemon) -> None:
    owner, client = bus.client(), bus.client(FIRST)
    client.subscribe(b"a")
    client.publish(b"a")
    client.barrier()
    whole, own = ask_json(owner, controls.STATS), ask_json(client, controls.STATS)
    counters = cast(dict[str, int], whole["counters"])
    assert whole["scope"] == "bus"
    # The fixture's probe of readiness was a third connection, which has gone.
    assert (counters["connections"], counters["messages"], counters["subscriptions"]) == (2, 1, 1)
    parts = ("delivered_packets", "queued_packets", "lost_packets", "replaced_packets", "abandoned_packets")
    assert counters["deliveries"] == sum(counters[name] for name in parts)
    assert (own["scope"], cast(Json, own["connection"])["uid"]) == ("connection", FIRST.uid)
    assert "counters" not in own


def test_more_than_200_connections_are_listed_in_pages_to_permitted_users(bus: Daemon) -> None:
    owner = bus.client()
    mine = [bus.client(FIRST) for _ in range(3)]
    others = [bus.client() for _ in range(210)]
    others[-1].barrier()
    seen: list[Json] = []
    after: object = ""
    while after is not None:
        page = ask_json(owner, controls.CONNECTIONS, str(after).encode())
        assert len(listed(page, "connections")) <= 200
        assert page["hidden"] == 0
        seen += listed(page, "connections")
        after = page["next"]
    ids = [cast(int, entry["id"]) for entry in seen]
    assert len(ids) == 214
    assert ids == sorted(set(ids))
    page = ask_json(mine[0], controls.CONNECTIONS)
    assert [(entry["uid"], entry["gid"]) for entry in listed(page, "connections")] == [(FIRST.uid, FIRST.gid)] * 3
    assert (page["hidden"], page["next"]) == (211, None)


def test_trace_lists_the_recipients_of_a_message(bus: Daemon) -> None:
    owner, first, second = bus.client(), bus.client(FIRST), bus.client(SECOND)
    first.subscribe(b"a/*")
    first.barrier()
    answer = ask_json(owner, controls.TRACE, b"a/x")
    assert [(entry["uid"], entry["patterns"]) for entry in listed(answer, "recipients")] == [(FIRST.uid, ["a/*"])]
    assert {entry["uid"] for entry in listed(answer, "others")} == {0, SECOND.uid}
    hidden = ask_json(second, controls.TRACE, b"a/x")
    assert (hidden["recipients"], hidden["hidden"]) == ([], 2)
    assert first.barrier() == []


def test_all_subscribers_receive_the_same_order(bus: Daemon) -> None:
    clients = [bus.client(user) for user in (FIRST, SECOND) * 4]
    for client in clients:
        client.subscribe(b"room/")
        client.barrier()
    delivered: list[list[bytes]] = [[] for _ in clients]
    for number in range(50):
        for index, client in enumerate(clients):
            client.publish(b"room/%d" % index, b"%d" % number)
        # After two rounds of barriers, what anybody said in this round is with everybody.
        for _ in range(2):
            for each, client in zip(delivered, clients, strict=True):
                each.extend(client.barrier())
    assert delivered == [delivered[0]] * len(clients)
    assert sorted(delivered[0]) == sorted(message(b"room/%d" % index, b"%d" % number) for index in range(8) for number in range(50))
