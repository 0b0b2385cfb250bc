"""Large messages: checks the responses of sbus-blob(8), and maps blobs. Nothing here waits."""

from __future__ import annotations

import array
import os
import socket
import time
from dataclasses import dataclass

from sbus.arguments import check_count, check_seconds, check_type
from sbus.errors import BlobRefused, NoBlobService
from sbus.items import BlobGone, BlobMessage, Message
from sbus.memory_files import is_sealed, map_file
from sbus.protocol.blobs import (
    MAX_DESCRIPTORS,
    MAX_EXPIRE,
    MAX_PASS_EXPIRE,
    MAX_RESPONSE_BYTES,
    MAX_USES,
    BlobRequestError,
    Reference,
    blob_address,
    encode_object,
    parse_object,
)
from sbus.protocol.credentials import Credentials, Peer

BlobRecipient = int | str | Peer | None
"""The recipient of a blob: a uid, ``gid:NUMBER``, ``conn:NUMBER``, a connection, or None for every user with the ticket."""

ADDRESS_VARIABLE = "SBUS_BLOB_ADDRESS"
"""The environment variable with the path of the service's socket; without it, the socket is next to that of the bus."""

PULL_SECONDS = MAX_EXPIRE + 60.0
"""How long the service may take for a blob of another host: until the blob has expired there."""

_LARGEST_ID = (1 << 32) - 1
_LARGEST_FD = (1 << 31) - 1
_NO_DESCRIPTOR = "the response has no descriptor: this process may have too many, or a security policy of this machine denies it"

_ROOM = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob, from ``get_blob``: ``data`` is a read-only view of its pages, which never change. ``owner`` has created it."""

    data: memoryview
    type: str
    owner: Credentials


@dataclass(frozen=True, slots=True)
class Reply:
    """A response of the service, and its descriptor, or None. The receiver closes it."""

    members: dict[str, object]
    fd: int | None = None

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd is not None:
            os.close(self.fd)


def service_address(bus: str) -> str:
    """Return the path of the service's socket for the bus at *bus*. Raises NoBlobService if the bus has no path."""
    if given := os.environ.get(ADDRESS_VARIABLE):
        return given
    if not bus or bus.startswith(("/dev/fd/", "/dev/unix/abstract")):
        raise NoBlobService(bus, f"the address of the bus is not a path; set ${ADDRESS_VARIABLE} to the socket of sbus-blob")
    return blob_address(bus)


def recipient_text(to: BlobRecipient) -> str:
    """Return the member ``for`` of a request. The service checks the form of a text. Raises TypeError, ValueError."""
    if to is None:
        return "anyone"
    if isinstance(to, Peer):
        return f"conn:{to.connection}"
    if isinstance(to, str) and to:
        return to
    if to == "":
        raise ValueError("invalid to '': must be a uid, gid:NUMBER, conn:NUMBER, or None for every user with the ticket")
    check_count(to, "to", 0, _LARGEST_ID)
    return f"uid:{to}"


def put_terms(kind: str, expire: float, uses: int | None, to: BlobRecipient, *, keep: bool) -> dict[str, object]:
    """Return the terms of a blob of media type *kind* that is published. Raises TypeError, ValueError."""
    check_type(kind, str, "type", "str, a media type")
    check_seconds(expire, "expire", MAX_EXPIRE)
    if uses is not None:
        check_count(uses, "uses", 1, MAX_USES)
    return {"type": kind, "expire": expire, "uses": uses, "for": recipient_text(to), "keep": bool(keep)}


def pass_request(fd: int, to: BlobRecipient, expire: float) -> dict[str, object]:
    """Return the request to pass *fd*. Raises TypeError, ValueError; OSError if it is not open."""
    check_count(fd, "fd", 0, _LARGEST_FD)
    check_seconds(expire, "expire", MAX_PASS_EXPIRE)
    os.fstat(fd)  # an error of sendmsg(2) would end the connection, and the blobs that end with it
    return {"request": "put", "kind": "any", "for": recipient_text(to), "expire": expire}


def send_request(sock: socket.socket, members: dict[str, object], fd: int | None) -> None:
    """Send a request, which has room in the socket because the response to the last one was read. Raises OSError."""
    ancillary = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sock.sendmsg([encode_object(members)], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive_reply(sock: socket.socket, address: str) -> Reply:
    """Return a response.

    Raises:
        BlobRefused: the service refused the request.
        NoBlobService: the service has closed the connection, or is none.
        OSError: of recvmsg(2), also if no packet has arrived.
    """
    data, control, _, _ = sock.recvmsg(MAX_RESPONSE_BYTES, _ROOM, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    try:
        members = _members_of(data, address)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    for fd in fds[1:]:  # the service sends one
        os.close(fd)
    return Reply(members, fds[0] if fds else None)


def _members_of(data: bytes, address: str) -> dict[str, object]:
    """Return the members of a response. Raises as :func:`receive_reply`."""
    if not data:
        raise NoBlobService(address, "the service closed the connection; it may have been restarted")
    try:
        members = parse_object(data)
    except BlobRequestError as error:
        raise NoBlobService(address, f"the response is {error}") from None
    if "error" in members:
        raise BlobRefused(str(members["error"]), str(members.get("cause")), str(members.get("reason")))
    return members


def blob_of(reply: Reply, address: str) -> Blob:
    """Return the blob in the response to ``get``, and close its descriptor.

    Raises:
        NoBlobService: the response has no sealed memfd of the size that it says.
    """
    try:
        members, fd = reply.members, reply.fd
        if fd is None:
            raise NoBlobService(address, _NO_DESCRIPTOR)
        size, kind, owner = members.get("size"), members.get("type"), members.get("from")
        ids = [owner.get(name) for name in ("pid", "uid", "gid")] if isinstance(owner, dict) else []
        pid, uid, gid = (each if isinstance(each, int) else -1 for each in (ids or [-1] * 3))
        if not isinstance(kind, str) or not isinstance(size, int) or not is_sealed(fd) or os.fstat(fd).st_size != size:
            raise NoBlobService(address, "the response is not a sealed memfd of the size that it says")
        return Blob(map_file(fd, size), kind, Credentials(pid, uid, gid))
    except OSError as error:
        if isinstance(error, NoBlobService):
            raise
        raise NoBlobService(address, f"cannot map the blob: {error.strerror}") from None
    finally:
        reply.close()


def descriptor_of(reply: Reply, address: str) -> int:
    """Return the descriptor in the response to ``get``. Raises NoBlobService if there is none."""
    if reply.fd is None:
        raise NoBlobService(address, _NO_DESCRIPTOR)
    return reply.fd


def ticket_of(reply: Reply, address: str) -> str:
    """Return the ticket in the response to ``put``. Raises NoBlobService if there is none."""
    return ticket_and_host_of(reply, address)[0]


def ticket_and_host_of(reply: Reply, address: str) -> tuple[str, str]:
    """Return the ticket in the response to ``put``, and the name of this host. Raises NoBlobService without a ticket."""
    reply.close()
    ticket, host = reply.members.get("ticket"), reply.members.get("host")
    if not isinstance(ticket, str):
        raise NoBlobService(address, "the response has no ticket")
    return ticket, host if isinstance(host, str) else os.uname().nodename


def limit_of(reply: Reply, address: str) -> int:
    """Return the quota of bytes in the response to ``stats``. Raises NoBlobService if there is none."""
    reply.close()
    limits = reply.members.get("limits")
    limit = limits.get("bytes") if isinstance(limits, dict) else None
    if not isinstance(limit, int):
        raise NoBlobService(address, "the response has no quota of bytes")
    return limit


def reference_payload(ticket: str, size: int, media_type: str, expire: float, host: str) -> bytes:
    """Return the payload of the message that refers to a blob of this *host*."""
    return Reference(ticket, size, media_type, host, round(time.time() + expire, 3)).encode()


def get_request(ticket: str, host: str) -> dict[str, object]:
    """Return the request for a blob of *host*; empty is this one. Raises TypeError."""
    check_type(host, str, "host", "str")
    return ticket_request("get", ticket, host=host) if host else ticket_request("get", ticket)


def ticket_request(name: str, ticket: str, **members: object) -> dict[str, object]:
    """Return the request *name* about *ticket*. Raises TypeError."""
    check_type(ticket, str, "ticket", "str")
    return {"request": name, "ticket": ticket, **members}


def message_with(message: Message, blob: Blob) -> BlobMessage:
    """Return *message*, which refers to *blob*, with its content."""
    return BlobMessage(message.key_bytes, message.payload, message.sender, blob.data, blob.type, blob.owner)


def gone(message: Message, reason: str) -> BlobGone:
    """Return what a subscription yields instead of *message*."""
    return BlobGone(1, reason, message)
