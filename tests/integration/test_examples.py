"""The programs of examples/ on a real bus: each does what its first lines say."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import json
import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from sbus import Bus, Message
from sbus.protocol import controls
from tests.support.blob_programs import BlobProgram
from tests.support.daemons import Daemon
from tests.support.free_ports import free_port
from tests.support.store_programs import BUS_RIGHTS, StoreProgram
from tests.support.users import FIRST
from tests.support.wire import RawClient, error_code
from tools.stage import ROOT

EXAMPLES = ROOT / "examples"

TIMEOUT_SECONDS = 60.0
"""When output that has not come is a failure; no test waits that long when it passes."""

MAX_LINES = {".py": 45, ".sh": 45, ".c": 70}
"""By the ending of the name."""

PROGRAMS = {
    ("chat.py",): 37,
    ("queue_worker.py",): 11,
    ("queue_send.py",): 11,
    ("pull_jobs.py", "pull_worker.py"): 26,
    ("work_service.py", "work_dispatch.py"): 31,
    ("dashboard.py",): 16,
    ("sensor.py", "dashboard.py"): 30,
    ("rpc_service.py", "rpc_call.py"): 53,
    ("transfer_send.py", "transfer_receive.py"): 35,
    ("blob_send.py",): 9,
    ("store_send.py",): 11,
    ("store_worker.py",): 11,
    ("last_values.py",): 16,
    ("durable_reader.py",): 9,
    ("blob_receive.py",): 9,
    ("supervise.py",): 14,
    ("web_bridge.py",): 31,
    ("threads.py",): 31,
    ("processes.py",): 31,
}
"""The lines that each program has fewer of, blank ones not counted: a longer one would show that the client has become clumsy."""

_PIPE = subprocess.PIPE


BUS_CONFIGURATION = BUS_RIGHTS
"""This user may run the store."""


SHARES_BUS = True


@pytest.fixture
def env(bus: Daemon, tmp_path: Path) -> dict[str, str]:
    """The environment of an example: the bus, this project, and a sbusctl on the path."""
    program = tmp_path / "bin" / "sbusctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sbusctl.main "$@"\n')
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
    here = Path(__file__)
    tests = here.read_text().split("\ndef ", 1)[1] + here.with_name("test_dbus_feeds.py").read_text()
    for name in files:
        lines = (EXAMPLES / name).read_text().splitlines()
        assert len(lines) <= MAX_LINES[Path(name).suffix], name
        assert f"examples/{name}" in "\n".join(lines[:4]), f"{name} does not say how to run it"
        assert f'"{name}"' in tests or f'"examples/{name}"' in tests, f"{name} has no test"


@pytest.mark.parametrize("names", PROGRAMS, ids="+".join)
def test_programs_are_short(names: tuple[str, ...]) -> None:
    lines = [line for name in names for line in (EXAMPLES / name).read_text().splitlines() if line.strip()]
    assert len(lines) < PROGRAMS[names]


@pytest.mark.parametrize("other", ["chat.sh", "chat.py"])
def test_chat(bus: Daemon, env: dict[str, str], other: str) -> None:
    """Two people chat; one with the shell, or both with Python."""
    command = _python(other) if other.endswith(".py") else ("sh", str(EXAMPLES / other))
    with _running(env, *_python("chat.py")) as one, _running(env, *command) as two:
        _wait_for_recipients(bus.client(), b"chat/x", 2)
        _type(one, "hello")
        assert _line(one.stdout) == f"{os.getuid()}\troom\thello"
        assert _line(two.stdout) == (f"{os.getuid()}\troom\thello" if other.endswith(".py") else "chat/room\thello")
        for process in (two, one):
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(TIMEOUT_SECONDS) == 0


def test_chat_names_senders_and_has_private_messages(bus: Daemon, env: dict[str, str]) -> None:
    uid = os.getuid()
    with _running(env, *_python("chat.py")) as one, Bus.connect(bus.path) as other:
        _wait_for_recipients(bus.client(), b"chat/x", 1)
        _type(one, "/who")
        assert _line(one.stdout) == f"here\t{uid}"
        with other.subscribe("chat/", f"!/cred//{uid}//chat") as messages:
            _type(one, f"/msg {uid} for you alone")
            assert _line(one.stdout) == f"{uid}\tprivate\tfor you alone"
            message = messages.receive(TIMEOUT_SECONDS)
            assert isinstance(message, Message)
            assert (message.key, message.text) == (f"!/cred//{uid}//chat", "for you alone")
        other.publish("chat/0", b"\x1b[31m\xff")
        assert _line(one.stdout) == f"{uid}\troom\t[31m\ufffd"


@pytest.mark.usefixtures("needs_root")
def test_chat_shows_which_user_sent_a_line(bus: Daemon, env: dict[str, str]) -> None:
    """Another user cannot write as this one. It can write to the private key of this user, and it cannot read from it."""
    private = b"!/cred//%d//chat" % os.getuid()
    with _running(env, *_python("chat.py")) as chat:
        _wait_for_recipients(bus.client(), b"chat/x", 1)
        other_user = bus.client(FIRST)
        other_user.publish(b"chat/%d" % os.getuid(), b"I am root")
        other_user.publish(private, b"for you")
        assert _line(chat.stdout) == f"{FIRST.uid}\troom\tI am root"
        assert _line(chat.stdout) == f"{FIRST.uid}\tprivate\tfor you"
        other_user.subscribe(private)
        assert error_code(other_user.receive()) == "EACCES"


def test_chat_from_the_shell(bus: Daemon, env: dict[str, str]) -> None:
    with _running(env, "sh", str(EXAMPLES / "chat.sh")) as chat:
        _wait_for_recipients(bus.client(), b"chat/x", 1)
        assert chat.stdin is not None
        _type(chat, "hello")
        # The end of its input ends its subscriber too, perhaps before that has printed what it received.
        assert _line(chat.stdout) == f"chat/{getpass.getuser()}\thello"
        chat.stdin.close()
        assert chat.wait(TIMEOUT_SECONDS) == 0


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
    """A sensor that was read before the dashboard starts is shown at once. Of one that is read often, the newest value is shown."""
    with _running(env, *_python("sensor.py", "attic")) as attic, Bus.connect(bus.path) as sensors:
        observer = sensors.subscribe("sensor/attic")
        _type(attic, "19")
        observer.receive(TIMEOUT_SECONDS)
        _wait_for_recipients(bus.client(), b"rpc/sensor/value", 1)
        with _running(env, *_python("dashboard.py")) as dashboard:
            assert _line(dashboard.stdout) == "{'sensor/attic': '19'}"
            for value in range(5_000):
                sensors.publish("sensor/kitchen", f"{value}")
            while _line(dashboard.stdout) != "{'sensor/attic': '19', 'sensor/kitchen': '4999'}":
                pass
            _type(attic, "20")
            while _line(dashboard.stdout) != "{'sensor/attic': '20', 'sensor/kitchen': '4999'}":
                pass
        assert attic.stdin is not None
        attic.stdin.close()
        assert attic.wait(TIMEOUT_SECONDS) == 0


def test_transfer(env: dict[str, str], tmp_path: Path) -> None:
    source, target, user = tmp_path / "source", tmp_path / "target", getpass.getuser()
    source.write_bytes(os.urandom(1 << 20) * 8)
    receive = _python("transfer_receive.py", str(target), user)
    done = subprocess.run(receive, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (1, f"transfer_receive: {user} offers no file: start transfer_send.py first\n")
    with _running(env, *_python("transfer_send.py", str(source), user)) as sender:
        assert _line(sender.stdout) == "ready"
        done = subprocess.run(receive, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
        assert (done.stdout, done.stderr) == (f"received {8 << 20} bytes\n", "")
        assert sender.wait(TIMEOUT_SECONDS) == 0
    assert target.read_bytes() == source.read_bytes()


def test_a_transfer_is_for_one_user_and_fails_if_its_sender_ends(env: dict[str, str], tmp_path: Path) -> None:
    source, target, user = tmp_path / "source", tmp_path / "target", getpass.getuser()
    source.write_bytes(b"secret")
    receive = _python("transfer_receive.py", str(target), user)
    other = next(entry.pw_name for entry in pwd.getpwall() if entry.pw_uid != os.getuid())
    with _running(env, *_python("transfer_send.py", str(source), other)) as sender:
        assert _line(sender.stdout) == "ready"
        done = subprocess.run(receive, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("transfer_receive: the file is not complete: 'transfer/read' failed")
    assert target.read_bytes() == b""


def test_a_large_message(bus: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"file")
    with BlobProgram(tmp_path, bus.path), _running(env, *_python("blob_receive.py")) as receiver:
        assert _line(receiver.stdout) == "ready"
        for words, said in (((), "50000000 bytes 00000000"), ((str(tmp_path / "file"),), "4 bytes 66696c65")):
            done = subprocess.run(_python("blob_send.py", *words), env=env, capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stderr, len(done.stdout)) == (0, "", 27)
            assert _line(receiver.stdout) == f"large/data {said}"


STREAMS = """
[[stream]]
name = "mail"
keys = ["mail/"]
[[queue]]
name = "mail"
stream = "mail"
[[stream]]
name = "sensors"
keys = ["sensor/"]
last = 1
"""


@pytest.fixture
def store(bus: Daemon, tmp_path: Path) -> Iterator[StoreProgram]:
    """A store on the bus with the streams of the examples."""
    with StoreProgram(tmp_path, bus.path, STREAMS) as made:
        yield made


def test_stored_jobs(store: StoreProgram, env: dict[str, str]) -> None:
    """A worker is killed; the other one does all jobs. A reader sees those that are left, each once."""
    done = _send_jobs(env, "store_send.py")
    assert (done.returncode, done.stderr) == (0, "")
    for lines in (len(JOBS), 0):
        read = subprocess.run(_python("durable_reader.py", "me"), env=env, capture_output=True, text=True, timeout=60, check=True)
        assert len(read.stdout.splitlines()) == lines
    with _running(env, *_python("store_worker.py")) as one:
        lines_of_one = [_line(one.stdout)]
        one.kill()
        assert one.stdout is not None
        lines_of_one += one.stdout.read().decode().splitlines()
    with _running(env, *_python("store_worker.py")) as two:
        found = {*lines_of_one}
        while len(found) < len(JOBS):
            found.add(_line(two.stdout))
    assert sorted(line.split("\t") for line in found) == _digests(JOBS)


def test_last_values(store: StoreProgram, bus: Daemon, env: dict[str, str]) -> None:
    with Bus.connect(bus.path) as sensors:
        sensors.store.put("sensor/attic", "19")
        with _running(env, *_python("last_values.py")) as shown:
            assert _line(shown.stdout) == "{'sensor/attic': '19'}"
            sensors.publish("sensor/attic", "20")
            assert _line(shown.stdout) == "{'sensor/attic': '20'}"


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


def test_supervise(bus: Daemon, env: dict[str, str]) -> None:
    """A command is started again when its process is killed, and when it only leaves the bus."""
    code = "from sbus import Bus; bus = Bus.connect(); print('up', flush=True); next(iter(bus.subscribe('leave')))"
    code += "; bus.close(); input()"
    with _running(env, *_python("supervise.py", sys.executable, "-c", code)) as supervisor, Bus.connect(bus.path) as client:
        for _ in range(2):
            assert _line(supervisor.stdout) == "up"
            _wait_for_recipients(bus.client(), b"leave", 1)
            os.kill(client.members("leave")[0].pid, signal.SIGKILL)
        assert _line(supervisor.stdout) == "up"
        _wait_for_recipients(bus.client(), b"leave", 1)
        client.publish("leave")
        assert _line(supervisor.stdout) == "up"


def test_web_bridge(bus: Daemon, env: dict[str, str]) -> None:
    aiohttp = pytest.importorskip("aiohttp")
    url, origin = f"http://127.0.0.1:{(port := free_port())}", "http://localhost:8000"

    async def use() -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/events", headers={"Origin": origin}) as browser:
            async with session.post(f"{url}/web/news", data="it works") as response:
                assert await response.json() == {"recipients": 1}
            assert await browser.receive_json(timeout=TIMEOUT_SECONDS) == {"key": "web/news", "payload": "it works"}
            await browser.close()
            for method, path in (("GET", "/events"), ("POST", "/web/news")):
                async with session.request(method, url + path, headers={"Origin": "http://elsewhere.example"}) as response:
                    assert response.status == 403

    with _running(env, *_python("web_bridge.py", str(port), origin)) as bridge:
        _wait_for_port(port, bridge)
        asyncio.run(use())
        _wait_for_recipients(bus.client(), b"web/news", 0)


def _digests(jobs: Iterable[str]) -> list[list[str]]:
    """Return what the workers say about *jobs*, in the order of the jobs' names."""
    return sorted([job, hashlib.sha256(job.encode()).hexdigest()] for job in jobs)


JOBS = [f"job{number}" for number in range(20)]


def _send_jobs(env: dict[str, str], name: str) -> subprocess.CompletedProcess[str]:
    """Run a program that gets the jobs on its standard input."""
    text = "".join(f"{job}\n" for job in JOBS)
    return subprocess.run(_python(name), env=env, input=text, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)


def test_queue(env: dict[str, str]) -> None:
    done = _send_jobs(env, "queue_send.py")
    assert (done.returncode, done.stderr) == (1, "queue_send: no worker is running: start queue_worker.py first\n")
    with _running(env, *_python("queue_worker.py")) as one, _running(env, *_python("queue_worker.py")) as two:
        assert _line(one.stdout) == _line(two.stdout) == "ready"
        done = _send_jobs(env, "queue_send.py")
        assert (done.returncode, done.stderr) == (0, "")
        lines: list[str] = []
        while len(lines) < len(JOBS):
            ready, _, _ = select.select([pipe for pipe in (one.stdout, two.stdout) if pipe], [], [], TIMEOUT_SECONDS)
            assert ready, f"only {lines}"
            lines += [_line(pipe) for pipe in ready]
    assert sorted(line.split("\t") for line in lines) == _digests(JOBS)


def test_pull(env: dict[str, str]) -> None:
    """Two workers ask for jobs; all of them end when no job is left."""
    with _running(env, *_python("pull_jobs.py")) as source:
        assert _line(source.stdout) == "ready"
        with _running(env, *_python("pull_worker.py")) as one, _running(env, *_python("pull_worker.py")) as two:
            for job in JOBS:
                _type(source, job)
            assert source.stdin is not None
            source.stdin.close()
            lines = [line for worker in (one, two) for line in worker.communicate(timeout=TIMEOUT_SECONDS)[0].decode().splitlines()]
            assert (one.returncode, two.returncode, source.wait(TIMEOUT_SECONDS)) == (0, 0, 0)
    assert sorted(line.split("\t") for line in lines) == _digests(JOBS)


def test_work(env: dict[str, str]) -> None:
    done = _send_jobs(env, "work_dispatch.py")
    assert (done.returncode, done.stderr) == (1, "work_dispatch: 20 jobs are left: no worker is running\n")
    with _running(env, *_python("work_service.py")) as one, _running(env, *_python("work_service.py")) as two:
        assert _line(one.stdout) == _line(two.stdout) == "ready"
        done = _send_jobs(env, "work_dispatch.py")
        results = sorted(line.split("\t") for line in done.stdout.splitlines())
        assert [result[:2] for result in results] == _digests(JOBS)
        assert {result[2] for result in results} == {f"{one.pid}", f"{two.pid}"}


def test_work_of_a_worker_that_ends_is_done_by_another(bus: Daemon, env: dict[str, str]) -> None:
    """One worker is killed by its first job. A subscriber to every key is not a worker."""
    code = "import os; from sbus import Bus; bus = Bus.connect(); bus.service('task/sha256')(lambda _: os._exit(1)); bus.serve()"
    with _running(env, sys.executable, "-c", code), _running(env, *_python("work_service.py")) as worker, Bus.connect(bus.path) as listener:
        listener.subscribe("")
        _wait_for_recipients(bus.client(), b"rpc/task/sha256", 3)
        done = _send_jobs(env, "work_dispatch.py")
        assert (done.returncode, done.stderr) == (0, "")
        results = sorted(line.split("\t") for line in done.stdout.splitlines())
        assert results == [[*result, f"{worker.pid}"] for result in _digests(JOBS)]


def test_threads(bus: Daemon, env: dict[str, str]) -> None:
    with _running(env, *_python("threads.py")) as program, Bus.connect(bus.path) as client, client.subscribe("sha256/") as digests:
        assert _line(program.stdout) == "ready"
        for job in JOBS:
            client.publish(f"hash/{job}", job)
        received = [digests.receive(TIMEOUT_SECONDS) for _ in JOBS]
        assert sorted([item.key.removeprefix("sha256/"), item.text] for item in received if isinstance(item, Message)) == _digests(JOBS)


def test_processes(env: dict[str, str], tmp_path: Path) -> None:
    for job in JOBS:
        (tmp_path / job).write_text(job)
    command = _python("processes.py", *(str(tmp_path / job) for job in JOBS))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
    assert sorted([Path(line.split()[1]).name, line.split()[0]] for line in done.stdout.splitlines()) == _digests(JOBS)


def _compiled(name: str, folder: Path) -> str:
    """Return the program of an example in C."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the compiler that built the bus is gone"
    program = str(folder / Path(name).stem)
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/clients/c", "-o", program, str(EXAMPLES / name)], check=True)
    return program


def test_c_stream(bus: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    service, caller = _compiled("stream_service.c", tmp_path), _compiled("stream_call.c", tmp_path)
    with _running(env, service):
        _wait_for_recipients(bus.client(), b"rpc/count", 1)
        done = subprocess.run([caller, "100"], env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
    assert done.stdout == "".join(f"{number}\n" for number in range(100))


def test_c_client(bus: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    program = _compiled("client.c", tmp_path)
    with _running(env, program, "chat/") as client, Bus.connect(bus.path) as publisher:
        _wait_for_recipients(bus.client(), b"chat/c", 1)
        publisher.publish("chat/c", "hello")
        assert _line(client.stdout) == "chat/c\thello"
    with _running(env, program, "!/cred//1//") as client:
        assert _line(client.stdout).startswith("from the bus: ")
