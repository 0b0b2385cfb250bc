"""Clients of sbus-blob whose descriptors the kernel refuses until the service has accepted their connection, on Linux 6.16 and later."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sbus import BlobRefused
from sbus.asyncio.blob_socket import AsyncBlobSocket
from sbus.protocol.blobs import new_ticket
from sbus.sync.blob_socket import BlobSocket
from tests.support.c_programs import SHARED, SOURCE, Actor, compile_program
from tests.support.daemons import Daemon
from tests.support.kernels import SO_PASSRIGHTS, require_refusal

SECONDS = 60.0

TICKET = new_ticket()

Put = Callable[[str], str]
"""Puts a blob at the service of a bus, and returns its ticket or the reason of a refusal."""


@pytest.fixture
def listener(bus: Daemon) -> Iterator[socket.socket]:
    """A service that refuses descriptors of clients that it has not accepted."""
    require_refusal()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.settimeout(SECONDS)
        made.bind(f"{bus.path}-blob")
        made.listen(8)
        made.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        yield made


def put_in_python(bus: str) -> str:
    """Put a blob with the client for blocking programs."""
    service = BlobSocket(bus, SECONDS)
    fd, size = service.prepare(b"x")
    try:
        return str(service.exchange({"request": "put", "size": size}, fd).members["ticket"])
    except BlobRefused as error:
        return error.reason
    finally:
        os.close(fd)
        service.close()


def put_with_asyncio(bus: str) -> str:
    """Put a blob with the client for asyncio."""

    async def run() -> str:
        service = AsyncBlobSocket(bus, SECONDS)
        fd, size = await service.prepare(b"x")
        try:
            return str((await service.exchange({"request": "put", "size": size}, fd)).members["ticket"])
        except BlobRefused as error:
            return error.reason
        finally:
            os.close(fd)
            service.close()

    return asyncio.run(run())


def put_in_c(program: Path) -> Put:
    """Return what puts a blob with a C program."""

    def put(bus: str) -> str:
        actor = Actor(program, bus)
        try:
            return actor.do("blob-put", "1", "").rpartition("\t")[2]
        finally:
            actor.close()

    return put


@pytest.fixture(params=["Python", "asyncio", "C"])
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Put:
    if request.param == "C":
        return put_in_c(compile_program([SOURCE / "actor.c", *SHARED], tmp_path / "actor"))
    return put_in_python if request.param == "Python" else put_with_asyncio


@pytest.mark.parametrize("is_refused", [False, True], ids=["accepted", "refused"])
def test_a_client_waits_until_its_connection_is_accepted(listener: socket.socket, bus: Daemon, put: Put, *, is_refused: bool) -> None:
    """It then sends its request again; a service that refuses the connection has a reason."""
    with ThreadPoolExecutor(1) as executor:
        result = executor.submit(put, bus.path)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(SECONDS)
            assert connection.recv(4_096) == b'{"request":"stats"}'
            if is_refused:
                connection.send(b'{"error":"EAGAIN","cause":"hanging","reason":"too many"}')
                assert result.result(SECONDS).endswith("too many")
                return
            connection.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)
            connection.send(b'{"usage":{},"limits":{},"counters":{}}')
            request, fds, _, _ = socket.recv_fds(connection, 4_096, 2)
            assert (json.loads(request)["request"], os.fstat(fds[0]).st_size, len(fds)) == ("put", 1, 1)
            os.close(fds[0])
            connection.send(json.dumps({"ticket": TICKET, "size": 1, "expire": 1.0, "host": "h"}).encode())
            assert result.result(SECONDS) == TICKET
