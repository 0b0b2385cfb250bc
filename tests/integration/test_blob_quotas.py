"""Quotas and rights of sbus-blob: what one user does leaves those of another user as they are."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import Bus
from sbus.protocol.blobs import F_ADD_SEALS, new_ticket
from tests.support.blob_programs import ENV, BlobProgram, sealed
from tests.support.daemons import Daemon
from tests.support.forked_programs import start_program
from tests.support.relays import wait_for
from tests.support.skips import require
from tests.support.users import FIRST, SECOND

QUOTAS = '[quotas]\nblobs = 4\nbytes = "8MiB"\nconnections = 6\nwrong_tickets = 5\n'
RIGHTS = '[rights]\npass = { users = ["61001", "61002"] }\n'


SHARES_BUS = True


@pytest.fixture
def service(bus: Daemon, folder: Path) -> Iterator[BlobProgram]:
    require(os.geteuid() == 0, "needs root, to be several users", could_run=True)
    with BlobProgram(folder, bus.path, QUOTAS + RIGHTS) as program:
        yield program


# Quotas


def test_a_user_without_quota_left_does_not_touch_another(service: BlobProgram) -> None:
    with service.client(FIRST) as client:
        for _ in range(4):
            client.put(b"x")
        fd = sealed(b"x")
        assert client.cause("put", fd, size=1) == "quota-blobs"
        os.close(fd)
        assert client.counter("refused-quota-blobs") == 1
        service.check_others(SECOND)
        with service.client(SECOND) as other:
            assert other.request("list")[0]["blobs"] == []
            assert other.counter("refused-quota-blobs") == 0
            assert "total" not in other.request("stats")[0]


def test_bytes_are_counted_until_a_blob_ends(service: BlobProgram) -> None:
    with service.client(FIRST) as client:
        ticket = client.put(bytes(6 << 20))
        fd = sealed(bytes(3 << 20))
        assert client.cause("put", fd, size=3 << 20) == "quota-bytes"
        client.request("drop", ticket=ticket)
        assert "ticket" in client.request("put", fd, size=3 << 20)[0]
        os.close(fd)
        service.check_others(SECOND)


def test_connections_are_limited_by_user(service: BlobProgram) -> None:
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(service.client(FIRST)) for _ in range(6)]
        assert all("usage" in client.request("stats")[0] for client in clients)
        late = opened.enter_context(service.client(FIRST))
        assert late.receive()[0]["cause"] == "quota-connections"
        service.check_others(SECOND)
        clients[0].socket.close()

        def serves() -> bool:
            with service.client(FIRST) as again:
                try:
                    return "usage" in again.request("stats")[0]
                except (EOFError, BrokenPipeError):
                    return False

        wait_for(serves, "the place of the closed connection")


def test_tickets_cannot_be_guessed(service: BlobProgram) -> None:
    with service.client(SECOND) as owner:
        ticket = owner.put(b"x")
        with service.client(FIRST) as client:
            for _ in range(5):
                assert client.cause("get", ticket=new_ticket()) == "unknown-ticket"
            assert client.cause("get", ticket=ticket) == "guessing"
            assert client.counter("refused-unknown-ticket") == 5
            assert client.counter("refused-guessing") == 1
        with service.client(FIRST) as again:
            assert again.cause("get", ticket=ticket) == "guessing"
        assert "ticket" not in service.log.replace("tickets", "").replace("unknown-ticket", "")
        _, (fd,) = owner.request("get", ticket=ticket)
        os.close(fd)


def test_late_readers_are_not_taken_for_guessers(service: BlobProgram) -> None:
    with service.client(SECOND) as owner, service.client(FIRST) as client:
        for _ in range(20):
            ticket = owner.put(b"x")
            owner.request("drop", ticket=ticket)
            assert client.cause("get", ticket=ticket) == "gone"
        ticket = owner.put(b"x")
        _, (fd,) = client.request("get", ticket=ticket)
        os.close(fd)


def test_blobs_of_others_cannot_be_dropped_or_listed(service: BlobProgram) -> None:
    with service.client(SECOND) as owner, service.client(FIRST) as client:
        ticket = owner.put(b"x")
        assert client.cause("drop", ticket=ticket) == "unknown-ticket"
        assert client.request("list")[0]["blobs"] == []
        assert [each["ticket"] for each in owner.request("list")[0]["blobs"]] == [ticket]


def test_a_client_that_does_not_read_its_answers_has_one_descriptor_on_its_way(service: BlobProgram) -> None:
    """The kernel counts descriptors on their way as those of the service: a user must not use up this number."""
    with service.client(FIRST) as client:
        ticket = client.put(b"x")
        for _ in range(50):
            client.send(json.dumps({"request": "get", "ticket": ticket}).encode())
        service.check_others(SECOND)
        with service.client() as root:
            counted = [root.request("stats")[0]["total"] for _ in range(3)]
        assert counted[-1]["blobs"] == 1
        for _ in range(50):  # each comes as soon as the one before is read
            _, (fd,) = client.receive()
            os.close(fd)
        assert client.counter("get") == 50


def test_a_reader_cannot_change_a_blob_or_move_the_offset_of_others(service: BlobProgram) -> None:
    with service.client(SECOND) as owner, service.client(FIRST) as client:
        ticket = owner.put(b"content")
        (one,), (two,) = (client.request("get", ticket=ticket)[1] for _ in range(2))
        assert os.read(one, 4) == b"cont"
        assert os.read(two, 7) == b"content"
        assert fcntl.fcntl(one, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        for change in (lambda: os.write(one, b"x"), lambda: os.ftruncate(one, 0), lambda: fcntl.fcntl(one, F_ADD_SEALS, 0)):
            with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument|not permitted"):
                change()
        again = os.open(f"/proc/self/fd/{one}", os.O_RDWR)
        with pytest.raises(PermissionError):
            os.write(again, b"x")
        for fd in (one, two, again):
            os.close(fd)


# Descriptors between users


def test_without_the_right_no_descriptor_is_passed(service: BlobProgram, bus: Daemon) -> None:
    reader, writer = os.pipe()
    with service.client() as root, service.client(FIRST) as first:
        assert root.cause("put", reader, kind="any", for_=f"uid:{FIRST.uid}") == "no-right"
        answer, _ = first.request("put", reader, kind="any", for_="uid:0")
        assert root.cause("get", ticket=answer["ticket"], kind="any") == "no-right"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    "terms",
    [{}, {"for": "anyone"}, {"for": "gid:1"}, {"for": "uid:61002", "uses": 2}, {"for": "uid:61002", "expire": 31}, {"for": "uid:-1"}],
)
def test_a_descriptor_is_only_for_a_named_recipient_once_and_soon(service: BlobProgram, terms: dict[str, object]) -> None:
    with service.client(FIRST) as client:
        assert client.cause("put", client.socket.fileno(), kind="any", **terms) == "invalid"


def test_nobody_gets_a_descriptor_who_asks_for_a_blob(service: BlobProgram) -> None:
    reader, writer = os.pipe()
    with service.client(FIRST) as first, service.client(SECOND) as second:
        ticket = first.request("put", reader, kind="any", for_=f"uid:{SECOND.uid}")[0]["ticket"]
        assert second.cause("get", ticket=ticket) == "other-kind"
        _, (fd,) = second.request("get", ticket=ticket, kind="any")
        assert second.cause("get", ticket=ticket, kind="any") == "gone"
    for each in (fd, reader, writer):
        os.close(each)
    assert f"user {SECOND.uid} took a descriptor from user {FIRST.uid}" in service.log


def test_a_passed_descriptor_that_nobody_takes_is_closed(service: BlobProgram) -> None:
    reader, writer = os.pipe()
    with service.client(FIRST) as first:
        first.request("put", writer, kind="any", for_=f"uid:{SECOND.uid}", expire=0.05)
        os.close(writer)
        assert os.read(reader, 1) == b""
        assert first.counter("expired") == 1
    os.close(reader)


def test_another_process_of_the_same_number_of_a_connection_gets_nothing(service: BlobProgram, bus: Daemon) -> None:
    with Bus.connect(bus.path) as client, service.client() as root:
        number = int(client.address.split("/")[2])
        ticket = root.put(b"x", for_=f"conn:{number}")
        _, (fd,) = root.request("get", ticket=ticket)  # this process has the connection
        os.close(fd)
        with service.client(FIRST) as other:
            assert other.cause("get", ticket=ticket) == "not-for-user"
        assert root.cause("get", ticket=root.put(b"x", for_=f"conn:{(1 << 62)}")) == "not-for-user"


def test_a_bus_that_does_not_answer_blocks_only_requests_for_connections(service: BlobProgram, bus: Daemon) -> None:
    with service.client() as root, service.client() as waiting:
        ticket = root.put(b"x", for_="conn:1")
        os.kill(bus.pid, 19)
        try:
            waiting.send(json.dumps({"request": "get", "ticket": ticket}).encode())
            service.check_others(SECOND)
            assert waiting.receive()[0]["cause"] == "no-bus"
        finally:
            os.kill(bus.pid, 18)
        # Those that were answered do not count: a user may have four at a time.
        causes = set()
        for _ in range(5):
            waiting.send(json.dumps({"request": "get", "ticket": ticket}).encode())
            causes.add(waiting.receive()[0]["cause"])
        assert causes == {"not-for-user"}


def test_the_time_of_a_kill_does_not_matter(service: BlobProgram) -> None:
    """After each kill the service starts again, and has nothing of before."""
    for number in range(3):
        client = service.client(FIRST)
        for _ in range(number + 1):
            client.put(b"x", keep=True)
        service.kill()
        with pytest.raises((EOFError, BrokenPipeError)):
            client.request("stats")
        client.socket.close()
        service.start()
        service.check_others(SECOND)
        with service.client(FIRST) as again:
            assert again.request("stats")[0]["usage"]["blobs"] == 0


def test_the_program_refuses_wrong_configurations(folder: Path, bus: Daemon) -> None:
    file = folder / "wrong.toml"
    for text, words in (
        ("bus = 5\n", "bus: must be an absolute path"),
        ("[quotas]\nblobs = -1\n", "quotas.blobs: must be 0 to 10000, not -1"),
        ('[rights]\npass = { users = ["no-such-user-here"] }\n', "no-such-user-here"),
        ("allow_sparse = 1\n", "allow_sparse: must be true or false, not 1"),
        ('max_expire = "11min"\n', "max_expire: must be 1s to 10min"),
        ("color = 1\n", "color: unknown key"),
    ):
        file.write_text(text)
        with (folder / "errors").open("wb") as errors:
            started = start_program(
                "sbus_services.blob.main", "-C", str(file), "--check", env=ENV, stdout=errors.fileno(), stderr=errors.fileno()
            )
        assert started.wait(60) == 78
        (line,) = (folder / "errors").read_text().splitlines()
        assert line.startswith(f"sbus-blob: {file}: ")
        assert words in line
