"""Hostile services, callers and third parties of streams in C, with ``clients/c/sbus.h``, on a real bus."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.protocol.envelope import Envelope, parse_envelope
from tests.support.c_programs import Actor
from tests.support.daemons import Daemon, StartDaemon
from tests.support.service_processes import running_service
from tests.support.users import User
from tests.support.wire import RawClient

MILLISECONDS = "30000"
MOST_STREAMS = 64
MOST_GRANTED = 1024


SHARES_BUS = True


def _serving(c_program: Path, bus: Daemon) -> Actor:
    actor = Actor(c_program, bus.path)
    actor.ok("serve-one", "rows")
    actor.barrier()
    actor.barrier()
    return actor


@pytest.fixture
def service(c_program: Path, bus: Daemon) -> Iterator[Actor]:
    """A service of the command ``rows``, whose test reads the requests."""
    actor = _serving(c_program, bus)
    yield actor
    actor.close()


def _client(bus: Daemon, user: User | None = None) -> tuple[RawClient, str]:
    """Return a client that receives at its own address, and this address."""
    client = bus.client(user)
    address = client.ask(b"!/conn/whoami").decode()
    client.subscribe(address.encode())
    client.barrier()
    return client, address


def _received(client: RawClient) -> Envelope:
    return parse_envelope(client.receive().partition(b"\0")[2])


def _part(request: Envelope, number: int, more: int = 1, **members: str) -> Envelope:
    return Envelope("rows", request.uid, b"p%d" % number, part=number, more=more, **members)  # type: ignore[arg-type]


# Hostile services, whose user the caller did not choose

_WRONG = {
    "a part is missing": [(1, 1), (3, 1)],
    "the first part is missing": [(2, 1)],
    "a part comes twice": [(1, 1), (1, 1)],
    "a part has no number": [(1, 1), (0, 1)],
    "a whole response follows a part": [(1, 1), (0, 0)],
    "the end has the wrong number": [(1, 1), (3, 0)],
    "the number is huge": [(1, 1), (1 << 53, 1)],
}


@pytest.mark.parametrize("name", _WRONG)
def test_wrong_parts_end_the_stream(bus: Daemon, caller: Actor, second_user: User, name: str) -> None:
    """Those before them are valid. The service is asked to stop, and the connection can make calls."""
    parts = _WRONG[name]
    hostile, _ = _client(bus, second_user)
    hostile.subscribe(b"rpc/rows")
    hostile.barrier()
    caller.start("stream", "rows", "x", "2")
    request = _received(hostile)
    assert request.window == 1
    hostile.publish(request.reply_to.encode(), _part(request, *parts[0]).encode())
    assert caller.line() == "ok"
    if parts[0] == (1, 1):
        assert caller.do("part", MILLISECONDS).split("\t")[2] == b"p1".hex()
        for each in parts[1:]:
            hostile.publish(request.reply_to.encode(), _part(request, *each).encode())
    line = caller.do("part", MILLISECONDS)
    assert line.startswith(f"error\t{errno.EBADMSG}\t{bus.path}: call failed: part ")
    while not (told := _received(hostile)).cancel:
        assert (told.more, told.uid) == (1, request.uid)
    assert (told.uid, told.reply_to) == (request.uid, "")
    assert caller.do("part", "0").startswith(f"error\t{errno.EINVAL}\t")


def test_malformed_parts_are_not_responses(bus: Daemon, caller: Actor, second_user: User) -> None:
    """As for any call: they are discarded, and the stream goes on."""
    hostile, _ = _client(bus, second_user)
    hostile.subscribe(b"rpc/rows")
    hostile.barrier()
    caller.start("stream", "rows", "x", "16")
    request = _received(hostile)
    ret = request.reply_to.encode()
    head = b'{"ver":1,"cmd":"rows","uid":"%b"' % request.uid.encode()
    for wrong in (
        b',"seq":-1,"more":1}',
        b',"seq":1.5,"more":1}',
        b',"seq":1,"more":2}',
        b',"seq":"1","more":1}',
        b',"seq":9007199254740993,"more":1}',
        b',"seq":1,"more":1,"win":-1}',
        b',"seq":1,"more":1,"ctx":"%b' % (b"x" * 190_000),
        b"",
    ):
        hostile.publish(ret, head + wrong)
    hostile.publish(ret, Envelope("rows", "other", b"x", part=1, more=1).encode())
    hostile.publish(ret, head + b',"seq":1,"more":1,"dat":"cDE=","ctx":"%b"}' % (b"x" * 190_000))
    assert caller.line() == "ok"
    # While the caller does not know its callees, it keeps two responses. So the part is sent again until it is there.
    while (line := caller.do("part", "0")).startswith(f"error\t{errno.ETIMEDOUT}\t"):
        hostile.publish(ret, head + b',"seq":1,"more":1,"dat":"cDE="}')
        hostile.barrier()
    assert line.split("\t")[2] == b"p1".hex()
    caller.ok("cancel")


def test_another_user_adds_no_parts_and_does_not_end_the_stream(bus: Daemon, caller: Actor, second_user: User) -> None:
    """It has read the request as a listener, and sends all that the service could send, before and after the first part."""
    listener = bus.client(second_user)
    listener.subscribe(b"")
    listener.barrier()
    with running_service(bus.path, rows=lambda _request: (f"{number}" for number in range(300))):
        caller.start("stream", "rows", "x", "16")
        request = parse_envelope(listener.receive().partition(b"\0")[2])

        def forge() -> None:
            for number in range(20):
                for more in (0, 1):
                    for error in ("", "forged"):
                        listener.publish(request.reply_to.encode(), _part(request, number, more, error=error).encode())
            listener.barrier()

        forge()
        assert caller.line() == "ok"
        assert caller.do("part", MILLISECONDS).split("\t")[2] == b"0".hex()
        forge()
        for number in range(1, 300):
            assert caller.do("part", MILLISECONDS).split("\t")[2] == f"{number}".encode().hex()
        assert caller.do("part", MILLISECONDS) == "end\t0\t"


# Hostile callers of a service in C


def _grant(uid: str, window: int | str) -> bytes:
    return b'{"ver":1,"uid":"%b","cmd":"rows","exp":1,"now":1,"more":1,"win":%b}' % (uid.encode(), str(window).encode())


def _open(service: Actor, client: RawClient, address: str, uid: str = "u", window: int = 1) -> None:
    """Send a request, which the service reads."""
    client.publish(b"rpc/rows", Envelope("rows", uid, b"", f"{address}ret/x", window=window).encode())
    assert service.do("read", "rows", "0").startswith("request\t")


def test_grants(bus: Daemon, service: Actor, second_user: User) -> None:
    client, address = _client(bus)
    _open(service, client, address)
    service.ok("send-part", "0", "1")
    other, _ = _client(bus, second_user)
    for sender, payload, found, accepted in (
        (client, _grant("u", -1), "discarded", 0),
        (client, _grant("u", 1.5), "discarded", 0),  # type: ignore[arg-type]
        (client, _grant("u", (1 << 53) + 1), "discarded", 0),
        (client, _grant("u", '"5"'), "discarded", 0),
        (client, _grant("other", 5), "message", 0),
        (client, _grant("u", 0), "message", 0),
        (other, _grant("u", 5), "message", 0),
        (client, _grant("u", 3), "message", 2),
        (client, _grant("u", 2), "message", 2),
        (client, _grant("u", 1 << 53), "message", MOST_GRANTED),
    ):
        sender.publish(b"rpc/rows", payload)
        assert service.do("read", "rows", "1").split("\t")[0] == found, payload
        assert service.do("accepted", "0") == str(accepted), payload
    service.ok("send-end", "0")
    client.publish(b"rpc/rows", _grant("u", 9))
    assert service.do("read", "rows", "1").startswith("message\t")
    assert service.do("accepted", "0") == "0"


def test_a_huge_first_window_and_a_grant_without_a_stream(bus: Daemon, service: Actor) -> None:
    client, address = _client(bus)
    _open(service, client, address, "u1", 1 << 53)
    assert service.do("accepted", "0") == str(MOST_GRANTED)
    service.ok("send-end", "0")
    _open(service, client, address, "u2", 0)
    client.publish(b"rpc/rows", _grant("u2", 5))
    assert service.do("read", "rows", "1").startswith("message\t")
    assert service.do("accepted", "0") == "0"
    service.ok("respond", "0", "whole")
    client.publish(b"rpc/rows", b'{"ver":1,"uid":"u3","cmd":"rows","win":-1,"ret":"%bret/x"}' % address.encode())
    assert service.do("read", "rows", "0").startswith(f"discarded\t{errno.EBADMSG}\t")
    client.publish(b"rpc/rows", b'{"ver":1,"uid":"u4","cmd":"rows","win":5}')
    assert service.do("read", "rows", "0").startswith("request\t")
    assert service.do("send-part", "0", "1").startswith(f"error\t{errno.EOPNOTSUPP}\t")


def test_one_user_cannot_use_up_the_streams_of_another(bus: Daemon, service: Actor, first_user: User, second_user: User) -> None:
    """Nor by several connections."""
    callers = [_client(bus, second_user) for _ in range(2)]
    for number in range(MOST_STREAMS):
        _open(service, *callers[number % 2], f"u{number}")
        service.ok("send-part", "0", "1")
    _open(service, *callers[0], "last")
    assert service.do("send-part", "0", "1").startswith(f"error\t{errno.EBUSY}\t")
    error = ""
    while not error:
        error = _received(callers[0][0]).error
    assert error == f"busy: {MOST_STREAMS} streams of user {second_user.uid} are open"
    client, address = _client(bus, first_user)
    _open(service, client, address)
    service.ok("send-part", "0", "1")
    assert _received(client).part == 1


def test_lost_grants_end_the_streams_with_an_error(daemon: StartDaemon, c_program: Path) -> None:
    """Otherwise the service and the caller would wait for each other. A request without parts is still responded to."""
    bus = daemon(config="[limits]\nqueue_packets = 10\n")
    service = _serving(c_program, bus)
    service.ok("subscribe", "k")
    service.barrier()
    client, address = _client(bus)
    client.publish(b"rpc/rows", Envelope("rows", "whole", b"", f"{address}ret/x", window=1).encode())
    assert service.do("read", "rows", "1").startswith("request\t")
    _open(service, client, address, "stream")
    service.ok("send-part", "0", "1")
    assert _received(client).part == 1
    flood = bus.client()
    for number in range(1000):
        flood.publish(b"k", bytes(5000))
        if number % 100 == 0:
            flood.barrier()
    client.publish(b"rpc/rows", _grant("stream", 5))
    client.barrier()
    while service.next().kind != "lost":
        pass
    assert service.do("cancelled", "0") == "1"
    assert service.do("accepted", "0") == "0"
    assert service.do("send-part", "0", "1").startswith(f"error\t{errno.EBADMSG}\t")
    assert _received(client).error == "the bus discarded messages to the service"
    service.ok("respond", "1", "done")
    assert _received(client).data == b"done"
    service.close()
