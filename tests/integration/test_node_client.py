"""The Node client: its own tests by node's test runner, and calls between it and the Python client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbus import Bus, CallTimeout, PeerDisconnected, Request
from tests.integration.test_fair_services import FLOOD, flood
from tests.support import skips
from tests.support.daemons import Daemon, StartDaemon
from tests.support.service_processes import running_service
from tests.support.store_programs import StoreCaller
from tests.support.users import FIRST
from tools.stage import ROOT

PACKAGE = ROOT / "clients" / "node"

END_SECONDS = 300.0
"""When a run that does not end is a failure, on a machine however slow."""

SERVICE = """
import { connect } from 'sbus';
const bus = await connect();
await bus.serve('node/upper', (request) => request.text().toUpperCase());
const response = await bus.call('python/reverse', 'abc');
await bus.publish('answers/node', response.data);
console.log(`served, ${response.text()}`);
process.stdin.once('data', async () => { await bus.drain(); process.exit(0); });
"""


SHARED = """
import { connect } from 'sbus';
const bus = await connect();
const own = String(process.pid);
await bus.serve('shared', (request) => (request.text() === 'wait' ? new Promise(() => console.log('waits')) : own));
console.log('served');
"""

STREAMS = """
import { connect } from 'sbus';
const bus = await connect();
await bus.serve('node/count', async function* (request) {
  for (let number = 0; number < Number(request.text()); number += 1) yield String(number);
});
await bus.serve('node/endless', function* () {
  try {
    for (;;) yield 'x';
  } finally {
    console.log('closed');
  }
});
await bus.serve('node/wait', (request) => new Promise(() => {
  request.signal.addEventListener('abort', () => console.log(`aborted: ${request.signal.reason.code}`));
}));
console.log('served');
"""

STREAM_CALLS = """
import { connect } from 'sbus';
const bus = await connect();
let parts = 0;
for await (const part of bus.stream('python/count', '300', { window: 7 })) {
  if (part.text() !== String(parts)) throw new Error(`part ${parts} is ${part.text()}`);
  parts += 1;
}
console.log(`${parts} parts`);
for await (const part of bus.stream('python/count', '1000000000')) {
  if (part.text() === '100') break;
}
console.log('left');
const controller = new AbortController();
const call = bus.call('python/wait', '', { signal: controller.signal }).catch((error) => error.name);
process.stdin.once('data', async () => {
  controller.abort();
  console.log(await call);
  await bus.drain();
  process.exit(0);
});
"""


TURNS = """
import { connect } from 'sbus';
import { readSync, writeSync } from 'node:fs';
const bus = await connect();
// All is dropped, and counted.
const [one, two] = [await bus.subscribe('flood/', { maxBytes: 1 }), await bus.subscribe('flood/', { maxBytes: 1 })];
function block() {
  writeSync(1, 'blocked\\n');
  readSync(0, Buffer.alloc(1));
}
await bus.serve('node/block', block);
await bus.serve('node/drain', async () => {
  const draining = two.drain();
  block();
  await draining;
  return String(two.dropped);
});
await bus.serve('node/count', () => String(one.dropped));
await bus.serve('node/end', () => void bus.drain());
writeSync(1, 'served\\n');
"""


@contextmanager
def serving(address: str, **handlers: Callable[[Request], Any]) -> Iterator[None]:
    """Run a Python service of ``python/reverse``, which returns its data in reverse, and of other *handlers*."""
    ready = threading.Event()
    with Bus.connect(address) as bus:
        bus.service("python/reverse")(lambda request: request.data[::-1])
        for name, handler in handlers.items():
            bus.service(f"python/{name}")(handler)
        thread = threading.Thread(target=bus.serve, kwargs={"ready": ready.set})
        thread.start()
        try:
            assert ready.wait(END_SECONDS)
            yield
        finally:
            bus.stop_serving()
            thread.join(END_SECONDS)


@pytest.fixture(autouse=True)
def needs_node() -> None:
    """Skip the tests unless node is there."""
    skips.require_program("node", "nodejs")


def run(*command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the package."""
    return subprocess.run(command, cwd=PACKAGE, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=END_SECONDS)


def test_its_own_tests_pass() -> None:
    sbusd = json.dumps([sys.executable, "-m", "sbusd.daemon.main"])
    files = sorted(str(path) for path in (PACKAGE / "test").glob("*.test.js"))
    # Each file has a time limit of its own, so that the output says which one does not end.
    limit = f"--test-timeout={int(1_000 * END_SECONDS * 0.8)}"
    done = run("node", "--test", limit, *files, env={"SBUSD": sbusd, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert "pass 0" not in done.stdout


@pytest.fixture
def bus(daemon: StartDaemon, folder: Path) -> Daemon:
    """A bus with a stream socket."""
    return daemon("--stream-address", str(folder / "stream"))


def _program(folder: Path, text: str) -> Path:
    """Write a program that can import the client, and return it."""
    modules = folder / "node_modules"
    modules.mkdir()
    (modules / "sbus").symlink_to(PACKAGE)
    program = folder / "program.mjs"
    program.write_text(text)
    return program


def test_its_services_share_calls_with_those_in_python(bus: Daemon, folder: Path) -> None:
    env = {**os.environ, "SBUS_STREAM_ADDRESS": str(folder / "stream")}
    command = ["node", str(_program(folder, SHARED))]
    with (
        Bus.connect(bus.path) as caller,
        running_service(bus.path, shared=lambda _request: "python"),
        subprocess.Popen(command, env=env, text=True, bufsize=1, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "served\n"
        answers: set[str] = set()
        while answers != {"python", str(process.pid)}:
            answers.add(caller.call("shared", timeout=END_SECONDS).decode())
        with ThreadPoolExecutor() as threads:
            # The services take turns: one of two requests waits in Node.
            waiting = [threads.submit(_ended, bus.path), threads.submit(_ended, bus.path)]
            assert process.stdout.readline() == "waits\n"
            process.kill()
            assert {"python", "disconnected"} >= {each.result(END_SECONDS) for each in waiting} >= {"disconnected"}
        assert caller.call("shared", timeout=END_SECONDS) == b"python"


def _ended(address: str) -> str:
    """Call with the argument on which the service in Node waits; return how the call ends."""
    with Bus.connect(address) as caller:
        try:
            return caller.call("shared", "wait", timeout=END_SECONDS).decode()
        except PeerDisconnected:
            return "disconnected"


def test_it_calls_services_of_other_languages_and_serves_them(bus: Daemon, folder: Path) -> None:
    program = _program(folder, SERVICE)
    env = {**os.environ, "SBUS_STREAM_ADDRESS": str(folder / "stream")}
    with Bus.connect(bus.path) as python, serving(bus.path):
        answers = python.subscribe("answers/")
        python.ping()
        with subprocess.Popen(
            ["node", str(program)], env=env, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "served, cba\n"
            assert next(iter(answers)).payload == b"cba"
            assert python.call("node/upper", b"grow") == b"GROW"
            process.stdin.write("end\n")
            assert process.wait(END_SECONDS) == 0


@contextmanager
def _running(folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Node program until the end of the context."""
    env = {**os.environ, "SBUS_STREAM_ADDRESS": str(folder / "stream")}
    command = ["node", str(_program(folder, text))]
    with subprocess.Popen(command, env=env, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a program prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_python_takes_its_streams_and_cancels_its_requests(bus: Daemon, folder: Path) -> None:
    with _running(folder, STREAMS) as process, Bus.connect(bus.path) as caller:
        assert _line(process) == "served\n"
        assert [int(part) for part in caller.stream("node/count", "500", timeout=END_SECONDS)] == list(range(500))
        endless = caller.stream("node/endless", timeout=END_SECONDS)
        assert next(endless) == b"x"
        endless.close()
        assert _line(process) == "closed\n"
        with pytest.raises(CallTimeout):
            caller.call("node/wait", timeout=5)
        assert _line(process) == "aborted: ECANCELED\n"
        with Bus.connect(bus.path) as other:
            begun = other.stream("node/endless", timeout=END_SECONDS)
            assert next(begun) == b"x"
        # The connection has ended without a cancellation.
        assert _line(process) == "closed\n"


def test_it_takes_streams_of_python_and_cancels_requests_there(bus: Daemon, folder: Path) -> None:
    ended: list[int] = []
    begun, cancelled = threading.Event(), threading.Event()

    def count(request: Request) -> Iterator[str]:
        number = 0
        try:
            for number in range(int(request.data)):
                yield f"{number}"
        finally:
            ended.append(number)

    def wait(request: Request) -> None:
        begun.set()
        if request.cancelled.wait(END_SECONDS):
            cancelled.set()

    with serving(bus.path, count=count, wait=wait), _running(folder, STREAM_CALLS) as process:
        assert _line(process) == "300 parts\n"
        assert _line(process) == "left\n"
        assert begun.wait(END_SECONDS)
        assert process.stdin is not None
        process.stdin.write("abort\n")
        assert _line(process) == "AbortError\n"
        assert cancelled.wait(END_SECONDS)
        assert process.wait(END_SECONDS) == 0
    # The service runs one handler at a time, so the second stream may end after the call.
    assert ended[0] == 299
    assert 100 <= ended[1] < 150, "the window is 16 parts"


@pytest.mark.usefixtures("needs_root")
def test_the_users_who_call_it_take_turns(bus: Daemon, folder: Path) -> None:
    with (
        _running(folder, TURNS) as process,
        StoreCaller(bus.path, FIRST) as caller,
        Bus.connect(bus.path) as blocker,
        ThreadPoolExecutor() as threads,
    ):
        assert process.stdin is not None
        assert _line(process) == "served\n"
        for flooded, command in enumerate(("node/block", "node/drain", "node/block")):
            blocked = threads.submit(blocker.call, command, timeout=END_SECONDS)
            assert _line(process) == "blocked\n"
            flood(bus, b"flood/x")
            with Bus.connect(bus.path) as observer, observer.subscribe("rpc/node/count") as seen:
                count = threads.submit(caller.bus.call, "node/count", timeout=END_SECONDS)
                seen.receive(END_SECONDS)  # the request is on its way
            process.stdin.write("x")
            process.stdin.flush()
            assert int(count.result(END_SECONDS)) - flooded * FLOOD < FLOOD / 2, "only what is in the socket, some thousand packets"
            result = blocked.result(END_SECONDS)
            if command == "node/drain":
                assert int(result) == 2 * FLOOD, "drain has waited for all that the bus had queued"
        blocker.call("node/end", timeout=END_SECONDS)
        assert process.wait(END_SECONDS) == 0
