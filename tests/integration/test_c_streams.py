"""Responses in parts between C, with ``clients/c/sbus.h``, and Python on a real bus."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sbus import Bus, RemoteError, Request, ServiceError
from tests.support.c_programs import AS_C, AS_CXX, SANITIZED, SHARED, SOURCE, Actor, LineProgram, compile_program
from tests.support.daemons import Daemon, StartDaemon
from tests.support.service_processes import running_service
from tests.support.users import User
from tools.stage import ROOT

WAIT_SECONDS = 30.0
MILLISECONDS = "30000"
LARGE = 200_000


SHARES_BUS = True


@pytest.fixture(scope="module", params=[AS_C, AS_CXX], ids=["C99", "C++11"])
def c_program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program, as C and as C++."""
    return compile_program([SOURCE / "actor.c", *SHARED], tmp_path_factory.mktemp("c") / "actor", (*request.param, *SANITIZED))


@pytest.fixture
def service(c_program: Path, bus: Daemon) -> Iterator[Actor]:
    """A service of the command ``rows``, whose test reads the requests."""
    actor = _serving(c_program, bus)
    yield actor
    actor.close()


def _serving(c_program: Path, bus: Daemon) -> Actor:
    actor = Actor(c_program, bus.path)
    actor.ok("serve-one", "rows")
    actor.barrier()
    actor.barrier()
    return actor


def _count(request: Request) -> Iterator[str]:
    for number in range(int(request.data)):
        yield f"{number}"


def _fail(request: Request) -> Iterator[str]:
    yield from _count(request)
    raise ServiceError("no more")


def _large(request: Request) -> Iterator[bytes]:
    for number in range(int(request.data)):
        yield b"%06d" % number + bytes(LARGE - 6)


def _echo(request: Request) -> bytes:
    return request.data


# Callers in C


@pytest.mark.parametrize(("count", "window"), [(0, 16), (1, 16), (3, 1), (300, 1), (300, 2), (300, 3), (5000, 16), (3000, 1024)])
def test_a_stream_of_python_arrives_whole(bus: Daemon, caller: Actor, first_user: User, count: int, window: int) -> None:
    with running_service(bus.path, first_user, rows=_count, echo=_echo):
        caller.ok("stream", "rows", str(count), str(window))
        assert caller.do("drain") == f"drained\t{count}\t0"
        assert caller.do("call", "echo", "9", MILLISECONDS).startswith("reply\t")


def test_a_response_that_is_not_a_stream_is_one_part(bus: Daemon, caller: Actor) -> None:
    with running_service(bus.path, echo=_echo) as python:
        caller.ok("stream", "echo", "whole", "16")
        assert caller.do("part", MILLISECONDS) == f"part\t{python.pid}\t{b'whole'.hex()}"
        assert caller.do("part", MILLISECONDS) == "end\t0\t"
        assert caller.do("part", "0").startswith(f"error\t{errno.EINVAL}\t")


def test_a_stream_fails_in_the_middle(bus: Daemon, caller: Actor) -> None:
    with running_service(bus.path, rows=_fail):
        caller.ok("stream", "rows", "3", "16")
        for number in range(3):
            assert caller.do("part", MILLISECONDS).split("\t")[2] == str(number).encode().hex()
        assert caller.do("part", MILLISECONDS) == f"error\t{errno.EREMOTEIO}\t{bus.path}: call failed in the service: no more"
        assert caller.do("part", "0").startswith(f"error\t{errno.EINVAL}\t")


def test_a_program_leaves_a_stream_that_never_ends(bus: Daemon, caller: Actor) -> None:
    """The service is not asked for more than the window, and its generator is closed."""
    reader, writer = os.pipe()

    def endless(_request: Request) -> Iterator[str]:
        made = 0
        try:
            while True:
                made += 1
                yield "part"
        finally:
            os.write(writer, b"%d\n" % made)

    with running_service(bus.path, rows=endless, echo=_echo):
        caller.ok("stream", "rows", "", "8")
        for _ in range(20):
            assert caller.do("part", MILLISECONDS).startswith("part\t")
        caller.ok("cancel")
        with os.fdopen(reader) as lines:
            assert 20 <= int(lines.readline()) <= 28
        assert caller.do("call", "echo", "9", MILLISECONDS).startswith("reply\t")
    os.close(writer)


def test_a_slow_program_loses_nothing(bus: Daemon, caller: Actor, first_user: User) -> None:
    """40 MB of parts, which the bus could not queue, and calls of others between them."""
    with running_service(bus.path, first_user, rows=_large, echo=_echo), Bus.connect(bus.path) as other:
        caller.ok("stream", "rows", "200", "4")
        for number in range(200):
            part = bytes.fromhex(caller.do("part", MILLISECONDS).split("\t")[2])
            assert part == b"%06d" % number + bytes(LARGE - 6)
            if number % 50 == 0:
                assert other.call("echo", "on", timeout=WAIT_SECONDS) == b"on"
        assert caller.do("part", MILLISECONDS) == "end\t0\t"


def test_waiting_for_a_part_can_be_repeated(bus: Daemon, caller: Actor) -> None:
    reader, writer = os.pipe()

    def gated(_request: Request) -> Iterator[str]:
        while (byte := os.read(reader, 1)) != b"e":
            yield byte.decode()

    with running_service(bus.path, rows=gated):
        caller.ok("stream", "rows", "", "16")
        for byte in (b"x", b"y"):
            assert caller.do("part", "0").startswith(f"error\t{errno.ETIMEDOUT}\t")
            os.write(writer, byte)
            assert caller.do("part", MILLISECONDS).split("\t")[2] == byte.hex()
        os.write(writer, b"e")
        assert caller.do("part", "-1") == "end\t0\t"
    os.close(reader)
    os.close(writer)


def test_the_end_of_the_service_ends_the_stream(bus: Daemon, caller: Actor) -> None:
    with running_service(bus.path, rows=_count) as python:
        caller.ok("stream", "rows", "1000000", "16")
        assert caller.do("part", MILLISECONDS).startswith("part\t")
        python.kill()
        assert caller.do("drain").startswith(f"error\t{errno.ECONNABORTED}\t")


def test_one_of_several_services_streams_and_the_others_are_cancelled(
    bus: Daemon, caller: Actor, first_user: User, second_user: User
) -> None:
    reader, writer = os.pipe()

    def noted(request: Request) -> Iterator[str]:
        number = 0
        try:
            for number in range(int(request.data)):
                yield f"{number}"
        finally:
            os.write(writer, b"%d\n" % number)

    with running_service(bus.path, first_user, rows=noted), running_service(bus.path, second_user, rows=noted):
        caller.ok("stream", "rows", "100", "16")
        assert caller.do("drain") == "drained\t100\t0"
    os.close(writer)
    with os.fdopen(reader) as lines:
        # A call can be cancelled before its generator has begun.
        assert sorted(map(int, lines)) in ([99], [0, 99])


def test_lost_parts_end_the_stream(daemon: StartDaemon, c_program: Path) -> None:
    """The caller has accepted more than the bus queues for it, and does not read."""
    bus = daemon(config="[limits]\nqueue_packets = 10\n")
    caller = Actor(c_program, bus.path)
    reader, writer = os.pipe()

    def noted(request: Request) -> Iterator[bytes]:
        try:
            for number, part in enumerate(_large(request)):
                if number == 900:
                    os.write(writer, b"m")
                yield part[:20_000]
        finally:
            os.write(writer, b"e")

    with running_service(bus.path, rows=noted):
        caller.ok("stream", "rows", "100000", "1024")
        for _ in range(2):  # the second one accepts more
            assert caller.do("part", MILLISECONDS).startswith("part\t")
        assert os.read(reader, 1) == b"m"
        assert caller.do("drain").startswith(f"error\t{errno.EBADMSG}\t{bus.path}: call failed: ")
        assert os.read(reader, 1) == b"e"
    caller.close()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("window", ["0", "1025", "-1"])
def test_windows_that_are_not_possible(caller: Actor, window: str) -> None:
    assert caller.do("stream", "rows", "", window).startswith(f"error\t{errno.EINVAL}\t")


# Services in C


def test_a_stream_of_c_arrives_whole_in_python(bus: Daemon, service: Actor) -> None:
    """It waits for the caller when it has sent as many parts as that accepts."""

    def stream() -> list[int]:
        with Bus.connect(bus.path) as caller:
            return [len(part) for part in caller.stream("rows", "x", timeout=WAIT_SECONDS, window=4)]

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(stream)
        assert service.do("read", "rows", "0").startswith("request\t")
        sent = 0
        assert service.do("accepted", "0") == "1"
        while sent < 50:
            while service.do("accepted", "0") == "0":
                assert service.do("send-part", "0", "1").startswith(f"error\t{errno.EAGAIN}\t")
                assert service.do("read", "rows", "1").startswith("message\t")
            assert int(service.do("accepted", "0")) <= 4
            service.ok("send-part", "0", str(sent))
            sent += 1
        assert service.do("respond", "0", "x").startswith(f"error\t{errno.EINVAL}\t")
        service.ok("send-end", "0")
        assert service.do("send-end", "0").startswith(f"error\t{errno.EALREADY}\t")
        assert waiting.result(WAIT_SECONDS) == list(range(50))


def test_an_empty_stream_and_one_that_fails(bus: Daemon, service: Actor) -> None:
    with Bus.connect(bus.path) as caller, ThreadPoolExecutor() as threads:
        for command, expected in (("send-end", []), ("respond-error", ["no rows"]), ("respond", [b"whole"])):

            def stream() -> list[object]:
                try:
                    return list(caller.stream("rows", timeout=WAIT_SECONDS))
                except RemoteError as error:
                    return [error.words]

            waiting = threads.submit(stream)
            assert service.do("read", "rows", "0").startswith("request\t")
            service.ok(command, "0", "whole" if command == "respond" else "no rows")
            assert waiting.result(WAIT_SECONDS) == expected


def test_a_caller_that_does_not_accept_parts_gets_an_error(bus: Daemon, service: Actor) -> None:
    for command in ("send-part", "send-end"):
        with Bus.connect(bus.path) as caller, ThreadPoolExecutor() as threads:
            waiting = threads.submit(caller.call, "rows", "x", timeout=WAIT_SECONDS)
            assert service.do("read", "rows", "0").startswith("request\t")
            assert service.do(command, "0", "1").startswith(f"error\t{errno.EOPNOTSUPP}\t")
            with pytest.raises(RemoteError) as failed:
                waiting.result(WAIT_SECONDS)
            assert failed.value.words == "rows streams its response: call it with stream()"


def test_a_part_that_is_too_long_does_not_end_the_stream(bus: Daemon, service: Actor) -> None:
    with Bus.connect(bus.path) as caller, ThreadPoolExecutor() as threads:
        waiting = threads.submit(lambda: [len(part) for part in caller.stream("rows", timeout=WAIT_SECONDS)])
        assert service.do("read", "rows", "0").startswith("request\t")
        assert service.do("send-part", "0", "400000").startswith(f"error\t{errno.EMSGSIZE}\t")
        service.ok("send-part", "0", "5")
        service.ok("send-end", "0")
        assert waiting.result(WAIT_SECONDS) == [5]


def test_a_service_notices_that_its_stream_was_left(bus: Daemon, service: Actor) -> None:
    with Bus.connect(bus.path) as caller, ThreadPoolExecutor() as threads:

        def leave() -> None:
            for _ in caller.stream("rows", timeout=WAIT_SECONDS):
                break

        waiting = threads.submit(leave)
        assert service.do("read", "rows", "0").startswith("request\t")
        service.ok("send-part", "0", "1")
        service.start("await-cancel", "rows", "0")
        assert service.line() == "cancelled"
        assert service.do("accepted", "0") == "0"
        assert service.do("send-part", "0", "1").startswith(f"error\t{errno.ECANCELED}\t")
        assert service.do("send-end", "0").startswith(f"error\t{errno.EALREADY}\t")
        waiting.result(WAIT_SECONDS)


def test_a_stream_that_waits_for_its_caller_learns_that_it_has_gone(bus: Daemon, service: Actor) -> None:
    """The program only reads: sending the last part that was accepted has started the watch."""
    client = bus.client()
    address = client.ask(b"!/conn/whoami").decode()
    client.subscribe(f"{address}ret/".encode())
    client.barrier()
    client.publish(b"rpc/rows", b'{"ver":1,"uid":"u","cmd":"rows","win":1,"ret":"%bret/x"}' % address.encode())
    assert service.do("read", "rows", "0").startswith("request\t")
    service.ok("send-part", "0", "1")
    client.receive()
    service.start("read", "rows", "1")
    client.close()
    assert service.line().split("\t")[0] in {"message", "control"}
    assert service.do("cancelled", "0") == "1"


def test_c_and_c(bus: Daemon, caller: Actor, service: Actor) -> None:
    caller.start("stream", "rows", "x", "2")
    assert caller.line() == "ok"
    assert service.do("read", "rows", "0").startswith("request\t")
    service.ok("send-part", "0", "1")
    assert caller.do("part", MILLISECONDS) == f"part\t{service.process.pid}\t00"
    caller.start("part", MILLISECONDS)  # accepts part 3 too
    assert service.do("read", "rows", "1").startswith("message\t")
    assert service.do("accepted", "0") == "2"
    service.ok("send-end", "0")
    assert caller.line() == "end\t0\t"


# The examples


def test_the_examples(bus: Daemon, tmp_path: Path, second_user: User) -> None:
    """With each other and with Python, and with a caller that leaves while others read on."""
    built = {
        name: compile_program([ROOT / "examples" / f"{name}.c"], tmp_path / name, (*AS_C, *SANITIZED))
        for name in ("stream_service", "stream_call")
    }
    env = {"SBUS_ADDRESS": bus.path, "TRACEPARENT": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    service = LineProgram(built["stream_service"], env)
    asking = bus.client()
    while not json.loads(asking.ask(b"!/bus/members", b"rpc/count"))["members"]:
        pass

    def read() -> list[bytes]:
        with Bus.connect(bus.path) as caller:
            return list(caller.stream("count", "500", timeout=WAIT_SECONDS))

    with Bus.connect(bus.path) as leaving, Bus.connect(bus.path) as waiting:
        slow = waiting.stream("count", "400", timeout=WAIT_SECONDS)
        assert next(slow) == b"0"
        assert next(leaving.stream("count", "1000000", timeout=WAIT_SECONDS)) == b"0"
        assert second_user.call(read) == [b"%d" % number for number in range(500)]
        done = subprocess.run([built["stream_call"], "300"], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(number) for number in range(300)]
        assert list(slow) == [b"%d" % number for number in range(1, 400)]
        with pytest.raises(RemoteError):
            leaving.call("count", "5", timeout=WAIT_SECONDS)
        assert list(leaving.stream("count", "x", timeout=WAIT_SECONDS)) == []
    wrong = subprocess.run([built["stream_call"]], env=env | {"TRACEPARENT": "x"}, capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr.count("traceparent")) == (1, 1)
    service.process.terminate()
    service.process.communicate()
    with running_service(bus.path, count=_count):
        done = subprocess.run([built["stream_call"], "300"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(number) for number in range(300)]
