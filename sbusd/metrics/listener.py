"""The listening sockets: passed by systemd, or created. Spec: sbus-metrics(8); sd_listen_fds(3)."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket

from systemd import daemon

from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable

MODE = 0o666
"""Mode of a Unix socket that the program creates: it decides by peer credentials."""

_REMEDY = "use ListenStream= with Accept=no in the .socket unit"


class ListenError(SbusError, OSError):
    """The program cannot listen; the text is one line."""


def passed_sockets() -> list[socket.socket]:
    """Return the listening sockets that systemd has passed, none without systemd. Raises ListenError if they are of another type."""
    try:
        fds = list(dict(daemon.listen_fds_with_names(unset_environment=True)))
    except OSError as error:
        raise ListenError(f"cannot use the sockets of systemd: {error.strerror}") from None
    found = []
    for fd in fds:
        try:
            passed = socket.socket(fileno=fd)
        except OSError:
            raise ListenError(f"systemd passed a descriptor that is not a socket; {_REMEDY}") from None
        is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if passed.type != socket.SOCK_STREAM or passed.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6) or not is_listening:
            raise ListenError(f"systemd passed a socket of another type; {_REMEDY}")
        passed.setblocking(False)
        found.append(passed)
    return found


def created_socket(place: str) -> socket.socket:
    """Return a new listening socket at *place*: the path of a Unix socket, or the numeric loopback address ``HOST:PORT``.

    Raises:
        ListenError: that is not possible.
    """
    is_path = os.path.isabs(place)
    host, _, port = place.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not is_path and not (_is_loopback(bare) and port.isascii() and port.isdecimal()):
        raise ListenError(f"cannot listen on {printable(place)}: neither an absolute path nor a loopback address such as 127.0.0.1:19722")
    family = socket.AF_UNIX if is_path else socket.AF_INET6 if ":" in bare else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place if is_path else (bare, int(port)))
        if is_path:
            os.chmod(place, MODE)
        made.listen(socket.SOMAXCONN)
    except (OSError, OverflowError) as error:
        made.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ListenError(f"cannot listen on {printable(place)}: {reason}") from None
    made.setblocking(False)
    return made


def address_of(listening: socket.socket) -> str:
    """Return the address of a listening socket, for people."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return printable(os.fsdecode(name))
    return f"[{name[0]}]:{name[1]}" if listening.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"


def remove_created(listening: socket.socket, place: str) -> None:
    """Close a socket that :func:`created_socket` has made at *place*, and remove its file."""
    listening.close()
    if os.path.isabs(place):
        with contextlib.suppress(OSError):
            os.unlink(place)


def _is_loopback(host: str) -> bool:
    """Return whether *host* is a numeric loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
