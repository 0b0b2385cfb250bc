"""Blobs in C, with ``clients/c/sbus.h``: exchanged with Python through a real sbus-blob, and with services that lie."""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sbus import BlobMessage, BlobRefused, Bus
from sbus.protocol.blobs import F_ADD_SEALS, SEALS, new_ticket
from tests.support.blob_programs import BlobProgram, sealed
from tests.support.c_programs import AS_C, AS_CXX, SANITIZED, SHARED, SOURCE, Actor, compile_program
from tests.support.daemons import Daemon
from tests.support.relays import wait_for
from tests.support.users import FIRST, User

HUGE = 2 << 20

SIZES = [0, 1, 4_096, 300_000, HUGE - 1, HUGE, HUGE + 1, 3 * HUGE + 5]

F_SEAL_WRITE, F_SEAL_FUTURE_WRITE, MFD_HUGETLB = 0x8, 0x10, 0x4


SHARES_BUS = True


@pytest.fixture(scope="module", params=[AS_C, AS_CXX], ids=["C99", "C++11"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program, as C and as C++."""
    return compile_program([SOURCE / "actor.c", *SHARED], tmp_path_factory.mktemp("c") / "actor", (*request.param, *SANITIZED))


@pytest.fixture
def actor(program: Path, bus: Daemon) -> Iterator[Actor]:
    """A connection of the C program."""
    client = Actor(program, bus.path)
    yield client
    client.close()


@pytest.fixture
def service(bus: Daemon, folder: Path) -> Iterator[BlobProgram]:
    with BlobProgram(folder, bus.path, '[quotas]\nbytes = "64MiB"\n') as program:
        yield program


def content(size: int) -> bytes:
    """Return what the C program puts."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def ticket_of(line: str) -> str:
    """Return the ticket in a line of the C program."""
    kind, ticket = line.split("\t")
    assert kind == "ticket", line
    return ticket


def open_files(actor: Actor) -> int:
    """Return the number of descriptors of the C program."""
    return len(os.listdir(f"/proc/{actor.process.pid}/fd"))


def maps_a_blob(actor: Actor) -> bool:
    """Return whether the C program has mapped a memory file."""
    return "memfd:" in Path(f"/proc/{actor.process.pid}/maps").read_text()


def test_blobs_of_python_are_read_in_c(service: BlobProgram, bus: Daemon, actor: Actor) -> None:
    actor.ok("subscribe", "camera/")
    actor.barrier()
    owner = [str(each) for each in (os.getuid(), os.getgid(), os.getpid())]
    kind = 'image/x; a="b\\"'
    with Bus.connect(bus.path) as client:
        for size in SIZES:
            client.publish_blob("camera/front", content(size), type=kind)
            shown = actor.do("blob-next").split("\t")
            assert shown == [os.uname().nodename, kind, str(size), "blob", *owner, kind, str(size), str(sum(content(size))), "0"]
            assert not maps_a_blob(actor)


def test_blobs_of_c_are_read_in_python(service: BlobProgram, bus: Daemon, actor: Actor) -> None:
    with Bus.connect(bus.path) as client, client.subscribe("a", blobs=True) as blobs:
        client.ping()
        for size in SIZES:
            ticket = ticket_of(actor.do("blob-publish", "a", str(size), "image/png anyone 60000 0 0"))
            message = blobs.receive(30)
            assert isinstance(message, BlobMessage)
            assert (bytes(message.blob), message.media_type, message.owner.pid) == (content(size), "image/png", actor.process.pid)
            reference = message.json()
            assert (reference["ticket"], reference["size"], reference["host"]) == (ticket, size, os.uname().nodename)


def test_terms_of_a_blob(service: BlobProgram, bus: Daemon, program: Path, actor: Actor) -> None:
    def reason(ticket: str) -> str:
        with Bus.connect(bus.path) as client:
            try:
                client.get_blob(ticket)
            except BlobRefused as error:
                return error.reason
        return ""

    with Bus.connect(bus.path) as client:
        once = ticket_of(actor.do("blob-put", "5", "text/plain anyone 0 1 0"))
        assert bytes(client.get_blob(once).data) == content(5)
        assert reason(once) == "the blob is gone: all its uses are over"
        restricted = ticket_of(actor.do("blob-put", "5", f"text/plain uid:{FIRST.uid} 0 0 0"))
        assert "another user" in reason(restricted)
        assert actor.do("blob-get", restricted).startswith(f"error\t{errno.EACCES}\t")
        dropped = ticket_of(actor.do("blob-put", "5", ""))
        actor.ok("blob-drop", dropped)
        assert reason(dropped) == "the blob is gone: its owner has dropped it"
        other = Actor(program, bus.path)
        ended, kept = (ticket_of(other.do("blob-put", "5", f"text/plain anyone 0 0 {keep}")) for keep in (0, 1))
        other.close()
        wait_for(lambda: "disconnected" in reason(ended), "the end of the blob")
        assert bytes(client.get_blob(kept).data) == content(5)


def test_the_service_ends_and_returns(service: BlobProgram, actor: Actor) -> None:
    ticket = ticket_of(actor.do("blob-put", "5", ""))
    service.kill()
    assert actor.do("blob-get", ticket).startswith(f"error\t{errno.ENOTCONN}\t")
    os.unlink(service.address)
    assert actor.do("blob-get", ticket).endswith("sbus-blob: it does not run")
    service.start()
    assert actor.do("blob-get", ticket).split("\t")[:2] == ["error", str(errno.ENOENT)]
    assert actor.do("blob-get", ticket_of(actor.do("blob-put", "5", ""))).startswith("blob\t")
    service.kill()
    os.unlink(service.address)
    service.start()
    # The connection is one of the service that was killed: the request is sent again.
    assert actor.do("blob-get", ticket).split("\t")[:2] == ["error", str(errno.ENOENT)]


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("blob-put", "5", "none anyone 0 0 0"), errno.EINVAL, "type must be a media type"),
    (("blob-put", "5", f"{'x' * 200}/y anyone 0 0 0"), errno.EINVAL, "a term of the blob is invalid"),
    (("blob-put", "5", f"a/b {'9' * 60} 0 0 0"), errno.EINVAL, "a term of the blob is invalid"),
    (("blob-put", "5", 'a/b x"},\\ 0 0 0'), errno.EINVAL, 'for must be "anyone"'),
    (("blob-put", "5", "a/b anyone -1 0 0"), errno.EINVAL, "a term of the blob is invalid"),
    (("blob-put", "5", "a/b anyone 600001 0 0"), errno.EINVAL, "expire must be"),
    (("blob-put", str(65 << 20), ""), errno.EDQUOT, "above the maximum"),
    (("blob-put-file", "/dev/null"), errno.EINVAL, "it is not a memory file"),
    (("blob-put-file", "/"), errno.EINVAL, "it is not a memory file"),
    (("blob-put-file", "/nonexistent"), errno.EINVAL, "it is not a memory file"),
    (("blob-get", "none"), errno.EINVAL, "not a ticket of a blob"),
    (("blob-get", "a" * 27), errno.EINVAL, "not a ticket of a blob"),
    (("blob-get", 'aaaaaaaaaaaaaaaaaaaaaaaa"}'), errno.EINVAL, "not a ticket of a blob"),
    (("blob-get", "z" * 26), errno.EINVAL, "ticket must be a ticket"),
    (("blob-get", new_ticket()), errno.ENOENT, "unknown ticket"),
    (("blob-drop", new_ticket()), errno.ENOENT, "no blob of this user"),
]


def test_wrong_arguments(service: BlobProgram, actor: Actor) -> None:
    assert actor.do("blob-get", ticket_of(actor.do("blob-put", "5", ""))).startswith("blob\t")
    before = open_files(actor)
    for words, error, text in WRONG:
        kind, number, said = actor.do(*words).split("\t")
        assert (kind, int(number)) == ("error", error), words
        assert text in said
        assert open_files(actor) == before, words


def test_an_own_memory_file_is_not_copied(service: BlobProgram, actor: Actor) -> None:
    fd, loose = sealed(b"x" * 8_192), os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.write(loose, b"x")
    ticket = ticket_of(actor.do("blob-put-file", f"/proc/{os.getpid()}/fd/{fd}"))
    assert "it is not sealed" in actor.do("blob-put-file", f"/proc/{os.getpid()}/fd/{loose}")
    with service.client() as client:
        _, (given,) = client.request("get", ticket=ticket)
    assert os.fstat(given).st_ino == os.fstat(fd).st_ino
    for each in (fd, loose, given):
        os.close(each)


def test_without_a_service(bus: Daemon, actor: Actor) -> None:
    for words in (("blob-get", new_ticket()), ("blob-put", "5", ""), ("blob-publish", "a", "5", ""), ("blob-drop", new_ticket())):
        assert actor.do(*words) == f"error\t{errno.ENOTCONN}\t{bus.path}: sbus-blob: it does not run"
    Path(f"{bus.path}-blob").touch()
    assert actor.do("blob-get", new_ticket()).endswith("sbus-blob: it does not run")


Answer = Callable[[], tuple[bytes, Sequence[int]]]
"""Makes a response and its descriptors, which are closed when it has been sent."""


@contextmanager
def lying(bus: Daemon, *answers: Answer | None) -> Iterator[list[bytes]]:
    """Run a service that gives *answers* in turn; None is a closed connection. Yields the requests."""
    requests: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{bus.path}-blob")
        listener.listen(8)

        def serve() -> None:
            connection: socket.socket | None = None
            for answer in answers:
                request = b""
                while not request:
                    if connection is None:
                        connection, _ = listener.accept()
                    request = connection.recv(1 << 16)
                    if not request:
                        connection.close()
                        connection = None
                assert connection is not None
                requests.append(request)
                if answer is None:
                    connection.close()
                    connection = None
                    continue
                data, fds = answer()
                with suppress(BrokenPipeError):  # the client did not wait
                    connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
                for fd in fds:
                    os.close(fd)
            if connection is not None:
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield requests
        thread.join(60)
        assert not thread.is_alive()


def response(size: object = 4_096, kind: object = "a/b", **others: object) -> bytes:
    """Return a response to ``get``."""
    return json.dumps({"size": size, "type": kind, "from": {"uid": 1, "gid": 2, "pid": 3}, **others}).encode()


def memfd(size: int = 4_096, seals: int = SEALS, flags: int = 0) -> int:
    """Return a memory file with some seals."""
    fd = os.memfd_create("lie", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.truncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


DESCRIPTORS: dict[str, Callable[[], Sequence[int]]] = {
    "no descriptor": list,
    "a loose memory file": lambda: [memfd(seals=0)],
    "one that can be written": lambda: [memfd(seals=SEALS & ~F_SEAL_WRITE)],
    "one that others can still write": lambda: [memfd(seals=SEALS & ~F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)],
    "one that can grow": lambda: [memfd(seals=SEALS & ~0x4)],
    "one that can shrink": lambda: [memfd(seals=SEALS & ~0x2)],
    "one whose seals are not sealed": lambda: [memfd(seals=SEALS & ~0x1)],
    "one that is too small": lambda: [memfd(4_095)],
    "one that is too large": lambda: [memfd(4_097)],
    "an empty one": lambda: [memfd(0)],
    "one with huge pages": lambda: [memfd(HUGE, flags=MFD_HUGETLB)],
    "a file": lambda: [os.open(__file__, os.O_RDONLY)],
    "a device": lambda: [os.open("/dev/zero", os.O_RDWR)],
    "a directory": lambda: [os.open("/", os.O_RDONLY)],
    "a pipe": lambda: list(os.pipe()),
    "a socket": lambda: [each.detach() for each in socket.socketpair()],
    "a wrong one first": lambda: [memfd(seals=0), memfd()],
}


def good() -> tuple[bytes, Sequence[int]]:
    """Return a response with a blob."""
    return response(), [memfd()]


def test_what_others_could_change_is_not_mapped(bus: Daemon, actor: Actor) -> None:
    def lie(name: str) -> Answer:
        return lambda: (response(HUGE if "huge" in name else 4_096), DESCRIPTORS[name]())

    with lying(bus, *(each for name in DESCRIPTORS for each in (lie(name), good))):
        before = open_files(actor)
        for name in DESCRIPTORS:
            kind, number, text = actor.do("blob-get", new_ticket()).split("\t")
            assert (kind, int(number)) == ("error", errno.EPROTO), name
            assert "sbus-blob: not a blob: " in text, name
            assert not maps_a_blob(actor), name
            assert open_files(actor) == before + 1, name
            assert actor.do("blob-get", new_ticket()) == "blob\t1\t2\t3\ta/b\t4096\t0\t0", name


RESPONSES: dict[str, bytes] = {
    "not JSON": b"blob",
    "not an object": b"[1]",
    "cut": response()[:-1],
    "more": response() + b"x",
    "not UTF-8": response().replace(b"a/b", b"a/\xff"),
    "a NUL": b"\0" * 40,
    "too long": response(padding="x" * 5_000),
    "deep": b'{"x":' + b"[" * 100 + b"]" * 100 + b"}",
    "no size": b'{"type":"a/b"}',
    "no type": b'{"size":4096}',
    "a NUL in the type": response(kind="a/\0b"),
    "a long type": response(kind="a/" + "b" * 200),
    "a type that is a number": response(kind=5),
    "a negative size": response(-4_096),
    "a size with a point": response(4_096.0),
    "a size as text": response("4096"),
    "a size of 64 bits": response((1 << 64) - 4_096),
    "a size of 63 bits": response(1 << 63),
    "too large a number": response(1 << 70),
    "a boolean": response(size=True),
    "nothing": b"{}",
    "an error without a code": b'{"error":"ENEW","reason":"%s"}' % (b"x" * 3_000),
}


def test_malformed_responses(bus: Daemon, actor: Actor) -> None:
    def lie(name: str) -> Answer:
        return lambda: (RESPONSES[name], [memfd()])

    with lying(bus, *(each for name in RESPONSES for each in (lie(name), good))):
        before = open_files(actor)
        for name in RESPONSES:
            kind, number = actor.do("blob-get", new_ticket()).split("\t")[:2]
            assert (kind, number) == ("error", str(errno.EPROTO)), name
            assert not maps_a_blob(actor), name
            assert open_files(actor) <= before + 1, name
            assert actor.do("blob-get", new_ticket()).startswith("blob\t"), name


def test_owners_that_are_not_known(bus: Daemon, actor: Actor) -> None:
    owners: list[object] = [None, 5, {}, {"uid": -1, "gid": "x", "pid": None}, {"uid": 1 << 63, "gid": [], "pid": {}}]

    def lie(owner: object) -> Answer:
        return lambda: (json.dumps({"from": owner, "size": 4_096, "type": "a/b"}).encode(), [memfd()])

    with lying(bus, *map(lie, owners)):
        for owner in owners:
            assert actor.do("blob-get", new_ticket()).startswith("blob\t-1\t-1\t-1\t"), owner


def test_many_descriptors_are_closed(bus: Daemon, actor: Actor) -> None:
    before = open_files(actor)
    with lying(bus, lambda: (response(), [memfd() for _ in range(253)])):
        assert actor.do("blob-get", new_ticket()).startswith("blob\t")
        assert open_files(actor) == before + 1


def test_a_late_response_is_not_taken_for_the_next(bus: Daemon, actor: Actor) -> None:
    may_answer = threading.Event()

    def late() -> tuple[bytes, Sequence[int]]:
        assert may_answer.wait(60)
        return response(8_192), [memfd(8_192)]

    with lying(bus, late, good):
        assert actor.do("blob-get", new_ticket(), "50").startswith(f"error\t{errno.ETIMEDOUT}\t")
        may_answer.set()
        assert actor.do("blob-get", new_ticket()) == "blob\t1\t2\t3\ta/b\t4096\t0\t0"


def test_a_closed_connection_is_an_error_and_the_next_one_works(bus: Daemon, actor: Actor) -> None:
    with lying(bus, None, good):
        assert actor.do("blob-get", new_ticket()).startswith(f"error\t{errno.ENOTCONN}\t")
        assert actor.do("blob-get", new_ticket()).startswith("blob\t")


ORDINARY = [
    b"",
    b"text",
    b"{}",
    b'{"sbus-blob":2,"ticket":"aaaaaaaaaaaaaaaaaaaaaaaaaa","size":1,"type":"a/b","host":"h","until":1}',
    b'{"sbus-blob":true,"ticket":"aaaaaaaaaaaaaaaaaaaaaaaaaa","size":1,"type":"a/b","host":"h","until":1}',
    b'{"sbus-blob":1,"ticket":"aaaaaaaaaaaaaaaaaaaaaaaaa","size":1,"type":"a/b","host":"h","until":1}',
    b'{"sbus-blob":1,"ticket":5,"size":1,"type":"a/b","host":"h","until":1}',
    b'{"sbus-blob":1,"ticket":"aaaaaaaaaaaaaaaaaaaaaaaaaa","size":-1,"type":"a/b","host":"h","until":1}',
    b'{"sbus-blob":1,"ticket":"aaaaaaaaaaaaaaaaaaaaaaaaaa","size":1,"type":"a/b","host":"%s","until":1}' % (b"h" * 300),
    b'{"sbus-blob":1,"ticket":"aaaaaaaaaaaaaaaaaaaaaaaaaa","size":1,"type":"a/b","host":"h","until":1',
    b'{"sbus-blob":1,"ticket":"aaaaaaaaaaaaaaaaaaaaaaaaaa","size":1,"type":"a/b","host":"\xff","until":1}',
    b'{"sbus-blob":1,"padding":"%s"}' % (b"x" * 5_000),
]


def test_what_does_not_refer_to_a_blob_is_an_ordinary_message(bus: Daemon, actor: Actor) -> None:
    actor.ok("subscribe", "a")
    actor.barrier()
    with Bus.connect(bus.path) as client:
        for payload in ORDINARY:
            client.publish("a", payload)
            assert actor.do("blob-next").split("\t")[:3] == ["message", b"a".hex(), payload.hex()]


def test_a_blob_crosses_users(service: BlobProgram, bus: Daemon, actor: Actor, first_user: User) -> None:
    def publish() -> str:
        with Bus.connect(bus.path) as client:
            return client.publish_blob("a", b"mine", keep=True)

    assert actor.do("blob-get", first_user.call(publish)).split("\t")[1:3] == [str(first_user.uid), str(first_user.gid)]
