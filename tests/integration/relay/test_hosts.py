"""Two and three hosts, each a network namespace with an address of its own: links that are cut, hosts that hang, clocks."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sbusd.client import Bus
from tests.support.daemons import StartDaemon
from tests.support.relays import ENV, Host, data_of, peer_table, request, require_redis, shared_key, wait_for
from tools.netns_hosts import Village

pytestmark = pytest.mark.usefixtures("needs_namespaces")

Settle = Callable[..., list[Host]]


@pytest.fixture
def village() -> Iterator[Village]:
    with Village(1001, 1002, 1003) as made:
        yield made


@pytest.fixture
def settle(village: Village, folder: Path) -> Iterator[Settle]:
    """Let twins live in the village, each pair with a key."""
    require_redis()
    hosts: list[Host] = []

    def make(*twins: int, settings: str = "", buses: Mapping[int, str] | None = None) -> list[Host]:
        keys = {frozenset({a, b}): shared_key(folder, f"{a}-{b}") for a in twins for b in twins if a < b}
        for twin in twins:
            host = Host(folder, twin, netns=village.name(twin))
            peers = (peer_table(other, village.address(other), keys[frozenset({twin, other})]) for other in twins if other != twin)
            bus = f'bus = "{buses[twin]}"\n' if buses else ""
            host.relay.write(bus + settings, "".join(peers))
            host.relay.start()
            hosts.append(host)
        return hosts

    yield make
    for host in hosts:
        host.close()
        assert "internal error" not in host.relay.told()


def answer_all(*hosts: Host, command: str = "x") -> None:
    """Answer one request on each of *hosts*, with its number."""
    for host in hosts:
        host.reply(host.receive(f"msgbus.{command}"), str(host.twin).encode())


def test_three_hosts_call_each_other(settle: Settle) -> None:
    hosts = settle(1001, 1002, 1003)
    for host in hosts:
        ret = host.send("x", 1001, 1002, 1003)
        answer_all(*hosts)
        assert {data_of(host.receive(ret)) for _ in hosts} == {b"1001", b"1002", b"1003"}
    for host in hosts:
        assert "listening on [::]:8051" in host.relay.told()
        host.assert_empty()


def test_a_link_that_comes_back_is_used_at_once(settle: Settle, village: Village) -> None:
    """The next try would be in an hour; the kernel says that the link is up."""
    a, b = settle(1001, 1002, settings='request_timeout = "500ms"\nretry_interval = "1h"\n')
    village.cut(1001)
    ret = a.send("x", 1002, try_=3)
    a.relay.wait_told("remote host 1002 unreachable")
    village.join(1001)
    answer_all(b)
    assert data_of(a.receive(ret)) == b"1002"
    a.relay.wait_told("remote host 1002 reachable again")
    assert a.counters()["tries-hastened"] >= 1


def test_a_call_of_the_bus_waits_for_its_link(settle: Settle, village: Village, daemon: StartDaemon) -> None:
    """There and back: the request is tried again, and so is the answer."""
    daemons = {twin: daemon() for twin in (1001, 1002)}
    a, b = settle(1001, 1002, settings='request_timeout = "500ms"\n', buses={twin: each.path for twin, each in daemons.items()})
    village.cut(1002)
    answers: list[bytes] = []

    def call() -> None:
        with Bus.connect(daemons[1001].path) as bus:
            answers.append(bus.call("x", "who", twin=1002, tries=1_000, timeout=300.0))

    calling = threading.Thread(target=call)
    b.relay.wait_told("joined bus")
    a.relay.wait_told("joined bus")
    calling.start()
    a.wait_counted("tries-failed", 2)
    village.join(1002)
    asked = b.receive("msgbus.x")
    village.cut(1002)
    b.reply(asked, b"patient")
    b.wait_counted("tries-failed", 2)
    assert answers == []
    village.join(1002)
    calling.join(60)
    assert answers == [b"patient"]
    a.assert_empty()
    b.assert_empty()


def test_an_answer_waits_for_its_link(settle: Settle, village: Village) -> None:
    a, b = settle(1001, 1002, settings='request_timeout = "500ms"\n')
    ret = a.send("x", 1002)
    asked = b.receive("msgbus.x")
    village.cut(1002)
    b.reply(asked, b"patient")
    b.wait_counted("tries-failed", 2)
    village.join(1002)
    assert data_of(a.receive(ret)) == b"patient"
    b.assert_empty()


def test_a_link_that_stays_cut_is_an_error_for_each_destination(settle: Settle, village: Village) -> None:
    a, b, _ = settle(1001, 1002, 1003, settings='request_timeout = "300ms"\n')
    village.cut(1003)
    ret = a.send("x", 1002, 1003, try_=1)
    answer_all(b)
    answers = {answer["src"]: answer for answer in (a.receive(ret), a.receive(ret))}
    assert answers[1002]["err"] == ""
    tries = 2 + a.counters().get("tries-hastened", 0)  # what the kernel tells of links costs no try
    assert answers[1003]["err"].startswith(f"destination not reached after {tries} attempts: ")
    assert a.redis.llen(ret) == 0
    a.assert_empty()


def test_a_host_that_accepts_and_never_answers_keeps_nobody_waiting(settle: Settle, village: Village) -> None:
    a, b = settle(1001, 1002, settings='request_timeout = "1s"\n')
    listening = "import socket; s = socket.create_server(('', 8051), backlog=64); print(flush=True); input()"
    command = ["ip", "netns", "exec", village.name(1003), sys.executable, "-c", listening]
    a.relay.stop()
    text = a.relay.file.read_text()
    a.relay.file.write_text(text + peer_table(1003, village.address(1003), shared_key(a.folder)))
    a.relay.start()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENV) as silent:
        try:
            assert silent.stdout is not None
            silent.stdout.readline()
            hung = [a.send("hang", 1003, try_=1) for _ in range(40)]
            began = time.monotonic()
            for _ in range(10):
                ret = a.send("x", 1002)
                answer_all(b)
                assert data_of(a.receive(ret)) == b"1002"
            assert a.counters().get("requests-failed", 0) < len(hung), f"all had ended after {time.monotonic() - began} s"
            assert all("no response in time" in a.receive(ret)["err"] for ret in hung)
        finally:
            silent.kill()
    a.assert_empty()


def test_a_clock_that_is_wrong_is_told_on_both_sides(settle: Settle, village: Village) -> None:
    """With a shared key the sender hears that its clock is wrong, and its client at last."""
    a, b = settle(1001, 1002, settings='clock_skew = "1s"\n')
    a.relay.kill()
    b.relay.kill()
    faked = (
        "import time, runpy; real = time.time; time.time = lambda: real() - 60; runpy.run_module('sbusd.relay.main', run_name='__main__')"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(a.folder / "manager"))
        manager.settimeout(30)
        command = ["ip", "netns", "exec", village.name(1001), sys.executable, "-c", faked, "-C", str(a.relay.file)]
        b.relay.start()
        with a.relay.errors.open("ab") as errors:
            relay = subprocess.Popen(command, env={**ENV, "NOTIFY_SOCKET": str(a.folder / "manager")}, stderr=errors)
        try:
            assert b"READY=1" in manager.recv(4_096)
            ret = str(time.monotonic_ns())
            a.redis.rpush("msgbus.system.local", json.dumps(request("x", 1002, ret=ret, now=0, try_=1)))
            answer = a.receive(ret)
        finally:
            relay.kill()
            relay.wait(30)
    assert "s; the limit is 1 s: synchronize the clocks" in answer["err"]
    b.relay.wait_told("replayed or wrongly timed messages of host 1001")
    assert "the clock of host 1001 differs by" in b.relay.told()


def test_the_network_makes_no_tries_where_nothing_waits(settle: Settle, village: Village) -> None:
    a, b = settle(1001, 1002)
    village.cut(1001)
    village.join(1001)
    ret = a.send("x", 1002, try_=1000)
    answer_all(b)
    assert data_of(a.receive(ret)) == b"1002"
    wait_for(lambda: a.redis.hlen("msgbus.system.backlog") == 0, "an empty backlog")
    assert a.counters().get("requests-repeated", 0) == 0
