"""Hosts in network namespaces: disconnected links, unresponsive hosts, wrong clocks."""

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

from sbus import Bus
from tests.support.daemons import StartDaemon
from tests.support.relays import ENV, Host, data_of, peer_table, request, require_redis, shared_key, wait_for
from tools.netns_hosts import NetnsHosts

pytestmark = pytest.mark.usefixtures("needs_namespaces")

StartHosts = Callable[..., list[Host]]


@pytest.fixture
def network() -> Iterator[NetnsHosts]:
    with NetnsHosts(1001, 1002, 1003) as made:
        yield made


@pytest.fixture
def start_hosts(network: NetnsHosts, folder: Path) -> Iterator[StartHosts]:
    """Start hosts in the network; each pair has a key."""
    require_redis()
    hosts: list[Host] = []

    def make(*twins: int, settings: str = "", buses: Mapping[int, str] | None = None) -> list[Host]:
        keys = {frozenset({a, b}): shared_key(folder, f"{a}-{b}") for a in twins for b in twins if a < b}
        for twin in twins:
            host = Host(folder, twin, netns=network.name(twin))
            peers = (peer_table(other, network.address(other), keys[frozenset({twin, other})]) for other in twins if other != twin)
            bus = f'bus = "{buses[twin]}"\n' if buses else ""
            host.relay.write(bus + settings, "".join(peers))
            host.relay.start()
            hosts.append(host)
        return hosts

    yield make
    for host in hosts:
        host.close()
        assert "internal error" not in host.relay.log()


def answer_all(*hosts: Host, command: str = "x") -> None:
    """Respond to one request on each of *hosts*, with its number."""
    for host in hosts:
        host.reply(host.receive(f"msgbus.{command}"), str(host.twin).encode())


def test_three_hosts_call_each_other(start_hosts: StartHosts) -> None:
    hosts = start_hosts(1001, 1002, 1003)
    for host in hosts:
        ret = host.send("x", 1001, 1002, 1003)
        answer_all(*hosts)
        assert {data_of(host.receive(ret)) for _ in hosts} == {b"1001", b"1002", b"1003"}
    for host in hosts:
        assert "listening on [::]:8051" in host.relay.log()
        host.assert_empty()


def test_a_restored_link_is_used_immediately(start_hosts: StartHosts, network: NetnsHosts) -> None:
    """The next retry is due in an hour; the kernel reports that the link is up."""
    a, b = start_hosts(1001, 1002, settings='request_timeout = "5s"\nretry_interval = "1h"\n')
    network.disconnect(1001)
    ret = a.send("x", 1002, try_=3)
    a.relay.wait_logged("remote host 1002 unreachable")
    network.connect(1001)
    answer_all(b)
    assert data_of(a.receive(ret)) == b"1002"
    a.relay.wait_logged("remote host 1002 reachable again")
    assert a.counters()["tries-hastened"] >= 1


def test_a_call_of_the_bus_waits_for_its_link(start_hosts: StartHosts, network: NetnsHosts, daemon: StartDaemon) -> None:
    """In both directions: request and response are retried."""
    daemons = {twin: daemon() for twin in (1001, 1002)}
    a, b = start_hosts(1001, 1002, settings='request_timeout = "500ms"\n', buses={twin: each.path for twin, each in daemons.items()})
    network.disconnect(1002)
    answers: list[bytes] = []

    def call() -> None:
        with Bus.connect(daemons[1001].path) as bus:
            answers.append(bus.call("x", "who", twin=1002, tries=1_000, timeout=300.0))

    calling = threading.Thread(target=call)
    b.relay.wait_logged("joined bus")
    a.relay.wait_logged("joined bus")
    calling.start()
    a.wait_counted("tries-failed", 2)
    network.connect(1002)
    asked = b.receive("msgbus.x")
    network.disconnect(1002)
    b.reply(asked, b"late")
    b.wait_counted("tries-failed", 2)
    assert answers == []
    network.connect(1002)
    calling.join(60)
    assert answers == [b"late"]
    a.assert_empty()
    b.assert_empty()


def test_an_answer_waits_for_its_link(start_hosts: StartHosts, network: NetnsHosts) -> None:
    a, b = start_hosts(1001, 1002, settings='request_timeout = "500ms"\n')
    ret = a.send("x", 1002)
    asked = b.receive("msgbus.x")
    network.disconnect(1002)
    b.reply(asked, b"late")
    b.wait_counted("tries-failed", 2)
    network.connect(1002)
    assert data_of(a.receive(ret)) == b"late"
    b.assert_empty()


def test_a_link_that_stays_cut_is_an_error_for_each_destination(start_hosts: StartHosts, network: NetnsHosts) -> None:
    a, b, _ = start_hosts(1001, 1002, 1003, settings='request_timeout = "3s"\n')
    network.disconnect(1003)
    ret = a.send("x", 1002, 1003, try_=1)
    answer_all(b)
    answers = {answer["src"]: answer for answer in (a.receive(ret), a.receive(ret))}
    assert answers[1002]["err"] == ""
    tries = 2 + a.counters().get("tries-hastened", 0)  # a retry because of a network change is not counted
    assert answers[1003]["err"].startswith(f"destination not reached after {tries} attempts: ")
    assert a.redis.llen(ret) == 0
    a.assert_empty()


def test_silent_host_does_not_delay_calls_of_others(start_hosts: StartHosts, network: NetnsHosts) -> None:
    a, b = start_hosts(1001, 1002, settings='request_timeout = "20s"\n')
    listening = "import socket; s = socket.create_server(('', 8051), backlog=64); print(flush=True); input()"
    command = ["ip", "netns", "exec", network.name(1003), sys.executable, "-c", listening]
    a.relay.stop()
    text = a.relay.file.read_text()
    a.relay.file.write_text(text + peer_table(1003, network.address(1003), shared_key(a.folder)))
    a.relay.start()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENV) as silent:
        try:
            assert silent.stdout is not None
            silent.stdout.readline()
            hung = [a.send("hang", 1003, try_=1) for _ in range(40)]
            for _ in range(10):
                ret = a.send("x", 1002)
                answer_all(b)
                assert data_of(a.receive(ret)) == b"1002"
            assert a.counters().get("requests-failed", 0) < len(hung), "the calls waited for the silent host"
        finally:
            silent.kill()
    assert all(a.receive(ret)["err"] for ret in hung)
    a.assert_empty()


def test_wrong_clock_is_logged_on_both_hosts(start_hosts: StartHosts, network: NetnsHosts) -> None:
    """With a shared key the sender is notified of its wrong clock, and the client gets an error."""
    a, b = start_hosts(1001, 1002, settings='clock_skew = "1s"\n')
    a.relay.kill()
    b.relay.kill()
    run = "runpy.run_module('sbus_services.relay.main', run_name='__main__')"
    faked = f"import time, runpy; real = time.time; time.time = lambda: real() - 60; {run}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(a.folder / "manager"))
        manager.settimeout(30)
        command = ["ip", "netns", "exec", network.name(1001), sys.executable, "-c", faked, "-C", str(a.relay.file)]
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
    b.relay.wait_logged("replayed or wrongly timed messages of host 1001")
    assert "the clock of host 1001 differs by" in b.relay.log()


def test_the_network_makes_no_tries_where_nothing_waits(start_hosts: StartHosts, network: NetnsHosts) -> None:
    a, b = start_hosts(1001, 1002)
    network.disconnect(1001)
    network.connect(1001)
    ret = a.send("x", 1002, try_=1000)
    answer_all(b)
    assert data_of(a.receive(ret)) == b"1002"
    wait_for(lambda: a.redis.hlen("msgbus.system.backlog") == 0, "an empty backlog")
    assert a.counters().get("requests-repeated", 0) == 0
