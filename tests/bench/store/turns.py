"""A proxy between a client and its server that counts round trips: how often the client sends something and waits for the response."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

PACKET_BYTES = 1 << 20


class CountingProxy:
    """Passes one connection of a client at *address* on to *server*, a path or a port of 127.0.0.1; a context.

    *is_packets*: both sockets have packets, as the bus does.
    """

    def __init__(self, folder: Path, server: str, *, is_packets: bool) -> None:
        self._is_packets = is_packets
        self._server = server
        self.turns = 0
        if server.isdigit():
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = str(self._listener.getsockname()[1])
        else:
            self.address = str(folder / "proxy")
            self._listener = socket.socket(socket.AF_UNIX, self._kind)
            self._listener.bind(self.address)
            self._listener.listen()
        self._end, self._ending = os.pipe()
        self._thread = threading.Thread(target=self._accept)

    @property
    def _kind(self) -> int:
        return socket.SOCK_SEQPACKET if self._is_packets else socket.SOCK_STREAM

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._ending)
        self._thread.join()
        os.close(self._end)
        self._listener.close()
        if not self._server.isdigit():
            os.unlink(self.address)

    def _accept(self) -> None:
        """Pass on all connections until the end, and count the turns of all of them."""
        with selectors.DefaultSelector() as ready, ExitStack() as sockets:
            ready.register(self._end, selectors.EVENT_READ)
            ready.register(self._listener, selectors.EVENT_READ)
            peers: dict[socket.socket, socket.socket] = {}
            clients: set[socket.socket] = set()
            is_waiting = False
            while True:
                for key, _ in ready.select():
                    source = key.fileobj
                    if not isinstance(source, socket.socket):
                        return
                    if source is self._listener:
                        client, server = (sockets.enter_context(each) for each in (self._listener.accept()[0], self._connect()))
                        clients.add(client)
                        peers |= {client: server, server: client}
                        for each in (client, server):
                            ready.register(each, selectors.EVENT_READ)
                    elif self._passed(source, peers[source]):
                        is_client = source in clients
                        self.turns += is_client and not is_waiting
                        is_waiting = is_client
                    else:
                        ready.unregister(source)

    @staticmethod
    def _passed(source: socket.socket, target: socket.socket) -> bool:
        """Pass on what *source* has; return False if the connection has ended."""
        try:
            data = source.recv(PACKET_BYTES)
            if not data:
                target.shutdown(socket.SHUT_WR)
                return False
            target.sendall(data)
        except OSError:  # the other side has closed it
            return False
        return True

    def _connect(self) -> socket.socket:
        """Connect to the server."""
        if self._server.isdigit():
            return socket.create_connection(("127.0.0.1", int(self._server)))
        made = socket.socket(socket.AF_UNIX, self._kind)
        made.connect(self._server)
        return made
