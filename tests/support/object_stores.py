"""An object store that speaks S3, as a process of this machine, and a proxy in front of it that fails on purpose."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import io
import os
import random
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from sbus_archive.storage.location import RemotePath
from sbus_archive.storage.objects import ObjectClient, ObjectStore, connect

BUCKET = "records"
SECRET = "s3cr3t-of-the-test"
_SECONDS = 120
_SIGNATURE = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"

_SERVER = """
import functools, sys, threading
from moto.core import serialize
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from moto.s3.responses import S3Response
from werkzeug.serving import run_simple
lock, put = threading.Lock(), S3Response.put_object
def put_alone(self):
    with lock:
        return put(self)
S3Response.put_object = put_alone
serialize.parse_to_aware_datetime = functools.lru_cache(10_000)(serialize.parse_to_aware_datetime)
run_simple("127.0.0.1", int(sys.argv[1]), create_backend_app("s3"), threaded=True, request_handler=MotoRequestHandler)
"""
"""moto looks whether an object exists, and puts it later, in threads: two conditional puts could both succeed.

Its own program takes nearly twice the processor time: it looks for the service of each request among its folders, and parses each time
in a list again.
"""

FAULTS = ("error", "busy", "reset", "truncated", "slow", "lost-answer")
"""HTTP 500, HTTP 503, no answer, half the body of an answer, an answer in small parts, and an answer that gets lost.

There is also "stale": the previous answer to the same request for a list, as from a store that does not show new objects at once, and
"unconditional": a put replaces an object that exists, as in a store that ignores If-None-Match.
"""


def environment(port: int) -> dict[str, str]:
    """Return the variables of a client of the server at *port*."""
    return {
        "AWS_ACCESS_KEY_ID": "key-of-the-test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def without_retries(errors: str) -> str:
    """Return *errors* without the lines about repeated requests: a server that is busy for three seconds causes them."""
    return "".join(line for line in errors.splitlines(keepends=True) if not line.startswith("sbus: retried to "))


class ObjectServer:
    """A server of S3, with one empty bucket."""

    def __init__(self, folder: Path) -> None:
        self._reserved = _reserved_port()  # bound until the end, so that no other process is given it
        self.port = int(self._reserved.getsockname()[1])
        with (folder / "object-server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(self.port)],
                stdout=log,
                stderr=log,
                cwd=folder,
                env={"PATH": os.defpath},
            )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
                connection.request("PUT", f"/{BUCKET}", headers={"Authorization": _SIGNATURE})
                assert connection.getresponse().status == 200
                connection.close()
            except OSError:
                assert self._process.poll() is None, "moto_server has ended"
                assert time.monotonic() < deadline, "moto_server does not answer"
                time.sleep(0.1)
            else:
                return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait(60)
        self._reserved.close()

    def contents(self, prefix: str) -> dict[str, bytes]:
        """Return all objects below *prefix*, by their names below it."""
        from pyarrow import fs

        client = self.client(prefix)
        path, top, run = RemotePath("s3", BUCKET, prefix), f"{BUCKET}/{prefix}", client.attempts.run

        def content(name: str) -> bytes:
            with client.files.open_input_file(name) as stream:
                return bytes(stream.read_at(stream.size(), 0))

        found = run("list", path, lambda: client.files.get_file_info(fs.FileSelector(top, True, True)))
        names = [each.path for each in found if each.type == fs.FileType.File]
        return {name.removeprefix(f"{top}/"): run("read", path, partial(content, name)) for name in names}

    def client(self, prefix: str) -> ObjectClient:
        """Return a client of the server itself, not of a proxy."""
        return ObjectClient(partial(connect, "s3", BUCKET, environment(self.port)), "s3", BUCKET)

    def store(self, prefix: str) -> ObjectStore:
        """Return the objects below *prefix*, by a client of the server itself."""
        return ObjectStore(RemotePath("s3", BUCKET, prefix), self.client(prefix))


class KeyServer:
    """A server of S3 that is empty, and accepts one access key; requests with others have expired."""

    def __init__(self, key: str) -> None:
        self.key = key
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = 404, "<Error><Code>NoSuchKey</Code><Message>x</Message></Error>"
                if f"Credential={outer.key}/" not in self.headers["Authorization"]:
                    status, body = 400, "<Error><Code>ExpiredToken</Code><Message>x</Message></Error>"
                elif "list-type=2" in self.path:
                    status, body = 200, "<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", "application/xml")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body.encode())

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def address(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class FaultyProxy:
    """A proxy to the server at *upstream*. It lets a share of *chance* of the requests fail, in one of the ways of *faults*."""

    def __init__(self, upstream: int, *, seed: int = 1, chance: float = 0.0, faults: tuple[str, ...] = FAULTS) -> None:
        self.chance = chance
        self.faults = faults
        self.made: Counter[str] = Counter()
        """Number of faults of each kind."""
        self.requests = 0
        self._listings: dict[bytes, bytes] = {}
        """The last answer to each request for a list, for the fault "stale"."""
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError, ValueError):
                    proxy._forward(self.connection, self.rfile, upstream)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def environment(self) -> Mapping[str, str]:
        """Return the variables of a client of this proxy."""
        return environment(self.port)

    def _choose(self) -> str:
        """Return the fault of the next request, empty for none."""
        with self._lock:
            self.requests += 1
            fault = self._random.choice(self.faults) if self._random.random() < self.chance else ""
            if fault:
                self.made[fault] += 1
            return fault

    def _forward(self, client: socket.socket, stream: io.BufferedIOBase, upstream: int) -> None:
        """Pass on one request and its answer, and close the connection."""
        head = b"".join(_head(stream))
        if not head:
            return
        if b"100-continue" in head.lower():
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b"".join(_body(stream, head))
        fault = self._choose()
        if fault == "unconditional":
            head = b"".join(line for line in head.splitlines(keepends=True) if not line.lower().startswith(b"if-none-match:"))
        if fault in ("error", "busy"):
            status = b"500 Internal Server Error" if fault == "error" else b"503 Slow Down"
            client.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        if fault == "reset":
            _reset(client)
            return
        listing = head.split(b" HTTP/", 1)[0] if b"list-type=2" in head.split(b"\r\n", 1)[0] else b""
        if fault == "stale" and listing in self._listings:
            client.sendall(self._listings[listing])
            return
        answer = _ask(head, body, upstream)
        if listing and answer.startswith(b"HTTP/1.1 200"):
            self._listings[listing] = answer
        if fault == "lost-answer":
            _reset(client)
        elif fault == "truncated":
            begun = answer.index(b"\r\n\r\n") + 4
            client.sendall(answer[: begun + (len(answer) - begun) // 2])
        elif fault == "slow":
            step = max(1, len(answer) // 20)
            for start in range(0, len(answer), step):
                client.sendall(answer[start : start + step])
                time.sleep(0.01)
        else:
            client.sendall(answer)


def _head(stream: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield the lines of a request up to the empty one."""
    while line := stream.readline(65_536):
        yield line
        if line == b"\r\n":
            return


def _header(head: bytes, name: bytes) -> bytes:
    """Return the value of a header in lower case, empty if it is missing."""
    for line in head.lower().split(b"\r\n")[1:]:
        field, _, value = line.partition(b":")
        if field == name:
            return value.strip()
    return b""


def _body(stream: io.BufferedIOBase, head: bytes) -> Iterator[bytes]:
    """Yield the body of a request as it came."""
    if _header(head, b"transfer-encoding") == b"chunked":
        while True:
            line = stream.readline(65_536)
            yield line
            size = int(line.split(b";")[0], 16)
            if not size:
                yield from _head(stream)
                return
            yield stream.read(size + 2)
    else:
        yield stream.read(int(_header(head, b"content-length") or 0))


def _ask(head: bytes, body: bytes, upstream: int) -> bytes:
    """Return the whole answer of the server."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in lines if line.lower().partition(b":")[0] not in (b"connection", b"expect")]
    with socket.create_connection(("127.0.0.1", upstream), timeout=_SECONDS) as server:
        server.sendall(b"\r\n".join([first, *kept, b"Connection: close"]) + b"\r\n\r\n" + body)
        parts = []
        while part := server.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def _reset(client: socket.socket) -> None:
    """End the connection by a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def _reserved_port() -> socket.socket:
    """Return a socket that holds a free port; a server that sets SO_REUSEADDR can listen there."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    return probe
