"""Calls from C, with ``clients/c/sbus.h``, of services in Python on a real bus."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

from sbus import Request, ServiceError
from sbus.protocol.envelope import Envelope, parse_envelope
from tests.support.c_programs import Actor, first_to_write
from tests.support.daemons import Daemon, StartDaemon
from tests.support.service_processes import running_service
from tests.support.users import User

MILLISECONDS = "30000"


SHARES_BUS = True


def _echo(request: Request) -> bytes:
    return request.data


def _fail(_request: Request) -> bytes:
    raise ServiceError("it failed")


def _never(_request: Request) -> bytes:
    signal.pause()
    return b""


def test_calls(bus: Daemon, caller: Actor, first_user: User) -> None:
    with running_service(bus.path, first_user, echo=_echo, fail=_fail) as service:
        for size in (0, 1, 5, 65_536, 100_000):
            assert caller.do("call", "echo", str(size), MILLISECONDS) == f"reply\t{service.pid}\t{size}\t1"
        assert (
            caller.do("call", "fail", "1", MILLISECONDS) == f"error\t{errno.EREMOTEIO}\t{bus.path}: call failed in the service: it failed"
        )
        assert caller.do("call", "other", "1", MILLISECONDS).startswith(f"error\t{errno.ENOENT}\t")
        assert caller.do("call", "echo", "400000", MILLISECONDS).startswith(f"error\t{errno.EMSGSIZE}\t")
        assert caller.do("call", "echo", "10", MILLISECONDS) == f"reply\t{service.pid}\t10\t1"
    assert caller.do("call", "echo", "1", MILLISECONDS).startswith(f"error\t{errno.ENOENT}\t")


def test_a_call_without_an_end(bus: Daemon, caller: Actor) -> None:
    with running_service(bus.path, never=_never) as service:
        assert caller.do("call", "never", "1", "200").startswith(f"error\t{errno.ETIMEDOUT}\t")
        caller.start("call", "never", "1", "60000")
        requests = bus.client()
        requests.subscribe(b"rpc/never")
        requests.barrier()
        service.kill()
        assert caller.line().startswith((f"error\t{errno.ECONNABORTED}\t", f"error\t{errno.ENOENT}\t"))


def test_the_callee_is_the_service_that_got_the_request(bus: Daemon, caller: Actor, c_program: Path) -> None:
    """It ends, and the call fails at once, although other services of the group are there."""
    listener = bus.client()
    listener.subscribe(b"rpc/")
    listener.barrier()
    services = [Actor(c_program, bus.path) for _ in range(2)]
    for service in services:
        service.ok("serve-one", "shared")
        service.barrier()
        service.barrier()
        service.start("next", "60000")
    caller.start("call", "shared", "1", "60000")
    chosen = first_to_write(services)
    chosen.process.kill()
    chosen.process.communicate()
    assert caller.line().startswith(f"error\t{errno.ECONNABORTED}\t")
    (other,) = (service for service in services if service is not chosen)
    caller.start("call", "shared", "5", "60000")
    assert other.line().startswith("message\t")
    other.start("answer", "shared")
    with running_service(bus.path, shared=_echo) as python:
        caller.start("call", "shared", "7", MILLISECONDS)
        other.process.kill()
        other.process.communicate()
        assert caller.line().startswith(f"error\t{errno.ECONNABORTED}\t")
        assert caller.line() == f"reply\t{python.pid}\t7\t1"


def test_a_listener_cannot_respond(bus: Daemon, caller: Actor, second_user: User) -> None:
    """Although it learns uid and ret, and answers first."""
    listener = bus.client(second_user)
    listener.subscribe(b"")
    listener.barrier()
    with running_service(bus.path, never=_never) as service:
        caller.start("call", "never", "1", "60000")
        request = parse_envelope(listener.receive().partition(b"\0")[2])
        listener.publish(request.reply_to.encode(), Envelope("never", request.uid, b"forged").encode())
        listener.publish(request.reply_to.encode(), b"\0{")
        listener.barrier()
        service.kill()
        assert caller.line().startswith(f"error\t{errno.ECONNABORTED}\t")


def test_many_listeners_do_not_hide_the_service(bus: Daemon, caller: Actor, second_user: User) -> None:
    """The list of members has several pages, and the service is on the last one."""
    listeners = [bus.client(second_user) for _ in range(210)]
    for listener in listeners:
        listener.subscribe(b"rpc/")
    listeners[-1].barrier()
    with running_service(bus.path, echo=_echo) as service:
        assert caller.do("call", "echo", "3", MILLISECONDS) == f"reply\t{service.pid}\t3\t1"


def test_a_call_after_a_reconnection(daemon: StartDaemon, c_program: Path) -> None:
    bus = daemon()
    caller = Actor(c_program, bus.path, "rb")
    with running_service(bus.path, echo=_echo) as service:
        assert caller.do("call", "echo", "3", MILLISECONDS) == f"reply\t{service.pid}\t3\t1"
    bus.stop()
    other = daemon()
    Path(bus.path).symlink_to(other.path)
    with running_service(other.path, echo=_echo) as service:
        assert caller.next().kind == "reconnected"
        assert caller.do("call", "echo", "3", MILLISECONDS) == f"reply\t{service.pid}\t3\t1"
    caller.close()


def test_a_denied_call(daemon: StartDaemon, c_program: Path) -> None:
    bus = daemon(config='[[policy]]\nkeys = "rpc/echo"\npublish = "deny"\ncomment = "not now"\n')
    caller = Actor(c_program, bus.path)
    with running_service(bus.path, echo=_echo):
        assert caller.do("call", "echo", "3", MILLISECONDS).startswith(f"error\t{errno.EPERM}\t")
    caller.close()


def test_calls_that_are_not_made(bus: Daemon, c_program: Path) -> None:
    caller = Actor(c_program, bus.path)
    assert caller.do("call", "a*", "1", MILLISECONDS).startswith(f"error\t{errno.EINVAL}\t")
    assert caller.do("call", "echo", "1", "0").startswith(f"error\t{errno.EINVAL}\t")
    caller.ok("subscribe", "k")
    assert caller.do("call", "echo", "1", MILLISECONDS).startswith(f"error\t{errno.EBUSY}\t")
    caller.close()
