"""A service in C, with ``clients/c/sbus.h``, and callers in Python on a real bus."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sbus import Bus, NoRecipient, PeerDisconnected, RemoteError
from sbus.protocol.envelope import Envelope, parse_envelope
from tests.support.c_programs import Actor, LineProgram, client_program, compile_program, first_to_write, shown
from tests.support.daemons import Daemon, StartDaemon
from tests.support.service_processes import running_service
from tests.support.users import User
from tests.support.wire import RawClient
from tools.stage import ROOT

WAIT_SECONDS = 30.0


SHARES_BUS = True


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program."""
    return client_program("actor", tmp_path_factory.mktemp("c"))


@pytest.fixture
def service(program: Path, bus: Daemon) -> Iterator[Actor]:
    """A running service, which is halted at the end."""
    actor = Actor(program, bus.path)
    actor.start("serve")
    _wait_for_service(bus.client())
    yield actor
    with Bus.connect(bus.path) as caller:
        caller.call("halt", timeout=WAIT_SECONDS)
    while (line := actor.line()) != "ok":
        assert line.startswith(("served\t", "discarded\t"))
    actor.close()


def _wait_for_service(client: RawClient) -> None:
    """Ask the bus until the last command is served."""
    while not json.loads(client.ask(b"!/bus/members", b"rpc/halt"))["members"]:
        pass


@pytest.mark.parametrize("size", [0, 1, 2, 3, 255, 65_536])
def test_a_call(bus: Daemon, service: Actor, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    with Bus.connect(bus.path) as caller:
        assert caller.call("echo", data[:size], timeout=WAIT_SECONDS) == data[:size]


def test_many_calls_of_several_users(bus: Daemon, service: Actor, first_user: User) -> None:
    def call() -> list[bytes]:
        with Bus.connect(bus.path) as caller:
            return [bytes(caller.call("echo", str(number), timeout=WAIT_SECONDS)) for number in range(50)]

    assert first_user.call(call) == call() == [str(number).encode() for number in range(50)]


def test_errors(bus: Daemon, service: Actor) -> None:
    with Bus.connect(bus.path) as caller:
        with pytest.raises(RemoteError) as failed:
            caller.call("fail", timeout=WAIT_SECONDS)
        assert failed.value.words == 'it failed: "\\?ä'
        with pytest.raises(RemoteError) as long:
            caller.call("long", timeout=WAIT_SECONDS)
        assert long.value.words == "the result is too long"


def _caller(bus: Daemon) -> tuple[RawClient, str]:
    """Return a client that receives at its own address, and this address."""
    client = bus.client()
    address = client.ask(b"!/conn/whoami").decode()
    client.subscribe(address.encode())
    client.barrier()
    return client, address


def test_requests_that_are_not_run(bus: Daemon, service: Actor) -> None:
    client, address = _caller(bus)
    victim, other = _caller(bus)
    good = Envelope("echo", "u1", b"data", f"{address}ret/x")
    client.publish(b"rpc/echo", good.encode())
    answer = parse_envelope(client.receive().partition(b"\0")[2])
    assert (answer.uid, answer.command, answer.data, answer.error) == ("u1", "echo", b"data", "")
    wrong = [
        (good.encode(), errno.EALREADY),
        (Envelope("echo", "u2", b"", f"{other}ret/x").encode(), errno.EACCES),
        (Envelope("echo", "u3", b"", "chat/").encode(), errno.EACCES),
        (Envelope("fail", "u4", b"", f"{address}ret/x").encode(), errno.EBADMSG),
        (b"", errno.EBADMSG),
        (b"\0\xff{", errno.EBADMSG),
        (b"[" * 100_000, errno.EBADMSG),
        (b'{"ver":1,"uid":"u5","cmd":"echo","x":' + b"[" * 100_000, errno.EBADMSG),
        (b'{"ver":2,"uid":"u6","cmd":"echo"}', errno.EBADMSG),
        (b'{"ver":1,"uid":"u7","cmd":"echo","dat":"a"}', errno.EBADMSG),
        (b'{"ver":1,"uid":"u8","cmd":"echo","ret":"\\ud800"}', errno.EBADMSG),
        (b'{"ver":1,"uid":"u9","cmd":"echo","exp":-1}', errno.EBADMSG),
        (b'{"ver":1,"uid":"' + b"u" * 129 + b'","cmd":"echo"}', errno.EBADMSG),
        (b'{"ver":1,"uid":"a\\u0000b","cmd":"echo"}', errno.EBADMSG),
    ]
    for payload, error in wrong:
        client.publish(b"rpc/echo", payload)
        assert service.line().split("\t")[:2] == ["discarded", str(error)], payload[:80]
    client.publish(b"rpc/echo", Envelope("echo", "old", b"", f"{address}ret/x", expires_seconds=1, sent_at=1).encode())
    assert service.line().split("\t")[:2] == ["discarded", str(errno.ETIME)]
    assert parse_envelope(client.receive().partition(b"\0")[2]).error == "expired"
    client.publish(
        b"rpc/echo",
        b' {"cmd" : "\\u0065cho", "x":[{"y":-1.5e3},null,"\\ud83d\\ude00"], "uid":"u10","ver":1,"dat":"aGk=","ret":"%b"} '
        % (address.encode()),
    )
    assert parse_envelope(client.receive().partition(b"\0")[2]).data == b"hi"
    assert victim.barrier() == []


def test_it_serves_again_after_a_reconnection(daemon: StartDaemon, program: Path) -> None:
    bus = daemon()
    actor = Actor(program, bus.path, "r")
    actor.start("serve")
    _wait_for_service(bus.client())
    bus.stop()
    other = daemon()
    Path(bus.path).symlink_to(other.path)
    _wait_for_service(other.client())
    with Bus.connect(other.path) as caller:
        assert caller.call("echo", "again", timeout=WAIT_SECONDS) == b"again"
        caller.call("halt", timeout=WAIT_SECONDS)
    assert (actor.line(), actor.line()) == ("served\t2", "ok")
    actor.close()


def _running(program: Path, path: str, verb: str = "serve-one") -> Actor:
    """Return a service of the command ``shared`` that has been noted by the bus."""
    actor = Actor(program, path)
    actor.ok(verb, "shared")
    actor.barrier()  # reads the address, and subscribes
    actor.barrier()
    return actor


def test_services_share_calls_and_the_end_of_the_one_that_got_it_is_an_error(bus: Daemon, program: Path) -> None:
    actors = [_running(program, bus.path) for _ in range(2)]
    for actor in actors:
        actor.start("next", "60000")
    with Bus.connect(bus.path) as caller, ThreadPoolExecutor() as threads:
        waiting = threads.submit(caller.call, "shared", "first", timeout=WAIT_SECONDS)
        chosen = first_to_write(actors)
        packet = shown(chosen.line())
        assert (packet.group, packet.key) == (b"rpc", b"rpc/shared")
        assert parse_envelope(packet.payload).data == b"first"
        chosen.process.kill()
        with pytest.raises(PeerDisconnected):
            waiting.result(WAIT_SECONDS)
        chosen.process.communicate()
        (other,) = (actor for actor in actors if actor is not chosen)
        waiting = threads.submit(caller.call, "shared", "second", timeout=WAIT_SECONDS)
        assert parse_envelope(shown(other.line()).payload).data == b"second"  # not the first one
        other.ok("stop-serving", "shared")
        other.barrier()
        with pytest.raises(NoRecipient):
            caller.call("shared", timeout=WAIT_SECONDS)
        other.close()
        with pytest.raises(PeerDisconnected):
            waiting.result(WAIT_SECONDS)


def test_a_service_that_gets_every_request(bus: Daemon, program: Path) -> None:
    actors = [_running(program, bus.path, verb) for verb in ("serve-all", "serve-all", "serve-one")]
    for actor in actors:
        actor.start("answer", "shared")
    with Bus.connect(bus.path) as caller:
        assert caller.call("shared", "x", timeout=WAIT_SECONDS) == b"x"
        for actor in actors:
            assert actor.line() == "ok"
        for actor in actors:
            actor.ok("stop-serving", "shared")
            actor.barrier()
        with pytest.raises(NoRecipient):
            caller.call("shared", timeout=WAIT_SECONDS)
    for actor in actors:
        actor.close()


def test_a_service_that_also_listens_runs_only_its_share(bus: Daemon, program: Path) -> None:
    actors = [_running(program, bus.path) for _ in range(2)]
    for actor in actors:
        actor.ok("subscribe", "rpc/")
        actor.barrier()
        actor.start("answer", "shared")
    with Bus.connect(bus.path) as caller:
        assert caller.call("shared", "a", timeout=WAIT_SECONDS) == b"a"
        chosen = first_to_write(actors)
        assert chosen.line() == "ok"
        chosen.close()
        # The other one still waits for its first request, although it has got the message.
        assert caller.call("shared", "b", timeout=WAIT_SECONDS) == b"b"
    (other,) = (actor for actor in actors if actor is not chosen)
    assert other.line() == "ok"
    other.close()


def test_a_mixture_of_services_in_c_and_python_shares_calls(bus: Daemon, program: Path) -> None:
    actor = _running(program, bus.path)
    actor.start("answer", "shared")
    with running_service(bus.path, shared=lambda request: request.data) as service, Bus.connect(bus.path) as caller:
        pids: set[int] = set()
        while pids != {actor.process.pid, service.pid}:
            answer = caller.call("shared", "x", timeout=WAIT_SECONDS)
            assert answer.callee is not None
            pids.add(answer.callee.pid)
            if answer.callee.pid == actor.process.pid:
                assert actor.line() == "ok"
                actor.start("answer", "shared")
        actor.process.kill()
        actor.process.communicate()
        while len(caller.members("rpc/shared")) > 1:  # the bus can notice the end of one connection after a request of another
            pass
        assert caller.call("shared", "y", timeout=WAIT_SECONDS) == b"y"


def test_names_that_are_not_commands(bus: Daemon, program: Path) -> None:
    actor = Actor(program, bus.path)
    for name in ("", "a*", "x" * 257, "\x7f"):
        assert actor.do("serve-one", name).startswith(f"error\t{errno.EINVAL}\t")
    actor.close()


def test_the_example_of_the_manual(bus: Daemon, tmp_path: Path) -> None:
    blocks = (ROOT / "man" / "sbus.h.3").read_text().partition(".Sh EXAMPLES")[2].split(".Bd -literal -offset indent\n")
    source = tmp_path / "example.c"
    source.write_text(blocks[2].partition(".Ed")[0].replace("\\e", "\\"))
    running = LineProgram(compile_program([source], tmp_path / "example"), {"SBUS_ADDRESS": bus.path})
    client = bus.client()
    while not json.loads(client.ask(b"!/bus/members", b"rpc/echo"))["members"]:
        pass
    with Bus.connect(bus.path) as caller:
        assert caller.call("echo", "hello", timeout=WAIT_SECONDS) == b"hello"
    running.process.terminate()
    running.process.communicate()
