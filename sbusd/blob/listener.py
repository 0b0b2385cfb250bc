"""The listening socket: passed by systemd, or created. Spec: sbus-blob(8); sd_listen_fds(3), unix(7)."""

from __future__ import annotations

import errno
import os
import socket
import stat

from systemd import daemon

from sbusd.client.errors import systemctl
from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable

MODE = 0o666
"""Mode of a socket that the program creates: the service decides by peer credentials."""


class ListenError(SbusError, OSError):
    """The service cannot listen; the text is one line."""


def listening_socket(path: str | None, default: str) -> tuple[socket.socket, str]:
    """Return a listening socket of type SEQPACKET and its address: a new one at *path*, or else that of systemd, or one at *default*.

    Raises:
        ListenError: systemd passed another socket, or the socket cannot be created.
    """
    if path is None and (passed := _passed()) is not None:
        name = passed.getsockname()
        return passed, os.fsdecode(name)
    try:
        return _created(path or default), path or default
    except ListenError as error:
        if path is not None or not os.environ.get("NOTIFY_SOCKET"):
            raise
        # The socket unit does not hold the socket any more, as after mask and unmask.
        raise ListenError(f"systemd passed no socket: run: {systemctl(default)} restart sbus-blob.socket ({error})") from None


def _passed() -> socket.socket | None:
    """Return the socket that systemd passed, or None."""
    try:
        fds = list(dict(daemon.listen_fds_with_names(unset_environment=True)))
    except OSError as error:
        raise ListenError(f"cannot use the sockets of systemd: {error.strerror}") from None
    if not fds:
        return None
    remedy = "use one ListenSequentialPacket= and Accept=no in the .socket unit"
    if len(fds) > 1:
        raise ListenError(f"systemd passed {len(fds)} sockets; {remedy}")
    try:
        passed = socket.socket(fileno=fds[0])
    except OSError:
        raise ListenError(f"systemd passed a descriptor that is not a socket; {remedy}") from None
    is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if (passed.family, passed.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET) or not is_listening:
        raise ListenError(f"systemd passed a socket of another type; {remedy}")
    return passed


def _created(path: str) -> socket.socket:
    """Return a new socket at *path*; a socket there that no process uses is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        os.fchmod(made.fileno(), MODE)
        umask = os.umask(0)
        try:
            _bind(made, path)
        finally:
            os.umask(umask)
        made.listen(socket.SOMAXCONN)
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)  # a path that is too long has no strerror
        raise ListenError(f"cannot listen on {printable(path)}: {reason}; choose another path with --listen") from None
    return made


def _bind(made: socket.socket, path: str) -> None:
    """Bind *made* to *path*. Raises OSError."""
    try:
        made.bind(path)
    except OSError:
        if not _is_abandoned(path):
            raise
        os.unlink(path)
        made.bind(path)


def _is_abandoned(path: str) -> bool:
    """Return whether there is a socket at *path* that no process uses."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.setblocking(False)
            return probe.connect_ex(path) == errno.ECONNREFUSED
    except OSError:
        return False
