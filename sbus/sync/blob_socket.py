"""The connection of a blocking program to sbus-blob(8). ``sbus.asyncio.blob_socket`` is the same for asyncio."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading

from sbus.blobs import PULL_SECONDS, Reply, limit_of, receive_reply, send_request, service_address
from sbus.errors import NoBlobService, is_default, systemctl
from sbus.memory_files import BlobData, is_copied_file, make_memfd, opened
from sbus.operations import Deadline


class BlobSocket:
    """A connection to the service of the bus at *bus*, made at the first request. Threads take turns. *timeout* is in seconds."""

    def __init__(self, bus: str, timeout: float | None) -> None:
        self._bus = bus
        self._timeout = timeout
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process = 0
        self._remote: BlobSocket | None = None

    @property
    def remote(self) -> BlobSocket:
        """The connection for blobs that may be on another host, on which others do not wait."""
        if self._remote is None:
            self._remote = BlobSocket(self._bus, None if self._timeout is None else max(self._timeout, PULL_SECONDS))
        return self._remote

    @property
    def address(self) -> str:
        """The path of the service's socket. Raises NoBlobService if the bus has no path."""
        return service_address(self._bus)

    def prepare(self, data: BlobData) -> tuple[int, int]:
        """Return a new sealed memfd with *data*, and its size. Of a file, at most the quota of the user is read: it can be endless.

        Raises what make_memfd and ``exchange`` raise.
        """
        with opened(data) as source:
            limit = limit_of(self.exchange({"request": "stats"}), self.address) if is_copied_file(source) else None
            return make_memfd(source, limit)

    def exchange(self, members: dict[str, object], fd: int | None = None) -> Reply:
        """Send a request, and return its response.

        After an error other than BlobRefused the connection is closed, so blobs that end with it are gone.

        Raises:
            BlobRefused: the service refused the request.
            NoBlobService: the service does not run.
            TimedOut: it did not respond in time.
        """
        deadline = Deadline("the response of sbus-blob", self._timeout)
        with self._lock:
            return self._exchange(members, fd, deadline)

    def close(self) -> None:
        """Close the connection. Harmless without one."""
        if self._remote is not None:
            self._remote.close()
        with self._lock:
            self._drop()

    def _exchange(self, members: dict[str, object], fd: int | None, deadline: Deadline) -> Reply:
        """Do it with the lock, on a new connection if the service has closed the last one."""
        address = self.address
        try:
            for is_last in (self._socket is None or self._process != os.getpid(), True):
                sock = self._connected(address, deadline)
                try:
                    self._send(sock, members, fd, deadline)
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
                return self._receive(sock, address, deadline)
        except (NoBlobService, TimeoutError, KeyboardInterrupt):
            self._drop()
            raise
        raise AssertionError("the loop ends with a response or an error")

    def _send(self, sock: socket.socket, members: dict[str, object], fd: int | None, deadline: Deadline) -> None:
        """Send a request. Raises OSError, and what ``exchange`` raises."""
        try:
            send_request(sock, members, fd)
        except PermissionError:
            # The kernel can refuse descriptors until the service has accepted the connection: a response shows that it has.
            send_request(sock, {"request": "stats"}, None)
            self._receive(sock, self.address, deadline).close()
            send_request(sock, members, fd)

    def _connected(self, address: str, deadline: Deadline) -> socket.socket:
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
                    select.select([], [], [], 0.01)
        except OSError as error:
            sock.close()
            if isinstance(error, TimeoutError):
                raise
            raise no_service(address, error) from None
        self._socket, self._process = sock, os.getpid()
        return sock

    def _receive(self, sock: socket.socket, address: str, deadline: Deadline) -> Reply:
        """Wait for the response."""
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while True:
            if not poll.poll(deadline.milliseconds):
                deadline.check()
                continue
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


def no_service(address: str, error: OSError) -> NoBlobService:
    """Return the error for a failure of connect(2), with advice."""
    if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
        reason = error.strerror or str(error)
    elif is_default(f"{address.removesuffix('-blob.socket')}.socket"):
        reason = f"no process listens; install sbus-blob and run: {systemctl(address)} restart sbus-blob.socket"
    else:
        reason = "no process listens; start sbus-blob for this bus, see sbus-blob(8)"
    return NoBlobService(address, reason)
