"""Hosts for tests of the relay: a Redis and a relay program each, with clients that use plain Redis commands."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import select
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import redis

from tests.support import skips
from tests.support.forked_programs import StartedProgram, start_program
from tests.support.users import User, command_as
from tools.stage import ROOT, Stage

T = TypeVar("T")

WAIT_SECONDS = 300.0
"""Timeout of every wait. A test that passes takes far less, even on a slow machine."""

ENV = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}


_PORTS = itertools.count(20_000)
"""Ports for :func:`free_address`."""


def require_redis() -> None:
    """Skip the test unless Redis is installed."""
    skips.require_program("redis-server", "redis-server")
    skips.require_program("redis-cli", "redis-tools")


def wait_for(found: Callable[[], T | None], what: str, seconds: float = WAIT_SECONDS) -> T:
    """Wait until *found* returns a true value, and return it; fail after *seconds*."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, f"timed out waiting for: {what}"
        time.sleep(0.01)
    return value


class RedisServer:
    """A redis-server on a Unix socket, which writes everything to the disk before it responds."""

    def __init__(self, folder: Path, *, netns: str = "") -> None:
        require_redis()
        self.folder = folder
        self.path = folder / "redis.sock"
        self._netns = ["ip", "netns", "exec", netns] if netns else []
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it with its existing data; return when it responds."""
        options = {
            "port": "0",
            "unixsocket": str(self.path),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "daemonize": "no",
            "loglevel": "warning",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen([*self._netns, "redis-server", *words], stdout=log, stderr=log, env=ENV, cwd="/")
        wait_for(self._answers, f"Redis in {self.folder}")

    def client(self) -> Any:
        """Return a new client; the types of redis-py are wrong for its results."""
        return redis.Redis(unix_socket_path=str(self.path), socket_timeout=WAIT_SECONDS)

    def kill(self) -> None:
        """Kill it, like a power failure."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT_SECONDS)
            self.process = None

    def _answers(self) -> bool:
        """Return whether it has loaded its data and responds."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


class RelayProgram:
    """A relay program with its configuration file and its log."""

    def __init__(
        self,
        folder: Path,
        twin: int,
        server: RedisServer,
        settings: str = "",
        *,
        peers: str = "",
        netns: str = "",
        options: Sequence[str] = (),
    ) -> None:
        """*settings* are lines of relay.toml before its tables, *peers* the tables."""
        self.twin = twin
        self.folder = folder
        self.server = server
        self.file = folder / f"relay-{uuid.uuid4().hex[:8]}.toml"
        self.errors = self.file.with_suffix(".stderr")
        self.write(settings, peers)
        self._netns = ["ip", "netns", "exec", netns] if netns else []
        self._options = options
        self._user: tuple[User, Stage] | None = None
        self.process: StartedProgram | None = None
        self.listen = ""

    def run_as(self, user: User, stage: Stage) -> None:
        """Run it as *user* from the next start on; the user gets access to its Redis, and a copy of each key."""
        self._user = (user, stage)
        self.server.path.chmod(0o777)
        text = self.file.read_text()
        for name in re.findall(r'key_file = "(.+)"', text):
            copy = self.folder / f"{Path(name).name}-{user.uid}"
            shutil.copy(name, copy)
            os.chown(copy, user.uid, user.gid)
            text = text.replace(f'"{name}"', f'"{copy}"')
        self.file.write_text(text)

    def write(self, settings: str, peers: str) -> None:
        """Write the configuration file for the next start."""
        head = f'twin = {self.twin}\nredis = "{self.server.path}"\nlease = "1s"\n'
        if "bus =" not in settings:
            head += 'bus = ""\n'
        if "retry_interval" not in settings:
            head += 'retry_interval = "200ms"\n'
        self.file.write_text(f"{head}{settings}\n{peers}\n")

    def start(self) -> RelayProgram:
        """Start it; return when it is ready."""
        notify = self.folder / f"notify-{uuid.uuid4().hex[:8]}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, self.errors.open("ab") as stderr:
            manager.bind(str(notify))
            notify.chmod(0o777)
            self.process = self._start(stderr.fileno(), {"NOTIFY_SOCKET": str(notify)})
            end = time.monotonic() + WAIT_SECONDS
            while not self.listen:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < end, self.log()
                if select.select([manager], [], [], 0.1)[0]:
                    state = manager.recv(4096).decode()
                    if "READY=1" in state:
                        self.listen = state.split("listening on ")[1]
        notify.unlink()
        return self

    def _start(self, stderr: int, more: Mapping[str, str]) -> StartedProgram:
        """Start the process with *more* in its environment."""
        module, options, arguments = "sbus_services.relay.main", ("-W", "error"), ("-C", str(self.file), *self._options)
        if self._user is None:
            env = {**ENV, **more}
            later = ("sbus_services.relay.sender", "sbus_services.relay.service")
            return start_program(
                module, *arguments, env=env, stdout=stderr, stderr=stderr, options=options, prefix=self._netns, imports=later
            )
        user, stage = self._user
        return subprocess.Popen(
            command_as(user, [*self._netns, stage.python, *options, "-m", module, *arguments]),
            env={**stage.env, **more},
            cwd="/",
            stderr=stderr,
            stdout=stderr,
        )

    def log(self) -> str:
        """Return its log."""
        return self.errors.read_text(errors="replace")

    def wait_logged(self, words: str) -> str:
        """Wait until it has logged *words*; return its log."""
        return wait_for(lambda: self.log() if words in self.log() else None, f"{words!r} in the log of host {self.twin}: {self.log()}")

    def kill(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT_SECONDS)
            self.process = None
            self.listen = ""

    def stop(self) -> int:
        """Stop it as systemd does; return its status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(WAIT_SECONDS)
        self.process = None
        self.listen = ""
        return status


class Host:
    """A host: a Redis with a relay."""

    def __init__(self, folder: Path, twin: int, settings: str = "", *, netns: str = "", options: Sequence[str] = ()) -> None:
        self.folder = folder / f"twin-{twin}"
        self.folder.mkdir()
        self.twin = twin
        self.server = RedisServer(self.folder, netns=netns)
        self.redis = self.server.client()
        self.settings = settings
        self.netns = netns
        self.relay = RelayProgram(self.folder, twin, self.server, settings, netns=netns, options=options)

    def close(self) -> None:
        """Kill both."""
        self.relay.kill()
        self.redis.close()
        self.server.kill()

    def send(self, cmd: str, *dst: int, dat: bytes = b"", **members: Any) -> str:
        """Push a request as a client does; return the return queue."""
        ret = members.setdefault("ret", str(uuid.uuid4()))
        self.redis.rpush("msgbus.system.local", json.dumps(request(cmd, *dst, dat=dat, **members)))
        return str(ret)

    def receive(self, queue: str, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """Return the next message of *queue*; fail if none arrives in time."""
        found = self.redis.blpop([queue], seconds)
        assert found is not None, f"nothing in {queue}; log of host {self.twin}: {self.relay.log()}"
        value: dict[str, Any] = json.loads(found[1])
        return value

    def reply(self, asked: Mapping[str, Any], dat: bytes = b"", **members: Any) -> None:
        """Respond to *asked* as an application does."""
        self.redis.rpush(asked["ret"], json.dumps(answer_to(asked, dat, **members)))

    def counters(self) -> dict[str, int]:
        """Return the counters of the relay."""
        return {name.decode(): int(value) for name, value in self.redis.hgetall("msgbus.system.relay.counters").items()}

    def wait_counted(self, name: str, number: int = 1) -> None:
        """Wait until the counter *name* is at least *number*."""
        wait_for(lambda: self.counters().get(name, 0) >= number, f"{name} to be {number}: {self.counters()} {self.relay.log()}")

    def assert_empty(self) -> None:
        """Wait until every queue of the relay is empty.

        A client may receive its response before the other host has recorded the delivery.
        """

        def left() -> list[bytes]:
            return [key for key in self.redis.keys("msgbus.*") if is_transient(key)]

        wait_for(lambda: not left(), f"host {self.twin} to have no messages in progress")


def is_transient(key: bytes) -> bool:
    """Return whether *key* belongs to a message that is in progress."""
    name = key.decode().removeprefix("msgbus.system.").removeprefix("relay.")
    return name.startswith(
        (
            *("local", "remote", "reply", "abandoned", "backlog", "retry:", "sending:", "taken:", "message:", "deadlines", "vetted"),
            *("open:", "answers:"),
        )
    )


def request(cmd: str, *dst: int, dat: bytes = b"", **members: Any) -> dict[str, Any]:
    """Return a request in the format of the founding document, with other *members*; ``try_`` is ``try``."""
    if "try_" in members:
        members["try"] = members.pop("try_")
    made = {
        "ver": 1,
        "uid": "",
        "cmd": cmd,
        "exp": 3600,
        "try": 4,
        "dat": base64.b64encode(dat).decode(),
        "src": 0,
        "dst": list(dst),
        "ret": str(uuid.uuid4()),
        "shm": "",
        "now": int(time.time()),
        "err": "",
    }
    return made | members


def answer_to(asked: Mapping[str, Any], dat: bytes = b"", **members: Any) -> dict[str, Any]:
    """Return the response to *asked* in the format of the founding document: src and dst swapped, new dat and now."""
    swapped = {"src": asked["dst"][0], "dst": [asked["src"]], "dat": base64.b64encode(dat).decode(), "now": int(time.time())}
    return {**asked, **swapped, **members}


def data_of(message: Mapping[str, Any]) -> bytes:
    """Return the payload of *message*."""
    return base64.b64decode(message["dat"])


def peer_table(twin: int, address: str, key_file: Path | str = "") -> str:
    """Return a [[peers]] table of relay.toml."""
    return f'[[peers]]\ntwin = {twin}\naddress = "{address}"\n' + (f'key_file = "{key_file}"\n' if key_file else "")


def shared_key(folder: Path, name: str = "key") -> Path:
    """Return the file of a new key, readable by its owner alone."""
    file = folder / name
    file.write_text(uuid.uuid4().hex * 2 + "\n")
    file.chmod(0o600)
    return file


def free_address() -> str:
    """Return a loopback address and port for this process, which no other process uses while this one runs.

    The host part contains the process id, which has 22 bits at most. The port is below those that the kernel assigns to connections.
    """
    pid = os.getpid()
    return f"127.{64 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}:{next(_PORTS)}"


def pair(folder: Path, *twins: int, settings: str = "", keys: bool = True, buses: Mapping[int, str] | None = None) -> list[Host]:
    """Start hosts on the loopback interface that are configured as peers; each pair has a key.

    *buses* has the bus socket for the relay of each host; a relay without one does not join a bus.
    """
    addresses = {twin: free_address() for twin in twins}
    files = {frozenset({a, b}): shared_key(folder, f"key-{a}-{b}") for a in twins for b in twins if a < b} if keys else {}
    hosts = []
    for twin in twins:
        host = Host(folder, twin)
        peers = "".join(peer_table(other, addresses[other], files.get(frozenset({twin, other}), "")) for other in twins if other != twin)
        bus = f'bus = "{buses[twin]}"\n' if buses and twin in buses else ""
        host.relay.write(f'listen = "{addresses[twin]}"\n{bus}{settings}', peers)
        hosts.append(host)
    for host in hosts:
        host.relay.start()
    return hosts


def remove(folder: Path) -> None:
    """Remove *folder* recursively."""
    shutil.rmtree(folder, ignore_errors=True)
