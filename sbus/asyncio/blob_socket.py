"""The connection of an asyncio program to sbus-blob(8). ``sbus.sync.blob_socket`` is the same for blocking programs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket

from sbus.blobs import PULL_SECONDS, Reply, limit_of, receive_reply, send_request, service_address
from sbus.errors import NoBlobService
from sbus.memory_files import BlobData, is_copied_file, make_memfd
from sbus.operations import Deadline
from sbus.sync.blob_socket import no_service


class AsyncBlobSocket:
    """A connection to the service of the bus at *bus*, made at the first request. Tasks take turns. *timeout* is in seconds."""

    def __init__(self, bus: str, timeout: float | None) -> None:
        self._bus = bus
        self._timeout = timeout
        self._lock = asyncio.Lock()
        self._socket: socket.socket | None = None
        self._process = 0
        self._remote: AsyncBlobSocket | None = None
        self._tasks: set[asyncio.Task[Reply]] = set()

    @property
    def remote(self) -> AsyncBlobSocket:
        """The connection for blobs that may be on another host, on which others do not wait."""
        if self._remote is None:
            self._remote = AsyncBlobSocket(self._bus, None if self._timeout is None else max(self._timeout, PULL_SECONDS))
        return self._remote

    @property
    def address(self) -> str:
        """The path of the service's socket. Raises NoBlobService if the bus has no path."""
        return service_address(self._bus)

    async def prepare(self, data: BlobData) -> tuple[int, int]:
        """Return a new sealed memfd with *data*, and its size, made in a thread. Reads and raises as ``BlobSocket.prepare``."""
        making = asyncio.ensure_future(self._prepare(data))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(lambda done: None if done.cancelled() or done.exception() else os.close(done.result()[0]))
            raise

    async def _prepare(self, data: BlobData) -> tuple[int, int]:
        """Do it; a cancelled caller does not end the thread."""
        source = await asyncio.to_thread(open, data, "rb", 0) if isinstance(data, os.PathLike) else data
        try:
            limit = limit_of(await self.exchange({"request": "stats"}), self.address) if is_copied_file(source) else None
            return await asyncio.to_thread(make_memfd, source, limit)
        finally:
            if isinstance(source, io.FileIO) and source is not data:
                source.close()

    async def exchange(self, members: dict[str, object], fd: int | None = None) -> Reply:
        """Send a request, and return its response. A cancelled one is finished in the background. Raises as ``BlobSocket.exchange``."""
        # A copy, because the caller closes its own also when it is cancelled.
        copy = None if fd is None else os.dup(fd)
        task = asyncio.get_running_loop().create_task(self._locked(members, copy))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result().close())
            raise

    def close(self) -> None:
        """Close the connection. Harmless without one."""
        for task in self._tasks:
            task.cancel()
        if self._remote is not None:
            self._remote.close()
        self._drop()

    async def _locked(self, members: dict[str, object], fd: int | None) -> Reply:
        """Take a turn; close *fd* at the end."""
        deadline = Deadline("the response of sbus-blob", self._timeout)
        try:
            async with self._lock:
                return await self._exchange(members, fd, deadline)
        finally:
            if fd is not None:
                os.close(fd)

    async def _exchange(self, members: dict[str, object], fd: int | None, deadline: Deadline) -> Reply:
        """Do it with the lock, on a new connection if the service has closed the last one."""
        address = self.address
        try:
            for is_last in (self._socket is None or self._process != os.getpid(), True):
                sock = await self._connected(address, deadline)
                try:
                    await self._send(sock, members, fd, deadline)
                except (NoBlobService, TimeoutError):
                    raise
                except OSError as error:
                    if is_last:
                        # The service may have said why it closed the connection.
                        with contextlib.suppress(BlockingIOError, ConnectionResetError):
                            receive_reply(sock, address).close()
                        raise NoBlobService(address, error.strerror or str(error)) from None
                    self._drop()
                    continue
                return await self._receive(sock, address, deadline)
        except (NoBlobService, TimeoutError, asyncio.CancelledError):
            self._drop()
            raise
        raise AssertionError("the loop ends with a response or an error")

    async def _send(self, sock: socket.socket, members: dict[str, object], fd: int | None, deadline: Deadline) -> None:
        """Send a request, as ``BlobSocket._send``."""
        try:
            send_request(sock, members, fd)
        except PermissionError:
            send_request(sock, {"request": "stats"}, None)
            (await self._receive(sock, self.address, deadline)).close()
            send_request(sock, members, fd)

    async def _connected(self, address: str, deadline: Deadline) -> socket.socket:
        """Return the connection, a new one if there is none in this process."""
        if self._socket is not None and self._process == os.getpid():
            return self._socket
        self._drop()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            while True:
                deadline.check()
                sock.setblocking(False)
                try:
                    sock.connect(address)
                    break
                except BlockingIOError:  # too many clients wait to be accepted
                    await asyncio.sleep(0.01)
        except OSError as error:
            sock.close()
            if isinstance(error, TimeoutError):
                raise
            raise no_service(address, error) from None
        except asyncio.CancelledError:
            sock.close()
            raise
        self._socket, self._process = sock, os.getpid()
        return sock

    async def _receive(self, sock: socket.socket, address: str, deadline: Deadline) -> Reply:
        """Wait for the response."""
        loop = asyncio.get_running_loop()
        while True:
            readable = loop.create_future()
            loop.add_reader(sock, _wake, readable)
            try:
                await asyncio.wait_for(readable, deadline.remaining())
            except TimeoutError:
                raise deadline.expired() from None
            finally:
                loop.remove_reader(sock)
            try:
                return receive_reply(sock, address)
            except BlockingIOError:
                continue
            except OSError as error:
                if isinstance(error, NoBlobService):
                    raise
                raise NoBlobService(address, error.strerror or str(error)) from None

    def _drop(self) -> None:
        """Close the connection; in the child of a fork only its copy of it."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()


def _wake(readable: asyncio.Future[None]) -> None:
    """End the wait for *readable*."""
    if not readable.done():
        readable.set_result(None)
