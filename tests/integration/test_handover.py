"""Restarts of a real daemon, seen by its clients: in place, by a service manager in small, and after kill(2)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sbus.protocol import controls
from sbusd.state import records as state
from sbusd.state.log_file import StateFile
from tests.support.daemons import READY_SECONDS
from tests.support.fdstore import Manager
from tests.support.wire import RawClient, message
from tools.stage import ROOT

LOST = b"CMSG !/bus/lost\x000"
PAIRS = 3
KILLS = 3


class Load:
    """Publishers that number their messages, and readers that hold every number against the one before. Each has its thread."""

    def __init__(self, manager: Manager) -> None:
        self._is_ending = threading.Event()
        self.problems: list[str] = []
        self.losses = 0
        self.received = 0
        self._threads = []
        for number in range(PAIRS):
            reader, writer = manager.client(), manager.client()
            for client in (reader, writer):
                client.socket.settimeout(READY_SECONDS)
            key = b"load/%d" % number
            reader.subscribe(key)
            assert reader.barrier() == []
            self._threads += [
                threading.Thread(target=self._guard, args=(partial(self._write, writer, key),)),
                threading.Thread(target=self._guard, args=(partial(self._read, reader),)),
            ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop publishing, and wait until all has arrived."""
        self._is_ending.set()
        for thread in self._threads:
            thread.join(2 * READY_SECONDS)
            assert not thread.is_alive()

    def wait_for(self, more: int) -> None:
        """Wait until some more has arrived."""
        target = self.received + more
        for _ in range(int(READY_SECONDS * 100)):
            if self.received >= target or self.problems:
                return
            threading.Event().wait(0.01)
        raise AssertionError(f"nothing arrives any more: {self.problems}")

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.problems.append(repr(error))

    def _write(self, writer: RawClient, key: bytes) -> None:
        number = 0
        while not self._is_ending.is_set():
            writer.publish(key, b"%d" % number)
            number += 1
            if number % 50 == 0:
                # A barrier keeps it from running ahead of the bus; after a kill the response may be lost.
                writer.control(controls.PING, b"%d" % number)
                while (packet := writer.receive()) not in (LOST, b"CMSG " + controls.PING + b"\0%d" % number):
                    assert packet, "the connection has ended"
        writer.publish(key, b"end")

    def _read(self, reader: RawClient) -> None:
        expected, may_miss = 0, False
        while True:
            packet = reader.receive()
            assert packet, "the connection has ended"
            if packet == LOST:
                self.losses += 1
                may_miss = True
                continue
            payload = packet.partition(b"\0")[2]
            if payload == b"end":
                return
            number = int(payload)
            if number != expected and not (may_miss and number > expected):
                self.problems.append(f"{number} in place of {expected}")
            expected, may_miss = number + 1, False
            self.received += 1


def _newest(client: RawClient) -> int:
    """Return the highest number of a connection."""
    return max(int(each["id"]) for each in json.loads(client.ask(controls.CONNECTIONS))["connections"])


@pytest.mark.parametrize("how", ["restart", "reload"])
def test_clients_under_load_notice_nothing(manager: Manager, how: str) -> None:
    """Twice: the second restart begins with what the first one restored, as do all later ones."""
    load = Load(manager)
    first = manager.pid
    for _ in range(2):
        load.wait_for(200)
        getattr(manager, how)()
    load.wait_for(200)
    load.end()
    assert load.problems == []
    assert load.losses == 0
    assert (manager.pid == first) == (how == "reload")
    assert set(manager.store) == {"sbus-state", *(f"sbus-connections-{number}" for number in range(4))}
    assert all(len(fds) == 1 for fds in manager.store.values())


def test_after_a_kill_at_any_point_connections_and_subscriptions_are_there(manager: Manager) -> None:
    load = Load(manager)
    chance = random.Random(4)
    for _ in range(KILLS):
        load.wait_for(chance.randrange(1, 400))
        manager.end(signal.SIGKILL)
        manager.start()
    load.wait_for(100)
    load.end()
    assert load.problems == []
    assert load.losses == KILLS * PAIRS


def test_everything_in_progress_continues(manager: Manager) -> None:
    """The packets pending for a slow reader, its modes, the counters, and the number of the next connection."""
    reader, writer = manager.client(), manager.client()
    reader.subscribe(b"a")
    reader.control(b"echo/off")
    reader.control(b"blocking/hard/discard")
    assert reader.barrier() == []
    for number in range(40):
        writer.publish(b"a", b"%02d" % number + bytes(30_000))
    assert writer.barrier() == []
    before = {each["id"]: each for each in json.loads(writer.ask(controls.CONNECTIONS))["connections"]}
    stats = json.loads(writer.ask(controls.STATS))
    manager.restart()
    after = {each["id"]: each for each in json.loads(writer.ask(controls.CONNECTIONS))["connections"]}
    assert after.keys() == before.keys()
    slow = min(before)
    for name in ("pid", "since", "inode", "subscriptions", "hard", "lost_packets"):
        assert after[slow][name] == before[slow][name]
    assert before[slow]["queued_packets"] > 10
    goes_on = json.loads(writer.ask(controls.STATS))
    assert goes_on["uptime_seconds"] > stats["uptime_seconds"]
    assert goes_on["counters"]["messages"] == stats["counters"]["messages"] == 40
    assert goes_on["counters"]["accepted"] == 2
    assert [reader.receive()[6:8] for _ in range(40)] == [b"%02d" % number for number in range(40)]
    reader.publish(b"a", b"own")
    assert reader.barrier() == []
    third = manager.client()
    assert _newest(third) == max(before) + 1


def test_after_a_kill_while_the_state_is_rewritten_all_is_there(manager: Manager) -> None:
    """A client churns, so that the log is rewritten in steps while others work; the process is killed at any of them."""
    churner, other = manager.client(), manager.client()
    kept = [b"kept/%d/" % number + b"\xff" * 3_000 for number in range(300)]
    for pattern in kept:
        churner.subscribe(pattern)
        assert churner.barrier() == []
    rounds, rewrites = 0, 0
    while rewrites < 3:
        for number in range(20):
            churner.subscribe(b"churn/%d" % number + b"\xfe" * 3_500)
            churner.unsubscribe(b"churn/%d" % number + b"\xfe" * 3_500)
        assert churner.barrier() == []
        rounds += 1
        rewrites = json.loads(other.ask(controls.STATS))["control"]["state_rewrites"]
        assert rounds < 2_000, "the state is never rewritten"
    manager.end(signal.SIGKILL)
    manager.start()
    assert churner.barrier() == [LOST]
    assert other.barrier() == [LOST]
    found: list[bytes] = []
    following: str | None = ""
    while following is not None:
        page = json.loads(other.ask(controls.SUBSCRIPTIONS, following.encode()))
        found += [base64.b64decode(each["pattern_base64"]) for each in page["subscriptions"]]
        following = page["next"]
    assert sorted(found) == sorted(kept)


def test_numbers_of_connections_are_never_used_again(manager: Manager) -> None:
    seen = []
    for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        client = manager.client()
        seen.append(_newest(client))
        client.close()
        manager.end(how)
        manager.start()
    seen.append(_newest(manager.client()))
    assert seen == sorted(set(seen))


def test_a_peer_that_closes_during_the_restart_is_removed_and_its_last_packets_arrive(manager: Manager) -> None:
    reader, writer = manager.client(), manager.client()
    reader.subscribe(b"a")
    assert reader.barrier() == []
    assert writer.barrier() == []
    manager.end(signal.SIGTERM)
    writer.publish(b"a", b"last words")
    writer.close()
    manager.start()
    assert reader.receive() == message(b"a", b"last words")
    assert json.loads(reader.ask(controls.STATS))["counters"]["connections"] == 1


def test_a_disconnected_client_is_not_restored(manager: Manager) -> None:
    """The connection store still has a duplicate of its socket."""
    stays, ended = manager.client(), manager.client()
    assert stays.barrier() == []
    ended.send(b"rubbish")
    assert len(ended.receive_to_end()) == 1
    for number in (signal.SIGKILL, signal.SIGTERM):
        manager.end(number)
        manager.start()
        assert [packet for packet in stays.barrier() if packet != LOST] == []
        assert json.loads(stays.ask(controls.STATS))["counters"]["connections"] == 1
    assert ended.receive() == b""


def test_the_rules_that_hold_after_the_restart_decide(folder: Path) -> None:
    config = folder / "sbusd.toml"
    config.write_text("")
    with Manager(folder, options=("-C", str(config))) as manager:
        manager.start()
        client = manager.client()
        client.subscribe(b"lab/x")
        client.subscribe(b"b")
        assert client.barrier() == []
        config.write_text('[[policy]]\nkeys = "lab/"\nsubscribe = "deny"\n')
        manager.reload()
        assert client.receive().startswith(b"CMSG !/bus/error\0EPERM the subscription lab/x has ended")
        client.publish(b"lab/x")
        client.publish(b"b")
        assert client.barrier() == [message(b"b")]
        assert json.loads(client.ask(controls.STATS))["counters"]["subscriptions"] == 1
        manager.wait_said("subscriptions that the rules no longer allow")


def test_a_wrong_configuration_is_found_before_anything_is_given_up(folder: Path) -> None:
    config = folder / "sbusd.toml"
    config.write_text("")
    with Manager(folder, options=("-C", str(config))) as manager:
        manager.start()
        client = manager.client()
        assert client.barrier() == []
        config.write_text("limits = 3\n")
        manager.reload()
        assert client.barrier() == []
        manager.wait_said("failed to restart in place")
        assert str(config) in manager.stderr
        config.write_text("")
        manager.reload()
        assert client.barrier() == []
        manager.wait_said("after a planned restart")


@pytest.mark.parametrize("damage", ["flipped", "zeroed", "newer", "without the store", "without the state"])
def test_a_state_that_cannot_be_used_is_refused_and_its_connections_are_closed(folder: Path, damage: str) -> None:
    with Manager(folder) as manager:
        manager.start()
        client = manager.client()
        client.subscribe(b"a")
        assert client.barrier() == []
        manager.end(signal.SIGKILL)
        _damage(manager, damage)
        manager.start()
        if damage != "without the store":
            assert client.receive() == b""
        manager.wait_said("rejected the state of the previous process")
        again = manager.client()
        assert again.barrier() == []
        manager.restart()
        assert again.barrier() == []


def _damage(manager: Manager, damage: str) -> None:
    """Do something to what is stored."""
    fd = manager.store["sbus-state"][0]
    if damage == "flipped":
        place = int.from_bytes(os.pread(fd, 8, 12), "little") + 4  # in the first record of the log
        os.pwrite(fd, bytes([os.pread(fd, 1, place)[0] ^ 1]), place)
    elif damage == "zeroed":
        os.pwrite(fd, bytes(64), 0)
    elif damage == "newer":
        os.pwrite(fd, b"\xff", 8)
    elif damage == "without the store":
        os.close(manager.store.pop("sbus-connections-1")[0])
    else:
        os.close(manager.store.pop("sbus-state")[0])


def test_a_state_that_ends_every_process_is_given_up(folder: Path) -> None:
    """Each process notes that it tries before it does; here three have come no further."""
    with Manager(folder, env={"SBUSD_HANDOVER": "not what the bus says"}) as manager:
        manager.start()
        client = manager.client()
        assert client.barrier() == []
        manager.end(signal.SIGKILL)
        file = StateFile.adopt(manager.store["sbus-state"][0])
        for _ in range(3):
            file.append(state.tried())
        file.close()
        manager.start()
        assert client.receive() == b""
        manager.wait_said("3 processes have failed to restore it")


def test_a_stop_ends_the_connections(manager: Manager) -> None:
    client = manager.client()
    assert client.barrier() == []
    assert manager.end(signal.SIGTERM) == 0
    manager.empty_store()
    with contextlib.suppress(ConnectionResetError):
        assert client.receive() == b""


def test_many_connections_come_back_after_a_kill(folder: Path) -> None:
    """More than fit into the connection store one by one, and all alive."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Manager(folder) as manager:
            manager.start()
            clients = [manager.client() for _ in range(700)]
            for client in clients:
                client.subscribe(b"all")
            assert [client.barrier() for client in clients] == [[]] * len(clients)
            for client in clients[::2]:
                client.close()
            manager.end(signal.SIGKILL)
            manager.start()
            left = clients[1::2]
            assert [client.receive() for client in left] == [LOST] * len(left)
            left[0].publish(b"all", b"x")
            assert [client.receive() for client in left] == [message(b"all", b"x")] * len(left)
            assert re.search(
                r"restored (\d+) connections after a crash, in \d+ ms; connections lost: 0",
                manager.wait_said("after a crash"),
            )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_in_place_in_the_background_its_files_stay_and_go_at_the_end(folder: Path) -> None:
    """Without a service manager: the path, the pid file, the process id."""
    path, pid_file, errors = folder / "s", folder / "pid", folder / "e"
    command = [sys.executable, "-m", "sbusd.daemon.main", "-a", "s", "-p", "pid"]
    env = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    with errors.open("wb") as said:
        subprocess.run(command, cwd=folder, env=env, stderr=said, stdout=subprocess.DEVNULL, check=True, timeout=READY_SECONDS)
    pid = int(pid_file.read_text())
    watched = os.pidfd_open(pid)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(path))
    client = RawClient(sock)
    started = json.loads(client.ask(controls.STATS))["uptime_seconds"]
    inode = path.stat().st_ino
    os.kill(pid, signal.SIGUSR2)
    while "after a planned restart" not in errors.read_text():
        assert client.barrier() == []
    assert client.barrier() == []
    assert json.loads(client.ask(controls.STATS))["uptime_seconds"] > started
    assert (path.stat().st_ino, int(pid_file.read_text())) == (inode, pid)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    os.kill(pid, signal.SIGTERM)
    assert client.receive_to_end() == []
    client.close()
    assert select.select([watched], [], [], READY_SECONDS)[0]
    os.close(watched)
    assert sorted(os.listdir(folder)) == ["e"]


def test_a_tap_and_the_wish_for_senders_outlive_a_kill_and_a_restart(manager: Manager) -> None:
    watcher, reader = manager.client(), manager.client()
    watcher.control(controls.TAP_ON, b"a")
    reader.control(controls.SENDER_ON)
    reader.subscribe(b"a")
    assert watcher.barrier() == reader.barrier() == []
    for number in (signal.SIGKILL, signal.SIGTERM):
        manager.end(number)
        manager.start()
        assert [packet for packet in watcher.barrier() if packet != LOST] == []
        assert [packet for packet in reader.barrier() if packet != LOST] == []
        reader.publish(b"a", b"x")
        assert reader.receive().startswith(b"CMSG !/from/")
        assert watcher.receive().endswith(message(b"a", b"x"))
