"""The user at the other end of a loopback connection, as the kernel reports it. Source: sock_diag(7).

Every local user can connect to a loopback address. A program that serves only its own user there closes the connections of others: the
relay if it has neither keys nor certificates, and the WebSocket gateway.

The kernel reports uid 0 for a socket that its owner has closed. So only an open socket of an established connection counts.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from typing import Protocol

ESTABLISHED = 1
"""TCP_ESTABLISHED of linux/tcp_states.h."""

OVERFLOW_UID = 65_534
"""The kernel reports this number for users that this user namespace does not have."""

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1

_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence number, port."""
_REQUEST = struct.Struct("=BBBxI")
"""The beginning of inet_diag_req_v2: family, protocol, extensions, states."""
_ADDRESSES = struct.Struct("!HH16s16s")
"""inet_diag_sockid: the ports and addresses of both ends. Interface and cookie follow."""
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFF_FFFF, 0xFFFF_FFFF)
_ANSWER = struct.Struct("=BBBB48sIIIII")
"""inet_diag_msg: family, state, timer, retransmissions, sockid, expiry, both queues, uid, inode."""

Address = tuple[str, int]
"""A numeric address and a port."""


class AcceptedSocket(Protocol):
    """The part of an accepted socket that is needed; asyncio wraps the sockets that it serves."""

    def getpeername(self) -> tuple[str, int]:
        """Return the address of the client."""

    def getsockname(self) -> tuple[str, int]:
        """Return the address of this end."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Return a socket option."""


def is_trusted(user: int | None) -> bool:
    """Return whether *user* is root or the user of this process; an unknown user is neither."""
    return user is not None and user != OVERFLOW_UID and user in {0, os.geteuid()}


def client_user(served: AcceptedSocket) -> int | None:
    """Return the uid of the user whose socket is connected to *served*; None if the kernel does not report one. Takes microseconds.

    It is the user who created that socket, regardless of the process that has it now.
    """
    try:
        user = socket_user(served.getpeername()[:2], served.getsockname()[:2])
        # While this end is established, no other connection can have the same addresses, so the answer was about this one.
        state = served.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return None
    return user if state == ESTABLISHED else None


def socket_user(local: Address, remote: Address) -> int | None:
    """Return the uid of the open socket with an established connection from *local* to *remote*, None if there is none.

    Raises:
        OSError: the kernel cannot be queried.
    """
    ends = _packed(local), _packed(remote)
    family = socket.AF_INET if len(ends[0]) == len(ends[1]) == 4 else socket.AF_INET6
    wanted = _ADDRESSES.pack(local[1], remote[1], *ends)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << ESTABLISHED) + wanted + _NO_INTERFACE_NO_COOKIE
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.sendto(header + body, (0, 0))
        # The kernel has answered when sendto(2) returns. A missing answer is an error; waiting would not help.
        with contextlib.suppress(BlockingIOError):
            while True:
                answer, sender = kernel.recvfrom(8_192)
                if sender[0] == 0:
                    return _user_in(answer, local, remote)
    return None


def _user_in(answer: bytes, local: Address, remote: Address) -> int | None:
    """Return the uid in the kernel's answer, if it describes an open socket with an established connection between the two addresses."""
    if len(answer) < _HEADER.size + _ANSWER.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    family, state, _, _, ends, _, _, _, user, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    local_port, remote_port, local_address, remote_address = _ADDRESSES.unpack_from(ends)
    size = 4 if family == socket.AF_INET else 16
    found = (_plain(local_address[:size]), local_port), (_plain(remote_address[:size]), remote_port)
    is_open = state == ESTABLISHED and inode != 0
    return int(user) if is_open and found == ((_packed(local), local[1]), (_packed(remote), remote[1])) else None


def _packed(address: Address) -> bytes:
    """Return the bytes of *address*: four for IPv4, mapped into IPv6 or not."""
    return _plain(ipaddress.ip_address(address[0]).packed)


def _plain(packed: bytes) -> bytes:
    """Return IPv4-mapped IPv6 as IPv4."""
    mapped = ipaddress.IPv6Address(packed).ipv4_mapped if len(packed) == 16 else None
    return packed if mapped is None else mapped.packed
