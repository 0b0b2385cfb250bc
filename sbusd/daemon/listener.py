"""The listening sockets: passed by systemd, inherited, or bound here. Spec: sbusd(8), sd_listen_fds(3), unix(7).

The bus has one of type SEQPACKET. It may have a second one of type STREAM, for languages that do not have SEQPACKET.

Opening and listening are two steps. Clients see the process that calls listen(2) as the server. So the bus opens its socket while errors
still go to the terminal, and listens when it has gone to the background.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Mapping

from systemd import daemon

from sbus.protocol.addresses import SUN_PATH_BYTES, Address, InheritedDescriptor, RandomAbstract, UnixName
from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_programs.config import default_main_file
from sbusd.daemon.options import Options

_FIRST_FREE_FD = 3
"""Smaller numbers are standard streams, which the bus replaces. A socket that was passed as one of them is moved."""

_NOT_REMOVED = "neither a socket nor an empty file"
"""Files that ``-r`` does not remove."""

_LISTEN_SETTINGS = {socket.SOCK_SEQPACKET: "ListenSequentialPacket=", socket.SOCK_STREAM: "ListenStream="}
"""The setting of a .socket unit for each type."""

_TYPES = {socket.SOCK_SEQPACKET: "SEQPACKET", socket.SOCK_STREAM: "STREAM", socket.SOCK_DGRAM: "DGRAM", socket.SOCK_RAW: "RAW"}


class ListenError(SbusError, OSError):
    """The bus has no socket to listen on; the text is one line. The program exits with status 1."""


class Listener:
    """A Unix socket for clients, of type SEQPACKET or STREAM: non-blocking, and closed on exec.

    Call :meth:`listen` in the final process, and :meth:`close` at the end.
    """

    def __init__(self, bound: socket.socket, *, made: os.stat_result | None = None, announce: bool = False) -> None:
        """Own *bound*. *made* is the result of stat(2) for its path, if the bus created that; *announce*: print the address."""
        bound.setblocking(False)
        self.socket = bound
        self._made = made
        self._announce = announce
        name = bound.getsockname()
        # The bus changes its working directory.
        self._path = os.path.abspath(os.fsencode(name)) if made else b""
        self.address = _address_text(os.fsencode(name))

    def listen(self) -> None:
        """Let clients connect, and print a random address.

        Raises:
            ListenError: listen(2) failed, or the address could not be written to standard output.
        """
        try:
            self.socket.listen(socket.SOMAXCONN)
        except OSError as error:
            raise ListenError(f"cannot listen on {self.address}: {error.strerror}") from None
        if self._announce:
            try:
                os.write(1, f"{self.address}\n".encode())
            except OSError as error:
                raise ListenError(f"cannot write the address to standard output: {error.strerror}; keep it open") from None

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.socket.fileno()

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the path, if the bus created it: the process that takes over the socket removes it at the end."""
        return None if self._made is None else (self._made.st_dev, self._made.st_ino)

    def close(self) -> None:
        """Stop listening, and remove the path if the bus created it and it is still the same file. May be called twice."""
        self.socket.close()
        made, self._made = self._made, None
        # Another process may have removed or replaced the path; then it belongs to that process.
        with contextlib.suppress(OSError):
            if made is not None and os.path.samestat(os.lstat(self._path), made):
                os.unlink(self._path)


def resume_listener(fd: int, made: tuple[int, int] | None, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> Listener:
    """Return a listener of this process after a restart in place; *made* is its :attr:`Listener.identity`, *kind* its type.

    Raises:
        ListenError: *fd* is not such a socket.
    """
    inherited = _checked_socket(fd, f"descriptor {fd}, inherited from the previous process", "start the bus again", kind, must_listen=True)
    path = os.fsencode(inherited.getsockname())
    found = None
    if made is not None:
        with contextlib.suppress(OSError):
            found = os.lstat(path)
    is_same = found is not None and (found.st_dev, found.st_ino) == made
    return Listener(inherited, made=found if is_same else None)


def open_listener(options: Options, passed: Mapping[int, str] | None = None) -> Listener:
    """Return the listener at the address of ``-a``, or else the socket that systemd passed, or else one at the default address.

    *passed* are the sockets that systemd passed, with their names; None means to call :func:`passed_descriptors`.

    Raises:
        ListenError: the socket does not exist, or has another type.
        UsageError: ``--user`` is given, and $XDG_RUNTIME_DIR does not give an address.
    """
    address = options.address
    if address is None:
        activated = _activated_socket(passed_descriptors() if passed is None else passed, socket.SOCK_SEQPACKET)
        if activated is not None:
            return Listener(activated)
        # A service without a socket has a socket unit that does not hold it any more, as after mask and unmask.
        is_service = bool(os.environ.get("NOTIFY_SOCKET"))
        is_user, instance = _instance(options)
        restart = f"systemctl {'--user ' if is_user else ''}restart sbus{instance}.socket"
        if is_service and instance:
            # Only the socket unit has the address of an instance. The default address is that of another bus.
            raise ListenError(f"systemd passed no socket: run: {restart}, or use -a")
        address = options.default_address()
        try:
            return _open(address, options, socket.SOCK_SEQPACKET)
        except ListenError as error:
            if not is_service:
                raise
            raise ListenError(f"systemd passed no socket: run: {restart} ({error})") from None
    return _open(address, options, socket.SOCK_SEQPACKET)


def _instance(options: Options) -> tuple[bool, str]:
    """Return whether the unit with *options* is a user's, and ``@NAME`` if ``-C`` is the file of ``sbus@NAME.service``, else ''."""
    file = options.config_file
    if file is None:
        return options.user_bus, ""
    is_user = options.user_bus or file.parent == default_main_file(user_bus=True).parent
    main_file = default_main_file(user_bus=is_user)
    # Any other file is that of a drop-in for the main unit.
    return is_user, f"@{file.stem}" if file.parent == main_file.parent and file != main_file else ""


def open_stream_listener(options: Options, passed: Mapping[int, str] | None = None) -> Listener | None:
    """Return the listener at the address of ``--stream-address``, or else the STREAM socket that systemd passed, or None.

    *passed* are the sockets that systemd passed, with their names. Without ``--stream-address`` they are ignored if ``-a`` is given.

    Raises:
        ListenError: the socket does not exist, or has another type.
    """
    if options.stream_address is not None:
        return _open(options.stream_address, options, socket.SOCK_STREAM)
    activated = None if options.address is not None else _activated_socket(passed or {}, socket.SOCK_STREAM)
    return None if activated is None else Listener(activated)


def _open(address: Address, options: Options, kind: socket.SocketKind) -> Listener:
    """Return a listener of type *kind* at *address*."""
    match address:
        case InheritedDescriptor(fd):
            # As in the original, a bound socket need not listen yet.
            remedy = f"pass a bound Unix socket of type {_TYPES[kind]}"
            return Listener(_checked_socket(fd, f"/dev/fd/{fd}", remedy, kind, must_listen=False))
        case RandomAbstract():
            # Random bytes of the operating system; the name has the maximum length.
            name = UnixName(b"\0" + os.urandom(SUN_PATH_BYTES - 1))
            return _bind(name, options, kind, announce=True)
        case UnixName():
            return _bind(address, options, kind, announce=False)


def passed_descriptors() -> dict[int, str]:
    """Return the descriptors that systemd passed, with their names. Works once, because it removes them from the environment.

    Source: sd_listen_fds(3). Raises ListenError if the environment is invalid.
    """
    variables = {name: os.environ.get(name, "") for name in ("LISTEN_FDS", "LISTEN_PID")}
    try:
        return dict(daemon.listen_fds_with_names(unset_environment=True))
    except OSError as error:
        said = " ".join(f"{name}={printable(value)}" for name, value in variables.items())
        raise ListenError(f"cannot use the sockets that {said} names: {error.strerror}; only systemd may set them") from None
    finally:
        # systemd's library removes them from the C environment, but Python has a copy.
        for variable in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
            os.environ.pop(variable, None)


def _activated_socket(passed: Mapping[int, str], kind: socket.SocketKind) -> socket.socket | None:
    """Return the socket of type *kind* that systemd passed, or None if it passed none. The bus itself needs one of type SEQPACKET."""
    streams = {fd: name for fd, name in passed.items() if _is_stream(fd)}
    # Without a SEQPACKET socket, the streams are refused below.
    others = {fd: name for fd, name in passed.items() if fd not in streams} or streams
    of_kind = streams if kind == socket.SOCK_STREAM else others
    setting = _LISTEN_SETTINGS[kind]
    if len(of_kind) > 1:
        raise ListenError(f"systemd passed {len(of_kind)} sockets, the bus needs one; use one {setting} in the .socket unit")
    if not of_kind:
        return None
    fd, name = next(iter(of_kind.items()))
    remedy = f"use {setting} and Accept=no in the .socket unit"
    return _checked_socket(fd, f"descriptor {fd}, {printable(name)}, passed by systemd", remedy, kind, must_listen=True)


def _is_stream(fd: int) -> bool:
    """Return whether a descriptor is a Unix socket of type STREAM."""
    try:
        inherited = socket.socket(fileno=fd)
    except (OSError, OverflowError):
        return False
    is_stream = inherited.family == socket.AF_UNIX and inherited.type == socket.SOCK_STREAM
    inherited.detach()
    return is_stream


def _checked_socket(fd: int, what: str, remedy: str, kind: socket.SocketKind, *, must_listen: bool) -> socket.socket:
    """Return the inherited descriptor *fd* as a socket, if clients can be accepted from it."""
    try:
        inherited = socket.socket(fileno=fd)
    except OverflowError:
        raise ListenError(f"cannot use {what}: not open; {remedy}") from None
    except OSError as error:
        problem = "not open" if error.errno == errno.EBADF else "not a socket"
        raise ListenError(f"cannot use {what}: {problem}; {remedy}") from None
    problem = _problem(inherited, kind, must_listen=must_listen)
    if problem:
        # The descriptor belongs to the process that passed it; do not close it.
        inherited.detach()
        raise ListenError(f"cannot use {what}: {problem}; {remedy}")
    moved = socket.socket(fileno=fcntl.fcntl(inherited, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD))
    if inherited.fileno() >= _FIRST_FREE_FD:
        inherited.close()
    else:
        inherited.detach()
    return moved


def _problem(inherited: socket.socket, kind: socket.SocketKind, *, must_listen: bool) -> str:
    """Return why a bus cannot use a socket, or an empty text."""
    if inherited.family != socket.AF_UNIX:
        family = getattr(inherited.family, "name", f"family {inherited.family}")
        return f"not a Unix socket but {family}"
    if inherited.type != kind:
        return f"a Unix socket of type {_TYPES.get(inherited.type, str(inherited.type))}, not {_TYPES[kind]}"
    if must_listen and not inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "the socket does not listen"
    return ""


def _bind(name: UnixName, options: Options, kind: socket.SocketKind, *, announce: bool) -> Listener:
    """Return a listener bound to *name*. Its path has the mode of *options* from the start, so that no other user can connect before."""
    if options.reuse_address and not name.is_abstract:
        _remove_obstacle(name)
    bound = socket.socket(socket.AF_UNIX, kind)
    try:
        os.fchmod(bound.fileno(), options.socket_mode)
        umask = os.umask(0)
        try:
            bound.bind(name.name)
        finally:
            os.umask(umask)
        return Listener(bound, made=None if name.is_abstract else os.lstat(name.name), announce=announce)
    except OSError as error:
        bound.close()
        raise ListenError(_bind_failure(name, kind, error)) from None


def _bind_failure(name: UnixName, kind: socket.SocketKind, error: OSError) -> str:
    """Return in one line why *name* could not be bound."""
    shown = printable(str(name))
    option = "-a" if kind == socket.SOCK_SEQPACKET else "--stream-address"
    if error.errno != errno.EADDRINUSE:
        return f"cannot listen on {shown}: {error.strerror}; choose another address with {option}, or run the bus as a user with access"
    if name.is_abstract:
        return f"cannot listen on {shown}: in use by another process; choose another address with {option}"
    obstacle = _stat(name)
    if obstacle is not None and not _may_remove(obstacle):
        return f"cannot listen on {shown}: the path exists and is {_NOT_REMOVED}; choose another address with {option}"
    if obstacle is not None and stat.S_ISREG(obstacle.st_mode):
        return f"cannot listen on {shown}: the path is an empty file; choose another address with {option}, or replace the file with -r"
    if _is_listened_to(name):
        return f"cannot listen on {shown}: in use by another process; choose another address with {option}, or replace the socket with -r"
    return f"cannot listen on {shown}: the path is a socket that no process uses; replace it with -r"


def _remove_obstacle(name: UnixName) -> None:
    """Remove the socket or empty file at the path *name*, if there is one; ``-r`` never removes anything else.

    No system call removes a file only if it is empty. So its size is checked immediately before.
    """
    shown = printable(str(name))
    obstacle = _stat(name)
    if obstacle is None:
        return
    if not _may_remove(obstacle):
        raise ListenError(f"cannot replace {shown}: {_NOT_REMOVED}; choose another address with -a")
    try:
        os.unlink(name.name)
    except OSError as error:
        raise ListenError(f"cannot replace {shown}: {error.strerror}; run the bus as a user with access") from None


def _stat(name: UnixName) -> os.stat_result | None:
    """Return the result of lstat(2) for the path *name*, or None if it does not exist."""
    try:
        return os.lstat(name.name)
    except OSError:
        return None


def _may_remove(obstacle: os.stat_result) -> bool:
    """Return whether ``-r`` removes it: a socket, or an empty regular file, as mktemp(1) creates to reserve a name."""
    return stat.S_ISSOCK(obstacle.st_mode) or (stat.S_ISREG(obstacle.st_mode) and obstacle.st_size == 0)


def _is_listened_to(name: UnixName) -> bool:
    """Return whether a process has the socket at the path *name* open, according to connect(2)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        return probe.connect_ex(name.name) != errno.ECONNREFUSED


def _address_text(name: bytes) -> str:
    """Return the address for clients, in the syntax of ``-a``."""
    return printable(str(UnixName(name))) if name else "an unnamed socket"
