"""Cancelled calls between C, with ``clients/c/sbus.h``, and Python on a real bus."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbus import Bus, CallTimeout, Request
from sbus.protocol.envelope import Envelope, parse_envelope
from tests.support.c_programs import Actor, LineProgram
from tests.support.daemons import Daemon, StartDaemon
from tests.support.service_processes import running_service
from tests.support.users import User
from tests.support.wire import RawClient, error_code

MILLISECONDS = "30000"
WAIT_SECONDS = 30.0
MOST_OPEN = 1024
"""Requests of one user that wait for their responses, in open_request.h."""
MOST_LATE = 1024
"""Packets that are read after the timeout, in pending_call.h."""


SHARES_BUS = True


def _serving(c_program: Path, path: str, options: str = "-") -> Actor:
    """Return a service of the command ``work`` that the bus has noted; the test reads its requests."""
    actor = Actor(c_program, path, options)
    actor.ok("serve-one", "work")
    actor.barrier()  # reads the address, and subscribes
    actor.barrier()
    return actor


@pytest.fixture
def service(c_program: Path, bus: Daemon) -> Iterator[Actor]:
    """A service of the command ``work``."""
    actor = _serving(c_program, bus.path)
    yield actor
    actor.close()


@contextmanager
def _cancellable(path: str) -> Iterator[int]:
    """Run a service in Python; what is yielded can be read from for a byte of each cancelled request."""
    reader, writer = os.pipe()

    def work(request: Request) -> bytes:
        os.write(writer, b"r")
        if request.cancelled.wait(WAIT_SECONDS):
            os.write(writer, b"c")
        return b""

    with running_service(path, work=work, echo=lambda request: request.data):
        yield reader
    os.close(reader)
    os.close(writer)


def _client(bus: Daemon, user: User | None = None) -> tuple[RawClient, str]:
    """Return a client that receives responses at its own address, and this address."""
    client = bus.client(user)
    address = client.ask(b"!/conn/whoami").decode()
    client.subscribe(f"{address}ret/".encode())
    client.barrier()
    return client, address


def _request(client: RawClient, address: str, uid: str = "u1") -> Envelope:
    """Send a request for ``work``."""
    request = Envelope("work", uid, b"data", f"{address}ret/x")
    client.publish(b"rpc/work", request.encode())
    return request


def _cancel(uid: str = "u1", command: str = "work", reply_to: str = "") -> bytes:
    return Envelope(command, uid, b"", reply_to, expires_seconds=1, sent_at=1, cancel=1).encode()


# Callers in C


def test_a_call_without_a_response_in_time_is_cancelled(bus: Daemon, caller: Actor) -> None:
    with _cancellable(bus.path) as events:
        timeout = 300
        while not select.select([events], [], [], 0)[0]:  # on a busy machine it gives up before the service has begun
            assert caller.do("call", "work", "1", str(timeout)).startswith(f"error\t{errno.ETIMEDOUT}\t")
            timeout *= 2
        assert os.read(events, 1) + os.read(events, 1) == b"rc"
        assert caller.do("call", "echo", "9", MILLISECONDS).startswith("reply\t")


def test_a_program_cancels_a_call(bus: Daemon, caller: Actor) -> None:
    """It goes on until then, whatever the program does."""
    with _cancellable(bus.path) as events:
        caller.ok("start", "work", "", MILLISECONDS)
        assert os.read(events, 1) == b"r"
        for timeout in ("0", "1"):
            assert caller.do("wait", timeout).startswith(f"error\t{errno.ETIMEDOUT}\t")
        assert caller.do("start", "echo", "", MILLISECONDS).startswith(f"error\t{errno.EBUSY}\t")
        assert caller.do("part", "0").startswith(f"error\t{errno.EINVAL}\t")
        caller.ok("cancel")
        assert os.read(events, 1) == b"c"
        caller.ok("cancel")
        assert caller.do("wait", "0").startswith(f"error\t{errno.EINVAL}\t")
        assert caller.do("call", "echo", "9", MILLISECONDS).startswith("reply\t")


def test_a_response_can_be_read_in_an_event_loop(caller: Actor, service: Actor) -> None:
    caller.ok("start", "work", "", MILLISECONDS)
    assert service.do("read", "work", "0").startswith("request\t")
    assert caller.do("wait", "0").startswith(f"error\t{errno.ETIMEDOUT}\t")
    service.ok("respond", "0", "done")
    service.barrier()
    assert caller.do("wait", "-1") == f"reply\t{service.process.pid}\t{b'done'.hex()}"


def test_closing_the_connection_cancels_the_call(bus: Daemon, c_program: Path) -> None:
    with _cancellable(bus.path) as events:
        caller = Actor(c_program, bus.path)
        caller.ok("start", "work", "", MILLISECONDS)
        assert os.read(events, 1) == b"r"
        caller.ok("close")
        assert os.read(events, 1) == b"c"
        caller.close()


def test_the_end_of_the_connection_ends_the_call(bus: Daemon, caller: Actor, service: Actor) -> None:
    caller.ok("start", "work", "", MILLISECONDS)
    assert service.do("read", "work", "0").startswith("request\t")
    bus.stop()
    assert caller.do("wait", "-1").startswith(f"error\t{errno.ECONNRESET}\t")
    caller.ok("cancel")


# Services in C


def test_a_service_notices_that_a_python_caller_gave_up(bus: Daemon, service: Actor) -> None:
    """It sends no response then."""
    service.start("read", "work", "0")
    assert service.process.stdout is not None
    with Bus.connect(bus.path) as caller:
        timeout = 0.3
        while not select.select([service.process.stdout], [], [], 0)[0]:  # on a busy machine it gives up before it has sent the request
            with pytest.raises(CallTimeout):
                caller.call("work", "x", timeout=timeout)
            timeout *= 2
    assert service.line().startswith("request\t")
    service.start("await-cancel", "work", "0")
    assert service.line() == "cancelled"
    service.ok("respond", "0", "late")
    assert service.do("respond", "0", "twice").startswith(f"error\t{errno.EALREADY}\t")
    assert service.do("cancelled", "0") == "0"


def test_a_service_notices_that_its_caller_has_gone(bus: Daemon, service: Actor) -> None:
    """While it waits, and if that was before it asked."""
    client, address = _client(bus)
    _request(client, address)
    assert service.do("read", "work", "0").startswith("request\t")
    service.start("await-cancel", "work", "0")
    client.close()
    assert service.line() == "cancelled"
    service.ok("respond", "0", "late")
    service.barrier()  # the empty list can follow the event
    client, address = _client(bus)
    request = _request(client, address)
    assert service.do("read", "work", "0").startswith("request\t")
    client.close()
    asking = bus.client()
    while json.loads(asking.ask(b"!/bus/members", request.reply_to.encode()))["members"]:
        pass
    assert service.do("await-cancel", "work", "0") == "cancelled"
    service.ok("respond-error", "0", "late")
    service.barrier()


def test_the_watch_of_a_caller_ends_with_its_last_request(bus: Daemon, service: Actor) -> None:
    """Each question is one subscription, also for two requests of one caller."""
    client, address = _client(bus)
    event = f'"!/event/disconnect/{address.split("/")[2]}"'.encode()
    for number in ("0", "1"):
        _request(client, address, f"u{number}")
        assert service.do("read", "work", number).startswith("request\t")
        assert service.do("cancelled", number) == "0"
        assert service.do("cancelled", number) == "0"
    assert service.barrier() == []
    asking = bus.client()
    for number, members in (("0", 1), ("1", 0)):
        assert service.do("cancelled", number) == "0"
        service.ok("respond", number, "done")
        service.barrier()
        assert asking.ask(b"!/bus/subscriptions").count(event) == members
    assert len(client.barrier()) == 2


def test_a_list_that_the_program_requests_is_not_about_a_caller(bus: Daemon, service: Actor) -> None:
    client, address = _client(bus)
    _request(client, address)
    assert service.do("read", "work", "0").startswith("request\t")
    assert service.do("cancelled", "0") == "0"
    service.ok("control", "!/bus/members", "no/subscriber")
    assert [packet.payload for packet in service.barrier()][-1] == b'{"members":[],"next":null}'
    assert service.do("cancelled", "0") == "0"
    service.ok("respond", "0", "done")
    assert parse_envelope(client.receive().partition(b"\0")[2]).data == b"done"


def test_a_service_asks_again_after_a_loss(daemon: StartDaemon, c_program: Path) -> None:
    """The event of the disconnection is among the lost packets."""
    bus = daemon(config="[limits]\nqueue_packets = 10\n")
    service = _serving(c_program, bus.path)
    service.ok("subscribe", "k")
    service.barrier()
    client, address = _client(bus)
    _request(client, address)
    assert service.do("read", "work", "0").startswith("request\t")
    assert service.do("cancelled", "0") == "0"
    service.barrier()
    flood = bus.client()
    for number in range(1000):
        flood.publish(b"k", bytes(5000))
        if number % 100 == 0:
            flood.barrier()
    client.close()
    flood.barrier()
    while json.loads(flood.ask(b"!/bus/members", f"{address}ret/x".encode()))["members"]:
        pass
    while service.next().kind != "lost":
        pass
    assert service.do("await-cancel", "work", "0") == "cancelled"
    service.close()


# Hostile peers


def test_only_the_caller_can_cancel(bus: Daemon, service: Actor, second_user: User) -> None:
    """Another user, which has read the request as a listener, sends all that the caller and the bus could send."""
    listener = bus.client(second_user)
    listener.subscribe(b"rpc/")
    listener.barrier()
    client, address = _client(bus)
    _request(client, address)
    assert service.do("read", "work", "0").startswith("request\t")
    request = parse_envelope(listener.receive().partition(b"\0")[2])
    own = json.loads(listener.ask(b"!/bus/members", b"rpc/work"))["members"][0]["id"]
    for key in (b"rpc/work", f"!/conn/{own}/rpc/work".encode()):
        listener.publish(key, _cancel(request.uid))
        assert service.do("read", "work", "1").startswith("message\t")
    listener.publish(b"rpc/work", _cancel(request.uid, reply_to=request.reply_to))
    assert service.do("read", "work", "1").startswith(f"discarded\t{errno.EACCES}\t")
    number = address.split("/")[2].encode()
    for key, payload in [(b"!/event/disconnect/" + number, b"x"), (b"!/bus/ping", b"sbus.h/" + number), (b"!/bus/members", b"{}")]:
        listener.publish(key, payload)
        while not (packet := listener.receive()).startswith(b"CMSG !/bus/error\0"):
            pass
        assert error_code(packet) == "EPERM"
    assert service.do("cancelled", "0") == "0"
    service.barrier()
    assert service.do("cancelled", "0") == "0"
    service.ok("respond", "0", "done")
    assert parse_envelope(client.receive().partition(b"\0")[2]).data == b"done"


def test_cancellations_of_other_requests_have_no_effect(bus: Daemon, service: Actor) -> None:
    """They do not use up a ``uid``, and get no response."""
    client, address = _client(bus)
    client.publish(b"rpc/work", _cancel("u1"))
    assert service.do("read", "work", "0").startswith("message\t")
    _request(client, address)
    assert service.do("read", "work", "0").startswith("request\t")
    client.publish(b"rpc/work", _cancel("u2"))
    assert service.do("read", "work", "1").startswith("message\t")
    client.publish(b"rpc/work", _cancel(command="other"))
    assert service.do("read", "work", "1").startswith(f"discarded\t{errno.EBADMSG}\t")
    client.publish(b"rpc/work", _cancel().replace(b'"cancel":1', b'"cancel":2'))
    assert service.do("read", "work", "1").startswith(f"discarded\t{errno.EBADMSG}\t")
    assert service.do("cancelled", "0") == "0"
    client.publish(b"rpc/work", _cancel())
    assert service.do("read", "work", "1").startswith("message\t")
    assert service.do("cancelled", "0") == "1"
    client.publish(b"rpc/work", _cancel())
    assert service.do("read", "work", "1").startswith("message\t")
    service.ok("respond", "0", "late")
    service.barrier()
    assert client.barrier() == []


def test_what_others_send_does_not_prolong_a_timeout(c_program: Path) -> None:
    """A function that waits reads a limited number of packets after its timeout. The test is the bus, so that all of them are there."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(WAIT_SECONDS)
        caller = LineProgram(c_program, {"SBUS_ADDRESS": f"/dev/fd/{theirs.fileno()}"}, (theirs.fileno(),))
        caller.write(b"connect\t-\nstart\twork\t\t30000\n")
        answers = {b"!/conn/whoami": b"!/conn/7/", b"!/bus/members": b'{"members":[{"id":9,"cred":""}],"next":null}'}
        request, looked = Envelope("work", "none"), 0
        while looked < 2:
            verb, _, rest = ours.recv(100_000).partition(b" ")
            key, _, payload = rest.partition(b"\0")
            if key in answers or key == b"!/bus/ping":
                ours.send(b"CMSG %b\0%b" % (key, answers.get(key, payload)))
            elif verb == b"MSG":
                request = parse_envelope(payload)
                ours.send(b"CMSG !/bus/receipt\0%b\0001\0009" % request.uid.encode())
            looked += key == b"!/bus/ping"
        assert (caller.line(), caller.line()) == ("ok", "ok")
        junk = [b"CMSG !/from/8/!/cred/1/1/1\0MSG %b\0x" % request.reply_to.encode()] * (MOST_LATE + 400)
        response = Envelope("work", request.uid, b"done").encode()
        response = b"CMSG !/from/9/!/cred/1/1/1\0MSG %b\0%b" % (request.reply_to.encode(), response)
        ours.send(b"CMSG !/batch\0" + b"".join(len(each).to_bytes(4, "little") + each for each in [*junk, response]))
        caller.write(b"wait\t0\nwait\t0\n")
        assert caller.line().startswith(f"error\t{errno.ETIMEDOUT}\t")
        assert caller.line() == f"reply\t1\t{b'done'.hex()}"
        caller.close()


def test_one_user_cannot_use_up_the_open_requests_of_another(bus: Daemon, service: Actor, first_user: User, second_user: User) -> None:
    service.start("take-many", "work", str(MOST_OPEN + 1))
    greedy, address = _client(bus, second_user)
    for number in range(MOST_OPEN + 1):
        _request(greedy, address, f"u{number}")
        if number % 100 == 0:
            greedy.barrier()
    assert service.line() == f"taken\t{MOST_OPEN}"
    assert parse_envelope(greedy.receive().partition(b"\0")[2]).error == "busy"
    client, address = _client(bus, first_user)
    _request(client, address)
    assert service.do("read", "work", "0").startswith("request\t")
    service.ok("respond", "0", "done")
    assert parse_envelope(client.receive().partition(b"\0")[2]).data == b"done"


def test_a_response_does_not_reach_the_client_that_has_the_number_of_the_caller_after_a_reconnection(
    daemon: StartDaemon, c_program: Path
) -> None:
    bus = daemon()
    service = _serving(c_program, bus.path, "r")
    client, address = _client(bus)
    _request(client, address)
    assert service.do("read", "work", "0").startswith("request\t")
    bus.stop()
    other = daemon()
    heirs: list[RawClient] = []
    while not heirs or heirs[-1].ask(b"!/conn/whoami").decode() != address:
        heirs.append(other.client())
    heirs[-1].subscribe(address.encode())
    heirs[-1].barrier()
    Path(bus.path).symlink_to(other.path)
    while service.next().kind != "reconnected":
        pass
    assert service.do("cancelled", "0") == "1"
    service.ok("respond", "0", "secret")
    service.barrier()
    assert heirs[-1].barrier() == []
    service.close()
