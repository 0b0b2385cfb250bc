"""sbus-metrics on a real bus with two real users: values, users that may not scrape, and a bus that is away."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sbus_services.metrics import server
from sbusctl.checks import CheckResult
from sbusctl.checks.services import check_scrape
from tests.support.daemons import Daemon, StartDaemon
from tests.support.fdstore import Manager
from tests.support.metrics_endpoint import Endpoint, UnixConnection, Values, get, samples
from tests.support.relays import wait_for
from tests.support.shell import Shell
from tests.support.users import FIRST, SECOND, User
from tests.support.wire import RawClient
from tools.stage import ROOT, Stage

pytestmark = pytest.mark.usefixtures("needs_root")

ONE, TWO = str(FIRST.uid), str(SECOND.uid)


SHARES_BUS = True


def user(found: Values, name: str, who: str) -> float:
    """Return the value of a metric of a user."""
    return found[(f"sbus_user_{name}", who)]


def lose(bus: Daemon, reader: User, writer: User, count: int = 2_000) -> None:
    """Let *writer* publish more than the queue of *reader* takes. The reader does not read."""
    slow, fast = bus.client(reader), bus.client(writer)
    slow.subscribe(b"flood/")
    slow.barrier()
    for _ in range(count):
        fast.publish(b"flood/a", bytes(1_000))
    fast.barrier()


def wait_for_scrape(endpoint: Endpoint, is_wanted: Callable[[Values], bool]) -> Values:
    """Return the first scrape that is wanted."""

    def wanted() -> Values | None:
        now = endpoint.scrape()
        return now if is_wanted(now) else None

    return wait_for(wanted, "a scrape with other values")


# -- values


def test_values_are_what_the_users_have_done(daemon: StartDaemon, folder: Path) -> None:
    bus = daemon(config="[quotas]\nsubscriptions = 2\nqueued_packets = 50\n")
    with Endpoint(folder, bus.path) as endpoint:
        before = endpoint.scrape()
        reader, writer = bus.client(SECOND), bus.client(FIRST)
        reader.subscribe(b"a/")
        reader.barrier()
        for _ in range(10):
            writer.publish(b"a/b", b"12345")
        writer.publish(b"unread")
        writer.barrier()
        assert len(reader.barrier()) == 10
        for pattern in (b"x", b"y", b"z"):
            reader.subscribe(pattern)
        reader.barrier()
        found = endpoint.scrape()
    assert found[("sbus_up",)] == 1
    assert found[("sbus_messages_total",)] - before[("sbus_messages_total",)] == 11
    assert found[("sbus_undeliverable_messages_total",)] - before[("sbus_undeliverable_messages_total",)] == 1
    assert user(found, "received_packets_total", ONE) == 12, "eleven messages and a ping"
    assert user(found, "received_packets_total", TWO) == 7, "four patterns and three pings"
    assert user(found, "delivered_packets_total", TWO) == 10 + 3 + 2, "messages, pings, and errors"
    assert found[("sbus_user_quota_refusals_total", "subscriptions", TWO)] == found[("sbus_quota_refusals_total",)] == 2
    assert user(found, "subscriptions", TWO) == found[("sbus_user_quota", "subscriptions", TWO)] == 2
    assert user(found, "connections", ONE) == user(found, "connections", TWO) == 1
    # The scrape's own connection is one of root, or of the user who runs this.
    assert found[("sbus_connections",)] == 3
    assert 0 < found[("sbus_scrape_duration_seconds",)] < 60
    assert abs(found[("sbus_start_time_seconds",)] - time.time()) < 3_600


def test_losses_are_those_of_the_slow_user_and_remain_when_it_leaves(daemon: StartDaemon, folder: Path) -> None:
    bus = daemon(config="[quotas]\nqueued_packets = 50\n")
    with Endpoint(folder, bus.path) as endpoint:
        lose(bus, SECOND, FIRST)
        found = endpoint.scrape()
        assert user(found, "lost_packets_total", TWO) == found[("sbus_lost_packets_total",)] > 1_000
        assert user(found, "lost_packets_total", ONE) == 0
        assert 0 < user(found, "queued_packets", TWO) <= 50
        bus.close()
        left = wait_for_scrape(endpoint, lambda now: now[("sbus_connections",)] == 1)
        assert user(left, "lost_packets_total", TWO) == user(found, "lost_packets_total", TWO)
        assert user(left, "connections", TWO) == user(left, "queued_packets", TWO) == 0


def test_both_formats_have_the_same_values(bus: Daemon, folder: Path) -> None:
    with Endpoint(folder, bus.path) as endpoint:
        texts = [endpoint.scrape(), endpoint.scrape("text/plain;version=0.0.4")]
        assert set(texts[0]) == set(texts[1])
        steady = ("sbus_up",), ("sbus_start_time_seconds",), ("sbus_accept_failures_total",), ("sbus_info", "compiled", "0.1.0")
        assert [texts[0][name] for name in steady] == [texts[1][name] for name in steady]


def test_users_above_the_limit_are_other(bus: Daemon, folder: Path) -> None:
    """A user with many user ids does not add a series for each."""
    with Endpoint(folder, bus.path, "max_users = 3\n") as endpoint:
        for number in range(30):
            client = bus.client(User(500_000 + number, 500_000))
            client.publish(b"a")
            client.barrier()
        found = endpoint.scrape()
    series = {key[-1] for key in found if key[0] == "sbus_user_received_packets_total"}
    assert series == {"root", "500000", "500001", "other"}
    assert user(found, "received_packets_total", "other") == 28 * 2
    assert user(found, "connections", "other") == 28


def test_prefixes_are_counted_and_the_tap_is_no_recipient(daemon: StartDaemon, folder: Path) -> None:
    bus = daemon()
    with Endpoint(folder, bus.path, 'prefixes = ["net/", "none/"]\n') as endpoint:
        wait_for(lambda: endpoint.scrape()[("sbus_prefix_up", "net/")] == 1, "the tap")
        reader, writer = bus.client(SECOND), bus.client(FIRST)
        reader.subscribe(b"net/link/")
        reader.barrier()
        for key in (b"net/link/eth0", b"net/addr/eth0", b"network", b"other/a"):
            writer.publish(key, b"1234")
        writer.barrier()
        found = wait_for_scrape(endpoint, lambda now: now[("sbus_prefix_messages_total", "net/")] == 2)
        bus.process.terminate()
        lost = wait_for_scrape(endpoint, lambda now: now[("sbus_prefix_up", "net/")] == 0)
    assert (lost[("sbus_prefix_interruptions_total", "net/")], lost[("sbus_prefix_missed_messages_total", "net/")]) == (1, 0)
    assert found[("sbus_prefix_payload_bytes_total", "net/")] == 8
    assert found[("sbus_prefix_recipients_total", "net/")] == 1
    assert found[("sbus_prefix_missed_messages_total", "net/")] == found[("sbus_prefix_interruptions_total", "net/")] == 0
    assert found[("sbus_prefix_messages_total", "none/")] == 0
    assert found[("sbus_undeliverable_messages_total",)] == 3


# -- who may scrape


def status_for(who: User, connect: Callable[[], http.client.HTTPConnection]) -> tuple[int, str]:
    """Return the status and the body that *who* gets."""

    def ask() -> tuple[int, str]:
        status, _, body = get(connect())
        return status, body

    return who.call(ask)


def test_another_user_gets_no_metric_on_either_socket(bus: Daemon, folder: Path) -> None:
    with Endpoint(folder, bus.path, f"users = [{FIRST.uid}]\n") as endpoint:
        places: list[Callable[[], http.client.HTTPConnection]] = [
            lambda: UnixConnection(endpoint.path),
            lambda: http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60),
        ]
        for connect in places:
            status, body = status_for(FIRST, connect)
            assert (status, samples(body, is_openmetrics=False)[("sbus_up",)]) == (200, 1)
            status, body = status_for(SECOND, connect)
            assert (status, body) == (
                403,
                "this user may not read the metrics; an administrator can add it to users in /etc/sbus/metrics.toml\n",
            )
        assert f"refused the metrics to user {SECOND.uid}" in endpoint.log
        assert endpoint.scrape()[("sbus_up",)] == 1


def test_other_users_cannot_take_the_connections(bus: Daemon, folder: Path) -> None:
    """Not even with many user ids, as subuid(5) gives them."""
    with Endpoint(folder, bus.path) as endpoint, contextlib.ExitStack() as stack:
        for number in range(server.MAX_OTHERS + 10):
            other = User(500_000 + number, 500_000)
            for _ in range(2):
                stack.enter_context(contextlib.closing(other.connect(endpoint.path, socket.SOCK_STREAM)))
        assert endpoint.scrape()[("sbus_up",)] == 1
        assert "too many are open" in endpoint.log


def test_a_user_without_the_right_learns_what_is_missing(bus: Daemon, folder: Path, stage: Stage) -> None:
    with Endpoint(folder, bus.path, user=FIRST, stage=stage) as endpoint:
        found = endpoint.scrape()
        assert found[("sbus_up",)] == 0
        assert found[("sbus_scrape_failures_total", "refused")] == 1
        assert "only owners of the bus and users with the right stats can read the metrics" in endpoint.log


def test_the_right_stats_is_enough_for_metrics_and_not_for_prefixes(daemon: StartDaemon, folder: Path, stage: Stage) -> None:
    bus = daemon(config=f"[rights]\nstats = {{ users = [{FIRST.uid}] }}\n")
    with Endpoint(folder, bus.path, 'prefixes = ["net/"]\n', user=FIRST, stage=stage) as endpoint:
        found = endpoint.scrape()
        assert (found[("sbus_up",)], found[("sbus_prefix_up", "net/")]) == (1, 0)
        wait_for(lambda: "cannot count messages of net/: " in endpoint.log, "the reason in the log")
        assert user(found, "connections", ONE) >= 1


# -- hostile and slow clients


def raw(endpoint: Endpoint, request: bytes) -> socket.socket:
    """Return a connection on which *request* was sent."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(60)
    made.connect(endpoint.path)
    made.sendall(request)
    return made


def read_all(connection: socket.socket) -> bytes:
    """Return all that comes until the connection is closed, and close it."""
    parts = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            parts += part
    return parts


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b" 404 "),
        (b"POST /metrics HTTP/1.0\r\n\r\n", b" 405 "),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b" 200 "),
        (b"GET /metrics HTTP/1.0\r\nAccept: " + b"x" * 5_000 + b"\r\n\r\n", b" 200 "),
        (b"\0\1\2\r\n\r\n", b" 400 "),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", b" 400 "),
    ],
)
def test_requests(bus: Daemon, folder: Path, request_bytes: bytes, answer: bytes) -> None:
    with Endpoint(folder, bus.path) as endpoint:
        found = read_all(raw(endpoint, request_bytes))
        assert answer in found.split(b"\r\n")[0], found[:200]
        assert (b"sbus_up" in found) == (answer == b" 200 " and not request_bytes.startswith(b"HEAD"))


def test_long_and_slow_clients_are_ended(bus: Daemon, folder: Path) -> None:
    """One sends requests and reads no response: the buffers fill up, and must not stay so for long."""
    request = b"GET /metrics HTTP/1.1\r\nHost: a\r\n"
    with Endpoint(folder, bus.path, constants={"sbus_services.metrics.server.REQUEST_SECONDS": 4.0}) as endpoint:
        slow = raw(endpoint, request)
        headers = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1_000) for number in range(100))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            assert b" 200 " not in read_all(raw(endpoint, request + headers))
        body = request + b"Content-Length: 100000000\r\n\r\n" + bytes(20_000)
        assert read_all(raw(endpoint, body))[:15] in (b"", b"HTTP/1.1 200 OK")
        assert f"longer than {server.MAX_REQUEST_BYTES} bytes" in endpoint.log
        with raw(endpoint, b"") as lazy, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                lazy.send(request + b"\r\n")
                time.sleep(0.01)
        assert read_all(slow) == b"", "closed after the time limit"
        assert endpoint.scrape()[("sbus_up",)] == 1


def test_scrapes_at_the_same_time_share_an_answer(bus: Daemon, folder: Path) -> None:
    with Endpoint(folder, bus.path) as endpoint:
        before = endpoint.scrape()[("sbus_accepted_connections_total",)]
        with ThreadPoolExecutor(20) as pool:
            found = [each.result() for each in [pool.submit(endpoint.scrape) for _ in range(20)]]
        after = endpoint.scrape()[("sbus_accepted_connections_total",)]
    assert len(found) == 20
    assert all(each[("sbus_up",)] == 1 for each in found)
    assert after - before <= 21


# -- a bus that is away or starts again


def test_without_a_bus_the_scrape_says_so(folder: Path) -> None:
    with Endpoint(folder, str(folder / "no-bus"), 'prefixes = ["net/"]\n') as endpoint:
        found = endpoint.scrape()
        assert {key: value for key, value in found.items() if key[0] in ("sbus_up", "sbus_scrape_failures_total")} == {
            ("sbus_up",): 0,
            ("sbus_scrape_failures_total", "no-bus"): 1,
            ("sbus_scrape_failures_total", "refused"): 0,
            ("sbus_scrape_failures_total", "response"): 0,
            ("sbus_scrape_failures_total", "timeout"): 0,
        }
        assert ("sbus_messages_total",) not in found
        assert "cannot read the metrics of the bus: " in endpoint.log


def test_a_bus_that_does_not_answer(folder: Path) -> None:
    path = str(folder / "silent")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(path)
        silent.listen()
        with Endpoint(folder, path, constants={"sbus_services.metrics.collector.BUS_SECONDS": 1.0}) as endpoint:
            found = endpoint.scrape()
            assert (found[("sbus_up",)], found[("sbus_scrape_failures_total", "timeout")]) == (0, 1)


def test_a_restart_keeps_the_counters_and_a_crash_does_not(folder: Path) -> None:
    with Manager(folder) as manager:
        manager.start()
        with Endpoint(folder, manager.path, 'prefixes = ["a/"]\n') as endpoint:
            wait_for(lambda: endpoint.scrape()[("sbus_prefix_up", "a/")] == 1, "the tap")
            gone, kept = (RawClient(SECOND.connect(manager.path)) for _ in range(2))
            for client in (gone, kept):
                client.publish(b"a/b")
                client.barrier()
            gone.close()
            before = endpoint.scrape()
            assert user(before, "received_packets_total", TWO) == 4
            manager.restart()
            kept.barrier()
            after = endpoint.scrape()
            assert user(after, "received_packets_total", TWO) == 5
            assert after[("sbus_messages_total",)] == 2
            assert after[("sbus_start_time_seconds",)] == before[("sbus_start_time_seconds",)]
            manager.end(signal.SIGKILL)
            assert endpoint.scrape()[("sbus_up",)] in (0, 1)
            manager.start()
            crashed = wait_for_scrape(endpoint, lambda now: now[("sbus_up",)] == 1)
            assert crashed[("sbus_messages_total",)] == 0
            assert crashed[("sbus_start_time_seconds",)] > before[("sbus_start_time_seconds",)]
            wait_for(lambda: endpoint.scrape()[("sbus_prefix_up", "a/")] == 1, "the tap again")
            assert endpoint.scrape()[("sbus_prefix_interruptions_total", "a/")] >= 1
            kept.close()


def test_it_ends_without_requests_and_leaves_the_sockets_of_systemd(bus: Daemon, folder: Path) -> None:
    """As systemd starts it: the socket stays, and the next request starts it again."""
    (folder / "metrics.toml").write_text(f'bus = "{bus.path}"\nidle_timeout = "3s"\n')
    path = folder / "activated.socket"
    command = ["systemd-socket-activate", f"--listen={path}", f"--setenv=PYTHONPATH={ROOT}", sys.executable]
    for _ in range(2):
        with subprocess.Popen(
            [*command, "-m", "sbus_services.metrics.main", "-C", folder / "metrics.toml"], stderr=subprocess.PIPE
        ) as process:
            wait_for(path.exists, "the socket")
            status, _, body = get(wait_for_connection(path))
            assert (status, "sbus_up 1.0" in body) == (200, True)
            assert process.wait(60) == 0
            assert process.stderr is not None
            assert b"stopped serving metrics; scrapes: 1" in process.stderr.read()
        assert path.exists(), "the socket belongs to systemd"
        path.unlink()


def wait_for_connection(path: Path) -> UnixConnection:
    """Return a connection to a socket that may not be listening yet."""
    connection = UnixConnection(str(path))

    def connected() -> bool:
        try:
            connection.connect()
        except ConnectionRefusedError:
            connection.close()
            return False
        return True

    wait_for(connected, "a connection")
    return connection


# -- sbusctl


@pytest.fixture
def shell(stage: Stage, bus: Daemon) -> Shell:
    """sbusctl on a bus."""
    return Shell(stage, bus)


def test_sbusctl_prints_the_same_metrics(shell: Shell, bus: Daemon, folder: Path) -> None:
    printed = samples(shell.succeed("stats", "--openmetrics").decode(), is_openmetrics=True)
    with Endpoint(folder, bus.path) as endpoint:
        served = endpoint.scrape()
    assert {key[0] for key in served if key not in printed} == {"sbus_scrape_failures_total"}
    assert set(printed) <= set(served)
    assert printed[("sbus_up",)] == 1


def test_sbusctl_replaces_the_file_of_node_exporter(shell: Shell, folder: Path) -> None:
    path = folder / "sbus.prom"
    for _ in range(2):
        assert shell.succeed("stats", "--textfile", str(path)) == b""
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert samples(path.read_text(), is_openmetrics=False)[("sbus_up",)] == 1
    done = shell.run("stats", "--textfile", str(folder / "sbus.txt"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"sbusctl: {folder}/sbus.txt: node_exporter reads only files whose names end with .prom\n"


def test_sbusctl_refuses_what_is_not_possible(shell: Shell) -> None:
    done = shell.run("stats", "--openmetrics", user=FIRST)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"sbusctl: only owners of the bus and users with the right stats can read the metrics; see sbus-metrics(8)\n"
    done = shell.run("stats", "--openmetrics", "-j")
    assert done.returncode == 2
    assert b"--json, --openmetrics and --textfile are mutually exclusive" in done.stderr


def test_doctor_scrapes_as_prometheus_does(bus: Daemon, folder: Path) -> None:
    with Endpoint(folder, bus.path) as endpoint:
        assert check_scrape(endpoint.path).result is CheckResult.OK
        bus.stop()
        assert check_scrape(endpoint.path).reason == "the response has no metrics of the bus"
