"""Hostile clients of sbus-blob: a user can neither block the service nor use up what belongs to another user."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sbus.protocol.blobs import MAX_REQUEST_BYTES, SEALS
from sbus_services.blob.service import SPARE_DESCRIPTORS
from tests.attacks.attacker import AttackContext, Attackers, Role
from tests.attacks.descriptors import Keep, Make, as_many_as_fit, cycle, do_not_linger, holding, process, watching
from tests.attacks.descriptors import lingering as lingering_socket
from tests.attacks.dirty_files import LeavesDirtyFile
from tests.attacks.filesystems import SendsFuseFiles, sends_full_file_systems, why_no_fuse
from tests.support.blob_programs import BlobClient, BlobProgram, sealed
from tests.support.daemons import Daemon
from tests.support.kernels import require_refusal
from tests.support.lingering import stopped
from tests.support.relays import wait_for
from tests.support.skips import require
from tests.support.users import FIRST, SECOND

QUOTAS = '[quotas]\nblobs = 4\nbytes = "8MiB"\nconnections = 6\nwrong_tickets = 5\n'
RIGHTS = '[rights]\npass = { users = ["61001", "61002"] }\n'


@pytest.fixture
def service(bus: Daemon, folder: Path) -> Iterator[BlobProgram]:
    require(os.geteuid() == 0, "needs root, to be several users", could_run=True)
    with BlobProgram(folder, bus.path, QUOTAS + RIGHTS) as program:
        yield program


@pytest.fixture
def peers() -> Iterator[list[Any]]:
    """The peers of lingering sockets, which stay open until the end of the test."""
    made: list[Any] = []
    yield made
    for each in made:
        each.close()


FLOOD = 80
"""Connections at once: more than an eighth of a room of six times this, and less than a quarter."""

PUT = json.dumps({"request": "put", "size": 1}).encode()


# Descriptors that are not blobs


@pytest.mark.parametrize("missing", [0x1, 0x2, 0x4, 0x8])
def test_each_seal_is_required(service: BlobProgram, missing: int) -> None:
    with service.client(FIRST) as client:
        fd = sealed(b"x", SEALS & ~missing)
        assert client.cause("put", fd, size=1) == "not-sealed"
        os.close(fd)
        assert client.counter("refused-not-sealed") == 1


def test_a_lie_about_the_size_is_refused(service: BlobProgram) -> None:
    with service.client(FIRST) as client:
        fd = sealed(b"four")
        for size in (0, 3, 5, 1 << 62):
            assert client.cause("put", fd, size=size) == "size"
        wrong: tuple[object, ...] = (-1, "4", 4.0, None, True, 1 << 63)
        for value in wrong:
            assert client.cause("put", fd, size=value) == "invalid"
        os.close(fd)
        assert client.request("stats")[0]["usage"]["blobs"] == 0


def test_pages_that_a_reader_would_pay_for_are_refused(service: BlobProgram) -> None:
    with service.client(FIRST) as client:
        fd = sealed(1 << 20)
        assert client.cause("put", fd, size=1 << 20) == "sparse"
        os.close(fd)


def test_huge_pages_are_refused(service: BlobProgram) -> None:
    with service.client(FIRST) as client:
        try:
            fd = sealed(2 << 20, flags=os.MFD_HUGETLB)
        except OSError:
            pytest.skip("this kernel has no huge pages")
        assert client.cause("put", fd, size=2 << 20) == "huge-pages"
        os.close(fd)


@pytest.mark.parametrize("what", ["file", "pipe", "socket", "pidfd", "directory", "itself"])
def test_a_descriptor_of_another_kind_is_refused(service: BlobProgram, tmp_path: Path, what: str) -> None:
    with service.client(FIRST) as client, contextlib.ExitStack() as opened:
        (tmp_path / "file").write_bytes(b"x")
        reader, writer = os.pipe()
        pair = [opened.enter_context(each) for each in socket.socketpair()]
        fds = {
            "file": os.open(tmp_path / "file", os.O_RDONLY),
            "pipe": reader,
            "socket": pair[0].fileno(),
            "pidfd": os.pidfd_open(os.getpid()),
            "directory": os.open(tmp_path, os.O_RDONLY),
            "itself": client.socket.fileno(),
        }
        assert client.cause("put", fds[what], size=1) == "not-sealed"
        for fd in (fds["file"], reader, writer, fds["pidfd"], fds["directory"]):
            os.close(fd)
    service.check_others(SECOND)


def test_a_lease_does_not_delay_the_service(service: BlobProgram) -> None:
    """open(2) of a file with a lease waits up to 45 s for its holder."""

    def run() -> str:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(service.address)
        with BlobClient(sock) as client:
            fd = sealed(b"x")
            with contextlib.suppress(OSError):  # some kernels have no leases on memfds
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            answer, _ = client.request("put", fd, size=1)
            return str(answer.get("cause", "put"))

    assert FIRST.call(run) in ("put", "unreadable")
    service.check_others(SECOND)


def test_an_owner_who_changes_the_mode_hurts_only_readers_of_this_blob(service: BlobProgram, bus: Daemon) -> None:
    """As an ordinary user: root could open it nevertheless."""
    fd = sealed(b"x")
    os.fchmod(fd, 0)
    with service.client(FIRST) as client:
        answer, _ = client.request("put", fd, size=1)
        assert "ticket" in answer or answer["cause"] == "unreadable"
    os.close(fd)
    service.check_others(SECOND)


# Packets


def test_253_descriptors_are_closed_and_the_client_is_disconnected(service: BlobProgram) -> None:
    before = len(os.listdir(f"/proc/{service.pid}/fd"))
    fd = sealed(b"x")
    for count in (2, 253):
        with service.client(FIRST) as client:
            client.send(PUT, [fd] * count)
            assert client.receive()[0]["cause"] == "descriptors"
            with pytest.raises(EOFError):
                client.receive()
    os.close(fd)
    service.check_others(SECOND)
    wait_for(lambda: len(os.listdir(f"/proc/{service.pid}/fd")) <= before, "all descriptors to be closed")


def test_without_room_for_descriptors_the_rest_is_served(bus: Daemon, folder: Path) -> None:
    """The limit of the process leaves room for a packet with all descriptors that the kernel permits."""
    with BlobProgram(folder, bus.path, "[quotas]\nconnections = 1000\nblobs = 10000\n", max_descriptors=900) as service:
        clients = []
        with contextlib.ExitStack() as opened:
            for _ in range(200):
                clients.append(opened.enter_context(service.client()))
            causes = []
            for client in clients:
                try:
                    causes.append(client.request("stats")[0].get("cause"))
                except (EOFError, BrokenPipeError):
                    causes.append("full")
            assert causes[0] is None
            assert "full" in causes
            fd = sealed(b"x")
            clients[0].send(PUT, [fd] * 253)
            assert clients[0].receive()[0]["cause"] == "descriptors"
            os.close(fd)
        wait_for(lambda: "no descriptor left" in service.log, "a record")
        wait_for(lambda: _idle_descriptors(service) < 40, "the descriptors to be closed")
        service.check_others(SECOND)


@pytest.mark.parametrize(
    ("packet", "cause"),
    [
        (b"{", "malformed"),
        (b"[]", "malformed"),
        (b"\xff\0", "malformed"),
        (b"[" * 4_000, "malformed"),
        (b" " * (MAX_REQUEST_BYTES + 1), "malformed"),
        (b"{}", "invalid"),
        (b'{"request":"put","size":1}', "invalid"),
        (b'{"request":"get","ticket":"x"}', "invalid"),
        (b'{"request":"get","ticket":"' + b"a" * 25 + b'b"}', "invalid"),
        (b'{"request":"stats","more":1}', "invalid"),
        (b'{"request":["stats"]}', "invalid"),
    ],
)
def test_half_requests_are_refused(service: BlobProgram, packet: bytes, cause: str) -> None:
    with service.client(FIRST) as client:
        client.send(packet)
        assert client.receive()[0]["cause"] == cause
        if cause == "malformed":
            with pytest.raises(EOFError):
                client.receive()
        else:
            assert "usage" in client.request("stats")[0]
    service.check_others(SECOND)


def test_a_descriptor_beside_another_request_is_closed(service: BlobProgram) -> None:
    reader, writer = os.pipe()
    with service.client(FIRST) as client:
        assert client.cause("stats", writer) == "descriptors"
    os.close(writer)
    assert os.read(reader, 1) == b""  # its end: no process has the writer any more
    os.close(reader)


# Descriptors whose close blocks


def test_a_lingering_socket_blocks_neither_the_service_nor_others(service: BlobProgram, peers: list[Any]) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(5):
            client = opened.enter_context(service.client(FIRST))
            (sender,) = lingering_socket(peers)
            with stopped(service.pid):  # the service has the last descriptor when it receives it
                client.send(PUT, [sender])
                os.close(sender)
            assert client.receive()[0]["cause"] == "not-sealed"
            service.check_others(SECOND)
    service.check_others(SECOND)


def test_lingering_sockets_that_nobody_has_received_block_nothing(service: BlobProgram, peers: list[Any]) -> None:
    """They are in the queue of a connection that the service closes."""
    (sender,) = lingering_socket(peers)
    client = service.client(FIRST)
    with stopped(service.pid):
        client.send(b"{", ())
        client.send(PUT, [sender])
        os.close(sender)
    with contextlib.suppress(EOFError):  # a connection with unread packets is reset, perhaps before the response is read
        assert client.receive()[0]["cause"] == "malformed"
    service.check_others(SECOND)
    client.socket.close()


def puts(make: Make) -> Role:
    """Return a role that puts what *make* returns, several times on each of its connections, and reads no response."""

    def role(context: AttackContext) -> None:
        keep: Keep = []
        while len(keep) < 1_000:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(context.path)
                for _ in range(3):
                    fds = make(keep)
                    # It may be closed already, and the kernel limits what is on its way.
                    try:
                        socket.send_fds(sock, [PUT], fds, socket.MSG_DONTWAIT)
                        context.count()
                        context.begin()
                    except OSError:
                        do_not_linger(fds)
                    for fd in fds:
                        os.close(fd)
        signal.pause()

    return role


def puts_one(make: Make) -> Role:
    """Return a role that puts what *make* returns, once."""

    def role(context: AttackContext) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(context.path)
            fds = make([])
            socket.send_fds(sock, [PUT], fds)
            for fd in fds:
                os.close(fd)
            context.count()
            context.begin()
            signal.pause()

    return role


ATTACKS: dict[str, Role] = {
    "lingering sockets": puts(lingering_socket),
    "many lingering sockets in a packet": puts(lambda keep: [fd for _ in range(8) for fd in lingering_socket(keep)]),
    "epoll instances": puts(watching),
    "as many as fit": puts(as_many_as_fit),
    "sockets that hold descriptors": puts(holding),
    "cycles of sockets": puts(cycle),
    "pidfds": puts(process),
    "full file systems": partial(sends_full_file_systems, send=puts),
    "files on FUSE": SendsFuseFiles(puts),
}


def test_connections_above_the_quota_do_not_pile_up_behind_a_blocked_close(service: BlobProgram, peers: list[Any]) -> None:
    """Each of them has an unread packet with a lingering socket, while the user has as many connections as it may."""
    with contextlib.ExitStack() as opened:
        held = [opened.enter_context(service.client(FIRST)) for _ in range(6)]
        assert all("usage" in client.request("stats")[0] for client in held)
        for _ in range(40):
            (sender,) = lingering_socket(peers)
            late = opened.enter_context(service.client(FIRST))
            with stopped(service.pid):  # else this process may do the last close
                try:
                    late.send(PUT, [sender])
                except OSError:  # it has been closed already
                    do_not_linger([sender])
                os.close(sender)
        service.check_others(SECOND)
        wait_for(lambda: _idle_descriptors(service) < 40, "the connections to be closed")


@pytest.mark.parametrize("name", ATTACKS)
def test_a_flood_of_foreign_descriptors_does_not_touch_others(service: BlobProgram, name: str) -> None:
    if name == "files on FUSE":
        require(not (reason := why_no_fuse()), reason, could_run=False)
    attackers = Attackers(service.address, [ATTACKS[name]] * 2, FIRST, None, is_urgent=True)
    try:
        for _ in range(5):
            service.check_others(SECOND)
        assert attackers.acts > 0
    finally:
        attackers.stop()
    service.check_others(SECOND)
    wait_for(lambda: _idle_descriptors(service) < 40, "the descriptors to be closed")


def test_a_user_whose_close_hangs_is_refused_with_the_reason_until_it_ends(service: BlobProgram) -> None:
    require(not (reason := why_no_fuse()), reason, could_run=False)
    attackers = Attackers(service.address, [ATTACKS["files on FUSE"]], FIRST, None, is_urgent=True)

    try:
        wait_for(lambda: _response(service).get("cause") == "hanging", "the user to be refused")
        service.check_others(SECOND)
    finally:
        attackers.stop()
    wait_for(lambda: "usage" in _response(service), "the user to be served again")


def test_refused_connections_of_a_user_whose_close_hangs_leave_room_for_others(bus: Daemon, folder: Path) -> None:
    """Each has an unread descriptor, so none can be closed. The service must accept them to refuse them."""
    require(os.geteuid() == 0, "needs root, to be several users", could_run=True)
    require(not (reason := why_no_fuse()), reason, could_run=False)
    require_refusal()

    with BlobProgram(folder, bus.path, QUOTAS, max_descriptors=SPARE_DESCRIPTORS + 6 * FLOOD) as service:
        attackers = Attackers(service.address, [SendsFuseFiles(puts_one)], FIRST, None, is_urgent=True)
        try:
            wait_for(lambda: _response(service).get("cause") == "hanging", "the user to be refused")
            refused = []
            for _ in range(5):
                refused.append(_flood(service))
                service.check_others(SECOND)
            assert refused == [0, FLOOD, FLOOD, FLOOD, FLOOD]
            with service.client() as client:
                assert FLOOD <= client.request("stats")[0]["total"]["closes"] < 2 * FLOOD
        finally:
            attackers.stop()
        wait_for(lambda: _idle_descriptors(service) < 40, "the connections to be closed")
        service.check_others(FIRST)
        with stopped(service.pid), service.client(FIRST) as client:
            client.send(PUT, [0])
        assert "paused accepting" not in service.log


def test_a_connection_that_cannot_be_closed_delays_only_its_user(service: BlobProgram) -> None:
    """A file that no process has received hangs in the close of the connection, and no signal interrupts that."""
    require(not (reason := why_no_fuse()), reason, could_run=False)

    def send(address: str, fd: int) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(address)
        sock.send(b"{")  # ends the connection
        socket.send_fds(sock, [PUT], [fd])
        return sock

    with stopped(service.pid):
        attackers = Attackers(service.address, [LeavesDirtyFile(send)], FIRST, None, is_urgent=True)
    try:
        wait_for(lambda: _response(service).get("cause") == "hanging", "the user to be refused")
        with service.client() as client:
            assert client.request("stats")[0]["total"]["closes"] == 1
        service.check_others(SECOND)
    finally:
        attackers.stop()
    wait_for(lambda: "usage" in _response(service), "the user to be served again")


def _flood(service: BlobProgram) -> int:
    """Let FIRST end many connections with an unread descriptor, and return for how many the kernel refuses that."""
    refused = 0
    with stopped(service.pid), contextlib.ExitStack() as opened:
        for _ in range(FLOOD):
            client = opened.enter_context(service.client(FIRST))
            try:
                client.send(PUT, [0])
            except PermissionError:
                refused += 1
    return refused


def _response(service: BlobProgram) -> dict[str, object]:
    """Return the response to FIRST; nothing while requests of this user wait."""
    with contextlib.suppress(OSError, EOFError), service.client(FIRST) as client:
        client.socket.settimeout(1)
        with contextlib.suppress(OSError):  # it may be refused already
            client.send(b'{"request":"stats"}')
        answer: dict[str, object] = client.receive()[0]
        return answer
    return {}


def _idle_descriptors(service: BlobProgram) -> int:
    """Return the number of descriptors of the service."""
    return len(os.listdir(f"/proc/{service.pid}/fd"))
