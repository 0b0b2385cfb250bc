"""The programs of examples/ on a real bus: each does what its first lines say."""

from __future__ import annotations

import getpass
import hashlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from sbusd.client import Bus
from sbusd.protocol import controls
from tests.support.daemons import Daemon
from tests.support.wire import RawClient
from tools.stage import ROOT

EXAMPLES = ROOT / "examples"

TIMEOUT_SECONDS = 60.0
"""When output that has not come is a failure; no test waits that long when it passes."""

MAX_LINES = 40

_PIPE = subprocess.PIPE


@pytest.fixture
def env(bus: Daemon, tmp_path: Path) -> dict[str, str]:
    """The environment of an example: the bus, this project, and a sbusctl on the path."""
    program = tmp_path / "bin" / "sbusctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sbusd.ctl.main "$@"\n')
    program.chmod(0o755)
    return {"SBUS_ADDRESS": bus.path, "PYTHONPATH": str(ROOT), "PATH": f"{program.parent}:{os.defpath}", "LANG": "C.UTF-8"}


@contextmanager
def _running(env: dict[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command*; it and what it started are killed at the end."""
    with subprocess.Popen(command, stdin=_PIPE, stdout=_PIPE, env=env, bufsize=0, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)


def _python(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a Python example."""
    return (sys.executable, str(EXAMPLES / name), *arguments)


def _line(pipe: IO[bytes] | None) -> str:
    """Return the next line of *pipe*, which is unbuffered."""
    assert pipe is not None
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], TIMEOUT_SECONDS)
        assert ready, f"nothing follows {data!r}"
        byte = os.read(pipe.fileno(), 1)
        assert byte, f"the program ended after {data!r}"
        data += byte
    return data.decode().rstrip("\n")


def _type(process: subprocess.Popen[bytes], line: str) -> None:
    """Type a line into the standard input of *process*."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())


def _wait_for_recipients(client: RawClient, key: bytes, count: int) -> None:
    """Ask the bus until *count* connections would receive a message with *key*."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(json.loads(client.ask(controls.TRACE, key))["recipients"]) != count:
        assert time.monotonic() < deadline, f"not {count} subscribers of {key!r}"
        time.sleep(0.01)


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until *process* accepts connections at *port*."""
    while True:
        assert process.poll() is None
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)


def test_each_example_is_short_listed_and_says_how_to_run_it() -> None:
    listed = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sh", ".c"}}
    assert files == listed
    tests = Path(__file__).read_text()
    for name in files:
        lines = (EXAMPLES / name).read_text().splitlines()
        assert 10 <= len(lines) <= MAX_LINES, name
        assert f"examples/{name}" in "\n".join(lines[:4]), f"{name} does not say how to run it"
        assert f'"{name}"' in tests, f"{name} has no test"


@pytest.mark.parametrize("other", ["chat.sh", "chat.py"])
def test_chat(bus: Daemon, env: dict[str, str], other: str) -> None:
    """Two people chat; one with the shell, or both with Python."""
    command = _python(other) if other.endswith(".py") else ("sh", str(EXAMPLES / other))
    with _running(env, *_python("chat.py")) as one, _running(env, *command) as two:
        _wait_for_recipients(bus.client(), b"chat/x", 2)
        _type(one, "hello")
        expected = f"chat/{getpass.getuser()}\thello"
        assert _line(one.stdout) == _line(two.stdout) == expected
        for process in (two, one):
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(TIMEOUT_SECONDS) == 0


def test_chat_from_the_shell(bus: Daemon, env: dict[str, str]) -> None:
    with _running(env, "sh", str(EXAMPLES / "chat.sh")) as chat:
        _wait_for_recipients(bus.client(), b"chat/x", 1)
        assert chat.stdin is not None
        _type(chat, "hello")
        chat.stdin.close()
        assert _line(chat.stdout) == f"chat/{getpass.getuser()}\thello"


def test_rpc(env: dict[str, str]) -> None:
    def call(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(_python("rpc_call.py", text), env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)

    done = call("one")
    assert (done.returncode, done.stderr) == (1, "rpc_call: no service: start rpc_service.py first\n")
    with _running(env, *_python("rpc_service.py")) as service:
        assert _line(service.stdout) == "ready"
        assert call("three short words").stdout == "3 words\n"
        assert _line(service.stdout) == f"user {os.getuid()} sent 17 characters"
        with Bus.connect(env["SBUS_ADDRESS"]) as bus, pytest.raises(Exception, match="the text is not UTF-8"):
            bus.call("text/count", b"\xff", timeout=TIMEOUT_SECONDS)


def test_dashboard(bus: Daemon, env: dict[str, str]) -> None:
    with _running(env, *_python("dashboard.py", "0.01")) as dashboard, Bus.connect(bus.path) as sensors:
        _wait_for_recipients(bus.client(), b"sensor/kitchen", 1)
        sensors.publish("sensor/attic", "19")
        for value in range(5_000):
            sensors.publish("sensor/kitchen", f"{value}")
        sensors.publish("sensor/cellar", "12")
        while not (shown := _line(dashboard.stdout)).startswith("sensor/attic=19 sensor/cellar=12 sensor/kitchen=4999 ("):
            assert "lost" not in shown
    assert re.search(r"\(\d+ older values skipped\)$", shown)


def test_transfer(env: dict[str, str], tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(1 << 20) * 8)
    send = _python("transfer_send.py", str(source))
    done = subprocess.run(send, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (1, "transfer_send: no receiver: start transfer_receive.py first\n")
    with _running(env, *_python("transfer_receive.py", str(target))) as receiver:
        assert _line(receiver.stdout) == "ready"
        subprocess.run(send, env=env, timeout=TIMEOUT_SECONDS, check=True)
        assert _line(receiver.stdout) == f"received {8 << 20} bytes"
        assert receiver.wait(TIMEOUT_SECONDS) == 0
    assert target.read_bytes() == source.read_bytes()


def test_a_transfer_that_lost_a_message_fails(bus: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    command = _python("transfer_receive.py", str(tmp_path / "target"))
    with _running(env, *command) as receiver, Bus.connect(bus.path) as sender:
        assert _line(receiver.stdout) == "ready"
        sender.publish("transfer/data", b"part")
        sender.publish("transfer/end", "8")
        assert receiver.wait(TIMEOUT_SECONDS) == 1


def test_presence(bus: Daemon, env: dict[str, str]) -> None:
    with _running(env, *_python("presence.py")) as watcher:
        assert _line(watcher.stdout) == "watching"
        with Bus.connect(bus.path) as client, client.subscribe("chat/"):
            pass
        who = f"uid={os.getuid()} pid={os.getpid()}"
        expected = [f"connect {who}", f"subscribe {who} chat/", f"disconnect {who}"]
        own = f"pid={watcher.pid}"
        seen: list[str] = []
        while not seen or not seen[-1].startswith("disconnect"):
            seen.append(_line(watcher.stdout))
        assert [line for line in seen if own not in line and not line.startswith("unsubscribe")] == expected


def test_web_bridge(bus: Daemon, env: dict[str, str]) -> None:
    pytest.importorskip("aiohttp")
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    with _running(env, *_python("web_bridge.py", str(port))) as bridge:
        _wait_for_port(port, bridge)
        with closing(connection), Bus.connect(bus.path) as publisher:
            connection.request("GET", "/")
            assert b"EventSource('events')" in connection.getresponse().read()
            connection.request("GET", "/events")
            response = connection.getresponse()
            assert response.getheader("Content-Type") == "text/event-stream"
            publisher.publish("web/news", "it works")
            assert json.loads(response.readline().removeprefix(b"data: ")) == {"key": "web/news", "payload": "it works"}


def test_work(bus: Daemon, env: dict[str, str]) -> None:
    jobs = [f"job{number}" for number in range(20)]
    command = _python("work_dispatch.py", *jobs)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (1, "work_dispatch: 20 jobs are left: no worker serves them\n")
    with _running(env, *_python("work_service.py")) as one, _running(env, *_python("work_service.py")) as two:
        assert _line(one.stdout) == _line(two.stdout) == "ready"
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
        results = sorted(line.split("\t") for line in done.stdout.splitlines())
        assert [result[:2] for result in results] == sorted([job, hashlib.sha256(job.encode()).hexdigest()] for job in jobs)
        assert {result[2] for result in results} == {f"worker {one.pid}", f"worker {two.pid}"}


def test_c_client(bus: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the compiler that built the bus is gone"
    program = str(tmp_path / "client")
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-o", program, str(EXAMPLES / "client.c")], check=True)
    with _running(env, program, "chat/") as client, Bus.connect(bus.path) as publisher:
        _wait_for_recipients(bus.client(), b"chat/c", 1)
        publisher.publish("chat/c", "hello")
        assert _line(client.stdout) == "chat/c\thello"
    with _running(env, program, "!/cred//1//") as client:
        assert _line(client.stdout).startswith("from the bus: ")
