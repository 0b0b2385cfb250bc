"""A C program with ``clients/c/sbus.h`` on a real bus, which exchanges messages with the Python client."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus import Bus, Message, Subscription
from sbus.protocol.packets import LENGTH_BYTES, MAX_BATCH_BYTES, MAX_PACKET_BYTES
from tests.support.c_programs import (
    AS_C,
    AS_CXX,
    INCLUDE,
    SHARED,
    SOURCE,
    Actor,
    LineProgram,
    Shown,
    compile_program,
    shown,
)
from tests.support.daemons import Daemon, StartDaemon
from tests.support.fdstore import Manager
from tests.support.users import User
from tests.support.wire import message
from tools.stage import ROOT

_SO_SNDBUFFORCE = 32
"""From asm-generic/socket.h."""

Act = Callable[..., Actor]


SHARES_BUS = True


@pytest.fixture
def act(c_program: Path) -> Iterator[Act]:
    """Start C programs; each must end without words from a sanitizer."""
    started: list[Actor] = []

    def start(path: str, options: str = "-") -> Actor:
        started.append(Actor(c_program, path, options))
        return started[-1]

    yield start
    for each in started:
        each.close()


def _payload(number: int, size: int) -> bytes:
    """Return the payload that ``numbered`` in actions.c makes."""
    return (number.to_bytes(4, "little") + bytes(range(256)) * (size // 256 + 1))[:4][:size] + bytes(i & 0xFF for i in range(4, size))


def _receive(inbox: Subscription) -> bytes:
    """Return the payload of the next message."""
    received = inbox.receive(30)
    assert isinstance(received, Message)
    return received.payload


def _message(key: bytes, payload: bytes) -> Shown:
    return Shown("message", key, payload, has_payload=True)


@pytest.mark.parametrize(
    "command", [AS_C, (*AS_C, "-O3", "-D_FORTIFY_SOURCE=2"), AS_CXX, ("g++", "-x", "c++", "-std=c++20", "-Wall", "-Wextra", "-Werror")]
)
def test_several_translation_units_compile_without_a_warning(tmp_path: Path, command: tuple[str, ...]) -> None:
    compile_program([SOURCE / "actor.c", *SHARED], tmp_path / "program", command)


def test_it_compiles_behind_other_headers_and_alone(tmp_path: Path) -> None:
    """With the default of the compiler, whose headers declare POSIX."""
    source = tmp_path / "one.c"
    source.write_text(
        "#include <stdio.h>\n#include <sbus.h>\nint main(void) { struct sbus bus; return sbus_connect(&bus, 0, 0) + sbus_close(&bus); }\n"
    )
    compile_program([source], tmp_path / "program", ("gcc", "-Wall", "-Wextra", "-Werror"))
    done = subprocess.run(["gcc", "-std=c99", f"-I{INCLUDE}", "-fsyntax-only", str(source)], capture_output=True, text=True, check=False)
    assert "include sbus.h before all other headers" in done.stderr


@pytest.mark.parametrize("options", ["-", "b"])
@pytest.mark.parametrize("size", [0, 1, 4, 65_536, 200_000])
def test_messages_from_c_to_python_and_back(bus: Daemon, act: Act, options: str, size: int) -> None:
    actor = act(bus.path, options)
    with Bus.connect(bus.path) as python, python.subscribe("to/python") as inbox:
        actor.ok("subscribe", "to/c/*")
        actor.barrier()
        actor.ok("publish", "to/python", str(size))
        assert _receive(inbox) == _payload(0, size)
        python.publish("to/c/x", _payload(0, size))
        assert actor.next() == _message(b"to/c/x", _payload(0, size))
        actor.ok("unsubscribe", "to/c/*")
        actor.barrier()
        python.publish("to/c/x", "not delivered")
        python.ping()
        assert actor.next(0).kind == "nothing"


def test_the_longest_message(bus: Daemon, act: Act) -> None:
    """The default buffer of the socket limits it; a longer one fails with a text, and the connection goes on."""
    actor = act(bus.path)
    actor.ok("subscribe", "k")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        limit = probe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 32
    longest = min(limit, MAX_PACKET_BYTES) - len(message(b"k"))
    actor.ok("publish", "k", str(longest))
    assert actor.next() == _message(b"k", _payload(0, longest))
    assert actor.do("publish", "k", str(longest + 1)).startswith(f"error\t{errno.EMSGSIZE}\t{bus.path}: not sent: ")
    assert (
        actor.do("publish", "k", str(MAX_PACKET_BYTES - 5))
        == f"error\t{errno.EMSGSIZE}\t{bus.path}: not sent: the packet is longer than {MAX_PACKET_BYTES} bytes"
    )
    assert actor.do("receipt", "k" * 5000, "t" * 129).startswith(f"error\t{errno.EINVAL}\t")
    assert actor.barrier() == []


def test_the_longest_message_of_another(bus: Daemon, act: Act, needs_root: None) -> None:
    """With its sender, so that the packet is longer than any that a client can send."""
    actor = act(bus.path, "s")
    actor.ok("subscribe", "k")
    actor.barrier()
    client = bus.client()
    client.socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * MAX_PACKET_BYTES)
    payload = bytes(MAX_PACKET_BYTES - len(message(b"k")))
    client.publish(b"k", payload)
    received = actor.next()
    assert (received.key, received.payload) == (b"k", payload)
    assert received.sender is not None


def test_any_bytes_of_other_clients(bus: Daemon, act: Act) -> None:
    actor = act(bus.path)
    actor.ok("subscribe", "")
    actor.barrier()
    client = bus.client()
    for key, payload in [(b"", b""), (b"\xff\x01\n", b"\0\0"), (b"!x", b"MSG a\0b"), (b"a b", b"CMSG !/batch\0"), (b"k" * 4096, b"\n")]:
        client.publish(key, payload)
        assert actor.next() == _message(key, payload)


def test_senders(bus: Daemon, act: Act, first_user: User) -> None:
    actor = act(bus.path, "s")
    actor.ok("subscribe", "who")
    actor.barrier()
    client = bus.client(first_user)
    own, number = client.ask(b"!/cred/whoami"), int(client.ask(b"!/conn/whoami").split(b"/")[2])
    client.publish(b"who")
    sender = actor.next().sender
    assert sender is not None
    assert (sender[0], sender[1], sender[4], sender[5]) == (number, first_user.uid, own, b"")


@pytest.mark.parametrize(("count", "size"), [(1, 10), (3, 0), (10_000, 30), (5, 60_000)])
def test_batches_from_c(bus: Daemon, act: Act, count: int, size: int) -> None:
    """The program sends a batch when it is full; the bus splits it."""
    actor = act(bus.path)
    with Bus.connect(bus.path) as python, python.subscribe("k") as inbox:
        actor.start("batch", "k", str(count), str(size))
        assert [_receive(inbox) for _ in range(count)] == [_payload(number, size) for number in range(count)]
        assert actor.line() == "ok"


def test_batches_from_the_bus(bus: Daemon, act: Act) -> None:
    """The packets of a batch arrive one by one, also after waiting with poll(2) for the rest of it."""
    actor = act(bus.path, "b")
    actor.ok("subscribe", "k")
    actor.barrier()
    with Bus.connect(bus.path) as python:
        with python.coalesce():
            for number in range(3000):
                python.publish("k", str(number))
        python.ping()
    for number in range(3000):
        actor.start("poll") if number % 2 else actor.start("next", "30000")
        assert bytes.fromhex(actor.line().split("\t")[2]) == str(number).encode()
    assert actor.next(0).kind == "nothing"


def test_a_message_that_does_not_fit_into_a_batch(bus: Daemon, act: Act) -> None:
    actor = act(bus.path)
    assert actor.do("batch", "k", "1", str(MAX_BATCH_BYTES - len(message(b"k")))).startswith(f"error\t{errno.ENOBUFS}\t")
    actor.ok("batch", "k", "2", str(MAX_BATCH_BYTES - len(message(b"k")) - len(b"CMSG !/batch\0") - LENGTH_BYTES))


def test_gathered_publications(bus: Daemon, act: Act) -> None:
    """They go out in order, in fewer packets than messages, and a flush or any other call sends the last ones."""
    actor = act(bus.path)
    actor.ok("gather", "1")
    with Bus.connect(bus.path) as python, python.subscribe("k") as inbox:
        actor.start("many", "k", "20000", "20")
        assert actor.line() == "ok"
        actor.ok("flush")
        assert [_receive(inbox) for _ in range(20_000)] == [_payload(number, 20) for number in range(20_000)]
        for command in (("subscribe", "x"), ("control", "!/bus/ping"), ("next", "0"), ("gather", "0"), ("close",)):
            if command != ("close",):
                actor.ok("gather", "1")
            actor.ok("many", "k", "50", "4")
            actor.do(*command)
            assert [_receive(inbox) for _ in range(50)] == [_payload(number, 4) for number in range(50)]
    statistics = bus.client().ask(b"!/bus/stats")
    assert b'"received_batches":0' not in statistics


def test_receipts(bus: Daemon, act: Act) -> None:
    actor = act(bus.path)
    with Bus.connect(bus.path) as python, python.subscribe("k"):
        for key, count in (("k", 1), ("no/subscriber", 0), ("!/cred//0//x", 0)):
            actor.ok("receipt", key, "token 1")
            receipt = actor.next()
            assert (receipt.kind, receipt.token, receipt.count) == ("receipt", b"token 1", count)


def test_a_receipt_that_hides_the_number(bus: Daemon, c_program: Path, first_user: User) -> None:
    """For a private key of another user."""
    client = bus.client(first_user)
    client.control(b"receipt/always", b"t")
    client.publish(b"!/cred//0//x")
    assert client.receive() == b"CMSG !/bus/receipt\0t\0-"


def test_refusals(bus: Daemon, act: Act) -> None:
    actor = act(bus.path)
    actor.ok("publish", "!/bus/lost", "1")
    refused = actor.next()
    assert (refused.kind, refused.error) == ("refused", errno.EPERM)
    assert refused.payload.startswith(b"EPERM ")
    actor.ok("publish", "k" * 5000, "1")
    assert actor.next().error == errno.EMSGSIZE
    actor.ok("control", "!/bus/nonsense")
    assert actor.next().error == errno.ENOSYS
    actor.ok("subscribe", "!/cred//1//x")
    assert actor.next().error == errno.EACCES
    assert actor.do("next", "-1").startswith(
        f"error\t{errno.ECONNRESET}\t{bus.path}: the bus has closed the connection; its last error: EACCES "
    )
    assert actor.do("publish", "k", "1") == f"error\t{errno.ENOTCONN}\t{bus.path}: not sent: not connected to the bus"


def test_gaps(daemon: StartDaemon, act: Act) -> None:
    """A program that does not read loses messages, and learns where and how many; none is lost without a notice."""
    bus = daemon(config="[limits]\nqueue_packets = 10\n")
    actor = act(bus.path)
    actor.ok("subscribe", "k")
    actor.barrier()
    client, total = bus.client(), 3000
    for number in range(total):
        client.publish(b"k", number.to_bytes(4, "little") + bytes(2000))
        if number % 100 == 0:
            client.barrier()
    client.barrier()
    received = lost = 0
    while received + lost < total:
        packet = actor.next()
        if packet.kind == "lost":
            lost += packet.count
        else:
            assert int.from_bytes(packet.payload[:4], "little") == received + lost
            received += 1
    assert lost > 0


def test_replaced_messages(bus: Daemon, act: Act) -> None:
    actor = act(bus.path)
    actor.ok("set", "order/latest")
    actor.ok("subscribe", "k")
    actor.barrier()
    client = bus.client()
    for _ in range(3000):
        client.publish(b"k", bytes(2000))
    client.barrier()
    received = replaced = 0
    while received + replaced < 3000:
        packet = actor.next()
        received += packet.kind == "message"
        replaced += packet.count
    assert replaced > 0


def test_a_full_socket(bus: Daemon, act: Act) -> None:
    """With SBUS_NONBLOCK, a publisher that the bus does not read gets EAGAIN; its event loop sends the rest when there is room again."""
    actor = act(bus.path, "n")
    actor.ok("subscribe", "last")
    actor.ok("gather", "1")
    actor.barrier()
    bus.process.send_signal(signal.SIGSTOP)
    try:
        refused = actor.do("many", "k", "10000000", "1000")
        actor.start("poll")
    finally:
        bus.process.send_signal(signal.SIGCONT)
    assert refused.startswith(f"error\t{errno.EAGAIN}\t")
    client = bus.client()
    client.publish(b"last")
    assert shown(actor.line()) == _message(b"last", b"")
    actor.ok("flush")


def test_it_reconnects(daemon: StartDaemon, act: Act) -> None:
    """After the bus has been replaced, modes and subscriptions are made again, and the program is notified."""
    bus = daemon()
    actor = act(bus.path, "rs")
    for pattern in ("k", "k", "gone", "other/*"):
        actor.ok("subscribe", pattern)
    actor.ok("unsubscribe", "gone")
    actor.ok("set", "echo/off")
    actor.ok("set", "echo/on")
    actor.ok("gather", "1")
    actor.barrier()
    bus.stop()
    assert actor.do("publish", "k", "4").startswith(f"error\t{errno.EPIPE}\t{bus.path}: not sent: ")
    assert actor.next(10).kind == "nothing"
    actor.start("poll")
    other = daemon()
    Path(bus.path).symlink_to(other.path)
    assert shown(actor.line()).kind == "reconnected"
    assert actor.barrier() == []
    with Bus.connect(other.path) as python:
        python.publish("k", "once")
        python.publish("gone", "no")
        python.publish("other/x", "too")
    first, second = actor.next(), actor.next()
    assert (first.payload, second.payload) == (b"once", b"too")
    assert first.sender is not None
    actor.ok("publish", "k", "4")
    assert actor.next().payload == _payload(0, 4)


def test_gathered_publications_survive_a_reconnection(daemon: StartDaemon, act: Act) -> None:
    """Those that publish() accepted are sent on the next connection, before later ones."""
    bus = daemon()
    actor = act(bus.path, "rn")
    actor.ok("gather", "1")
    bus.process.send_signal(signal.SIGSTOP)
    try:
        assert actor.do("many", "k", "10000000", "1000").startswith(f"error\t{errno.EAGAIN}\t")
    finally:
        bus.process.send_signal(signal.SIGKILL)
        bus.expected_status = -signal.SIGKILL
        bus.process.wait()
    assert actor.do("flush").startswith("error\t")
    actor.start("poll")
    other = daemon()
    with Bus.connect(other.path) as python, python.subscribe("k") as inbox:
        Path(bus.path).unlink()
        Path(bus.path).symlink_to(other.path)
        assert shown(actor.line()).kind == "reconnected"
        actor.ok("flush")
        assert len(_receive(inbox)) == 1000


def test_a_restart_of_the_bus_is_not_noticed(folder: Path, act: Act) -> None:
    with Manager(folder) as manager:
        manager.start()
        actor = act(manager.path)
        actor.ok("subscribe", "k")
        actor.barrier()
        manager.restart()
        actor.ok("publish", "k", "10")
        assert actor.next() == _message(b"k", _payload(0, 10))
        actor.ok("close")


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("/nowhere/bus", errno.ENOENT, "/nowhere/bus: cannot connect: No such file or directory"),
        ("/dev/fd/99", errno.EBADF, "/dev/fd/99: cannot connect: not a SEQPACKET socket"),
        ("/dev/unix/abstract", errno.EINVAL, "/dev/unix/abstract: cannot connect: not the address of a bus: Invalid argument"),
        ("/dev/unix/abstract/2f" + "00" * 200, errno.ENAMETOOLONG, "/dev/unix/abstract/2f"),
        ("/" + "x" * 107, errno.ENAMETOOLONG, "/xxx"),
        ("/" + "x" * 5000, errno.ENAMETOOLONG, "/xxx"),
        ("/dev/unix/abstract/2f002f", errno.EINVAL, "/dev/unix/abstract/2f002f: cannot connect: not the address of a bus"),
    ],
)
def test_addresses_without_a_bus(c_program: Path, address: str, error: int, words: str) -> None:
    running = LineProgram(c_program, {"SBUS_ADDRESS": address})
    running.write(b"connect\t-\n")
    line = running.line()
    assert line.startswith(f"error\t{error}\t{words}")
    assert len(line) < 400
    running.write(b"publish\tk\t1\nnext\t0\nclose\n")
    assert [running.line().split("\t")[:2] for _ in range(3)] == [["error", str(errno.ENOTCONN)], ["error", str(errno.ENOTCONN)], ["ok"]]
    running.close()


@pytest.mark.parametrize("place", ["hex", "abstract", "descriptor"])
def test_addresses(daemon: StartDaemon, act: Act, c_program: Path, place: str) -> None:
    """The forms of sbusd(8) besides a path."""
    name = b"\0c-client-%d" % os.getpid()
    abstract = f"/dev/unix/abstract/{name.hex()}"
    bus = daemon()
    if place == "hex":
        act(f"/dev/unix/abstract/{bus.path.encode().hex()}").barrier()
    elif place == "abstract":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(name.ljust(108, b"\0"))
            listener.listen()
            act(abstract)
            listener.accept()[0].close()
    else:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
            connected.connect(bus.path)
            os.set_inheritable(connected.fileno(), True)
            command = f"exec {c_program} {connected.fileno()}<&{connected.fileno()}"
            lines = "connect\t-\nsubscribe\tk\npublish\tk\t3\nnext\t30000\n"
            env = {"SBUS_ADDRESS": f"/dev/fd/{connected.fileno()}", "PATH": os.defpath}
            done = subprocess.run(
                ["bash", "-c", command], input=lines, env=env, capture_output=True, text=True, close_fds=False, check=True
            )
            assert shown(done.stdout.splitlines()[-1]) == _message(b"k", _payload(0, 3))
            again = LineProgram(c_program, env)
            again.write(b"connect\tr\n")
            assert again.line().endswith("a descriptor cannot be reconnected; leave out SBUS_RECONNECT")
            again.close()


def test_the_example_of_the_manual(bus: Daemon, tmp_path: Path) -> None:
    text = (ROOT / "man" / "sbus.h.3").read_text().partition(".Sh EXAMPLES")[2]
    source = tmp_path / "example.c"
    source.write_text(text.partition(".Bd -literal -offset indent\n")[2].partition(".Ed")[0].replace("\\e", "\\"))
    program = compile_program([source], tmp_path / "example")
    running = LineProgram(program, {"SBUS_ADDRESS": bus.path})
    client = bus.client()
    while not json.loads(client.ask(b"!/bus/members", b"k"))["members"]:
        pass
    client.publish(b"k", b"hello")
    assert running.line() == "hello"
    running.process.terminate()
    running.process.communicate()


def test_the_manual_has_each_function() -> None:
    """The public functions of the headers are those of the synopsis, with the same arguments."""
    page = (ROOT / "man" / "sbus.h.3").read_text().partition(".Sh DESCRIPTION")[0]
    page = re.sub(
        r"\.Fo (\w+)\n((?:\.Fa .*\n)+)\.Fc", lambda found: f".Fn {found[1]} " + found[2].replace(".Fa ", "").replace("\n", " "), page
    )
    listed = {name: tuple(re.findall(r'"([^"]+)"', rest)) for name, rest in re.findall(r"^\.Fn (\w+) (.*)$", page, flags=re.MULTILINE)}
    text = "".join(path.read_text() for path in sorted((INCLUDE / "sbus").glob("*.h")))
    found = dict(re.findall(r"^static inline [\w *]*?\b(sbus_\w*[a-z])\(([^)]*)\) \{", text, flags=re.MULTILINE))
    assert {name: tuple(re.split(r",\s+", arguments)) for name, arguments in found.items()} == listed


def test_pkg_config_has_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"Version: {version}\n" in (INCLUDE / "sbus.pc").read_text()
