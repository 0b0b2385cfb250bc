"""The recorder on a real bus: what users do there is in the record, secrets are not, and what it could not take is counted."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus_archive.record.schema import Row, RowKind
from tests.support.daemons import Daemon, StartDaemon
from tests.support.recorder_fakes import recorded
from tests.support.users import User, command_as
from tests.support.wire import RawClient
from tools.stage import Stage

Start = Callable[[Daemon], "Service"]


class Service:
    """The program as a service of one user, with a socket that replaces the service manager's."""

    def __init__(self, folder: Path, stage: Stage, user: User, address: str) -> None:
        self.folder = folder / "recorder"
        self.folder.mkdir()
        os.chown(self.folder, user.uid, user.gid)
        config = folder / "recorder.toml"
        config.write_text(f'archive = "{self.folder}/archive"\nspool = "{self.folder}/spool"\nhost = "alpha"\nsync_interval = "5ms"\n')
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(folder / "notify"))
        (folder / "notify").chmod(0o666)
        self._manager.settimeout(60)
        self._reader: threading.Thread | None = None
        self.process = subprocess.Popen(
            command_as(user, stage.program("sbus-recorder", "--address", address, "--config", str(config))),
            env=stage.env | {"NOTIFY_SOCKET": str(folder / "notify")},
            cwd="/",
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        """Wait until it listens."""
        while self._manager.recv(4096) != b"READY=1":
            pass
        self._reader = threading.Thread(target=self._read_states)
        self._reader.start()

    def _read_states(self) -> None:
        """Take all later states until the socket is shut down: a recorder waits until its service manager takes them."""
        self._manager.settimeout(None)
        while self._manager.recv(4096):
            pass

    def end(self) -> str:
        """End it, and return what it has said."""
        self.process.terminate()
        said = self.wait()
        assert self.process.returncode == 0, said
        return said

    def wait(self) -> str:
        """Wait for its end, and return what it has said."""
        try:
            return self.process.communicate(timeout=60)[1]
        finally:
            self.close()

    def close(self) -> None:
        """Kill it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        if self._reader is not None:
            # Otherwise it could read from the next socket that has the same descriptor.
            self._manager.shutdown(socket.SHUT_RD)
            self._reader.join()
            self._reader = None
        self._manager.close()

    def rows(self) -> list[Row]:
        """Return all rows of its archive."""
        return recorded(self.folder / "archive")


@pytest.fixture
def start(folder: Path, stage: Stage, first_user: User) -> Iterator[Start]:
    """Starts a recorder as the first user."""
    started: list[Service] = []

    def start(bus: Daemon) -> Service:
        started.append(Service(folder, stage, first_user, bus.path))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def tapped_bus(daemon: StartDaemon, first_user: User) -> Daemon:
    """A bus on which the first user has the right to a tap."""
    return daemon(config=f"[rights]\ntap = {{ users = [{first_user.uid}] }}\n")


def _cred(client: RawClient) -> bytes:
    return client.ask(b"!/cred/whoami")


def _only(rows: list[Row], kind: RowKind, **columns: object) -> Row:
    """Return the only row of *kind* with these columns."""
    found = [row for row in rows if row.kind == kind and all(getattr(row, name) == value for name, value in columns.items())]
    assert len(found) == 1, (kind, columns, found)
    return found[0]


def test_actions_of_users_are_recorded_and_private_payloads_are_not(
    tapped_bus: Daemon, start: Start, first_user: User, second_user: User
) -> None:
    service = start(tapped_bus)
    service.wait_ready()
    alice, bob = tapped_bus.client(first_user), tapped_bus.client(second_user)
    secret = b"!/cred//%d//door" % second_user.uid
    alice.subscribe(b"a/*")
    alice.subscribe(b"odd/\xff")
    bob.subscribe(secret)
    bob.barrier()
    alice.barrier()
    bob.publish(b"a/b", b"for all")
    bob.barrier()
    alice.publish(secret, b"the password")
    alice.unsubscribe(b"a/*")
    alice.barrier()
    bob.subscribe(_cred(alice) + b"/")  # not bob's
    assert b"EACCES" in bob.receive_to_end()[-1]
    said = service.end()
    assert "stopped recording" in said
    rows = service.rows()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    message = _only(rows, RowKind.MESSAGE, key="a/b")
    assert (message.payload, message.payload_bytes, message.uid) == (b"for all", 7, second_user.uid)
    assert (message.recipients, message.discarded) == (1, 0)
    hidden = _only(rows, RowKind.MESSAGE, key=secret.decode())
    assert (hidden.payload, hidden.payload_bytes, hidden.uid) == (None, 12, first_user.uid)
    assert b"the password" not in b"".join(path.read_bytes() for path in service.folder.rglob("*") if path.is_file())
    subscribed = _only(rows, RowKind.SUBSCRIBE, key="a/*")
    assert (subscribed.uid, subscribed.gid) == (first_user.uid, first_user.gid)
    assert _only(rows, RowKind.UNSUBSCRIBE).conn == subscribed.conn
    assert _only(rows, RowKind.SUBSCRIBE, key=r"odd/\xff").conn == subscribed.conn
    denial = _only(rows, RowKind.DENIAL)
    assert (denial.uid, denial.code, denial.packet, denial.lost) == (second_user.uid, "EACCES", "SUB", 1)
    assert denial.key == _cred_text(first_user, subscribed.pid)
    assert _only(rows, RowKind.DISCONNECT, conn=message.conn).uid == second_user.uid


def test_subscriptions_older_than_the_recorder_are_in_the_record(
    tapped_bus: Daemon, start: Start, first_user: User, second_user: User
) -> None:
    """The first user may tap, so the recorder lists the second user's private pattern; the second user may not list subscriptions."""
    bob = tapped_bus.client(second_user)
    patterns = [b"old/", b"odd/\xff", b"!/cred//%d//door" % second_user.uid]
    for pattern in patterns:
        bob.subscribe(pattern)
    bob.barrier()
    service = start(tapped_bus)
    service.wait_ready()
    bob.send(b"CMSG !/bus/subscriptions")
    (refusal,) = bob.barrier()
    assert refusal.startswith(b"CMSG !/bus/error\0EPERM ")
    bob.unsubscribe(b"old/")
    bob.barrier()
    service.end()
    rows = service.rows()
    active = [row for row in rows if row.kind == RowKind.SNAPSHOT]
    assert {(row.key, row.uid, row.gid) for row in active} == {
        (key, second_user.uid, second_user.gid) for key in ("old/", r"odd/\xff", patterns[2].decode())
    }
    assert len(active) == 3
    ended = _only(rows, RowKind.UNSUBSCRIBE, key="old/")
    assert {row.conn for row in active} == {ended.conn}
    assert max(row.seq for row in active) < ended.seq


def _cred_text(user: User, pid: int | None) -> str:
    return f"!/cred/{user.gid}/{user.uid}/{pid}/"


def test_a_call_and_its_answer_are_joined(tapped_bus: Daemon, start: Start, first_user: User, second_user: User) -> None:
    service = start(tapped_bus)
    service.wait_ready()
    caller, callee = tapped_bus.client(first_user), tapped_bus.client(second_user)
    ret = caller.ask(b"!/conn/whoami") + b"ret/1"
    callee.subscribe(b"rpc/add")
    callee.barrier()
    envelope = {"ver": 1, "uid": "u1", "cmd": "add", "exp": 30, "dat": "", "ret": ret.decode()}
    caller.publish(b"rpc/add", json.dumps(envelope).encode())
    assert callee.receive().startswith(b"MSG rpc/add\0")
    callee.publish(ret, json.dumps(envelope | {"err": "too large"}).encode())
    callee.barrier()
    service.end()
    rows = service.rows()
    request, reply = _only(rows, RowKind.MESSAGE, call_role="request"), _only(rows, RowKind.MESSAGE, call_role="reply")
    assert request.call_id == reply.call_id
    assert (request.call_cmd, request.call_exp, request.uid) == ("add", 30, first_user.uid)
    assert (reply.call_failed, reply.uid, reply.payload) == (True, second_user.uid, None)


def test_a_recorder_that_is_too_slow_counts_missed_records(tapped_bus: Daemon, start: Start) -> None:
    service = start(tapped_bus)
    service.wait_ready()
    publisher = tapped_bus.client()
    os.kill(service.process.pid, signal.SIGSTOP)
    try:
        for _ in range(30):
            # More than a queue of the bus holds; the barriers are only so that the publisher's own answers do not pile up.
            for _ in range(1_000):
                publisher.publish(b"flood", bytes(3_000))
            assert publisher.barrier() == []
    finally:
        os.kill(service.process.pid, signal.SIGCONT)
    publisher.publish(b"after")
    publisher.barrier()
    said = service.end()
    rows = service.rows()
    lost = sum(row.lost or 0 for row in rows if row.kind == RowKind.TAP_LOSS)
    messages = sum(row.kind == RowKind.MESSAGE for row in rows)
    assert lost > 5_000
    assert lost + messages == 30_001
    assert not [row for row in rows if row.kind == RowKind.LOSS]
    assert f"lost {lost} rows since the last report" in said


def test_a_user_without_the_right_is_refused(bus: Daemon, start: Start) -> None:
    service = start(bus)
    said = service.wait()
    assert service.process.returncode == os.EX_CONFIG
    assert said.count("\n") == 1
    assert "cannot tap the bus at " in said


def test_a_person_records_and_replays(bus: Daemon, stage: Stage, folder: Path) -> None:
    archive = str(folder / "r")
    options = ("--address", bus.path)
    command = stage.program("sbusctl", "record", *options, "--archive", archive, "-n", "3")
    with subprocess.Popen(command, env=stage.env, stdout=subprocess.PIPE, text=True) as recording:
        publisher, listener = bus.client(), bus.client()
        for number in itertools.count():  # from when the recording begins it takes three of them
            if recording.poll() is not None:
                break
            publisher.publish(b"k/%d" % number, b"payload %d" % number)
            publisher.barrier()
        out, _ = recording.communicate(timeout=60)
    assert recording.returncode == 0
    assert out.startswith("recorded 3 messages and ")
    listener.subscribe(b"k/")
    listener.barrier()
    command = stage.program("sbusctl", "replay", *options, "--speed", "0", "--key", "k/", archive)
    done = subprocess.run(command, env=stage.env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "published 3 messages\n", "")
    first, *others = [int(listener.receive().removeprefix(b"MSG k/").split(b"\0payload ")[1]) for _ in range(3)]
    assert others == [first + 1, first + 2]


def test_a_restart_that_keeps_connections_is_not_noticed(tapped_bus: Daemon, start: Start) -> None:
    service = start(tapped_bus)
    service.wait_ready()
    publisher = tapped_bus.client()
    for number in range(5):
        publisher.publish(b"k", b"%d" % number)
        publisher.barrier()
        os.kill(tapped_bus.pid, signal.SIGUSR2)
        while tapped_bus.stderr.count("connections after a planned restart") <= number:
            publisher.barrier()
    service.end()
    rows = service.rows()
    assert [row.payload for row in rows if row.kind == RowKind.MESSAGE] == [b"%d" % number for number in range(5)]
    assert [row.kind for row in rows if row.kind in (RowKind.RESTART, RowKind.TAP_LOSS, RowKind.GAP)] == [RowKind.RESTART]
