"""Calls from bus to bus while the relays on both hosts are killed repeatedly."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from functools import partial
from pathlib import Path

import redis

from sbus import NoRecipient, PeerDisconnected, RemoteError, Request, Twins
from tests.support.bus_hosts import SECOND, BusHost, MakeBusHosts
from tests.support.relays import Host, data_of
from tests.support.service_processes import running_service

KILLS = 8
CALLERS = 4


def note(file: Path, data: bytes) -> bytes:
    """Record in *file* that *data* was run; return the response."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, data + b"\n")
    finally:
        os.close(descriptor)
    return b"<" + data + b">"


def run_here(file: Path, request: Request) -> bytes:
    """Run a request from the bus."""
    return note(file, request.data)


class Application(threading.Thread):
    """Runs requests in Redis, where they go before a restarted relay has joined its bus."""

    def __init__(self, host: Host, file: Path) -> None:
        super().__init__(daemon=True)
        self._host = host
        self._file = file
        self.ended = threading.Event()

    def run(self) -> None:
        """Serve until ``ended`` is set."""
        client: redis.Redis = self._host.server.client()
        with client:
            while not self.ended.is_set():
                if client.llen("msgbus.x"):
                    asked = self._host.receive("msgbus.x")
                    self._host.reply(asked, note(self._file, data_of(asked)))
                else:
                    time.sleep(0.01)


class Caller(threading.Thread):
    """Makes one call after the other, each on a new connection; ``ends`` has their results."""

    def __init__(self, host_with_bus: BusHost, first: int) -> None:
        super().__init__(daemon=True)
        self._town = host_with_bus
        self._first = first
        self.ends: dict[int, str] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        """Make calls until ``ended`` is set."""
        for number in itertools.count(self._first, CALLERS):
            if self.ended.is_set():
                return
            while number not in self.ends:
                try:
                    with self._town.bus() as bus:
                        answer = bus.call("x", str(number), twin=SECOND, tries=1_000, timeout=300.0)
                    self.ends[number] = answer.decode()
                except NoRecipient:
                    time.sleep(0.05)  # no relay was running, so the call was not sent
                except (PeerDisconnected, RemoteError) as error:
                    self.ends[number] = type(error).__name__


def test_each_call_has_one_result_and_runs_at_most_once(bus_hosts: MakeBusHosts, folder: Path) -> None:
    a, b = bus_hosts('request_timeout = "1s"\n')
    ran = folder / "ran"
    application = Application(b.host, ran)
    application.start()
    callers = [Caller(a, first) for first in range(CALLERS)]
    chance = random.Random(7)
    with running_service(b.path, twins=Twins(), x=partial(run_here, ran)):
        for caller in callers:
            caller.start()
        for number in range(KILLS):
            relay = (a, b)[number % 2].host.relay
            time.sleep(chance.random() / 2)
            relay.kill()
            relay.start()
        for caller in callers:
            caller.ended.set()
        for caller in callers:
            caller.join(300)
        a.host.assert_empty()
        b.host.assert_empty()
    application.ended.set()
    application.join(60)
    ends = {number: end for caller in callers for number, end in caller.ends.items()}
    runs = ran.read_text().split()
    assert len(runs) == len(set(runs))
    answered = {str(number) for number, end in ends.items() if end == f"<{number}>"}
    assert answered
    assert answered <= set(runs)
    failed = {number: end for number, end in ends.items() if str(number) not in answered}
    assert set(failed.values()) <= {"PeerDisconnected", "RemoteError"}
    # Each kill fails the calls of that relay, at most one per caller.
    assert len(failed) <= CALLERS * KILLS
