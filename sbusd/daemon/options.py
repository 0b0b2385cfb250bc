"""The command line. Spec: sbusd(8).

The short options have the meaning of the original server, so that sbusd can replace it in any script.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sbus.protocol import __version__
from sbus.protocol.addresses import Address, parse_address
from sbus.protocol.errors import BadAddressError, SbusError
from sbus.protocol.printable import LINE_CHARACTERS, printable
from sbus_programs.config import UnknownUserError, default_main_file, find_uid
from sbus_programs.standard_output import print_line

SYSTEM_ADDRESS = "/run/sbus.socket"
DEFAULT_PID_FILE = Path("/run/sbus.pid")
NO_PID_FILE = Path("/dev/null")
"""``-p /dev/null`` means no pid file."""

BASE_MODE = 0o700
GROUP_MODE = 0o070
OTHERS_MODE = 0o007


class UsageError(SbusError, ValueError):
    """The command line is invalid; the text is one line. The program exits with status 1, as the original does."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    address: Address | None = None
    """``-a``; None means the socket of systemd, or :meth:`default_address`."""
    stream_address: Address | None = None
    """``--stream-address``; None means the stream socket of systemd, or none."""
    foreground: bool = False
    pid_file: Path | None = DEFAULT_PID_FILE
    """None means no pid file. Absolute, because the bus changes its working directory."""
    allowed_users: tuple[int, ...] = ()
    """Ids of ``-u``, in addition to those of the configuration. If both are empty, everyone may connect."""
    exit_after_last: bool = False
    socket_mode: int = BASE_MODE
    reuse_address: bool = False
    config_file: Path | None = None
    """``-C``: a file that must exist. None means the default one, which need not exist."""
    check_config: bool = False
    user_bus: bool = False
    stalls_file: Path | None = None
    """The file for the longest stalls, written at the end; absolute."""

    @property
    def main_file(self) -> Path:
        """The main configuration file, from ``-C`` or the default. It need not exist."""
        return self.config_file or default_main_file(user_bus=self.user_bus)

    def default_address(self, environment: Mapping[str, str] = os.environ) -> Address:
        """Return the address without ``-a`` and without a socket of systemd: ``/run/sbus.socket``, or that of the user bus.

        Raises:
            UsageError: ``--user`` is given, and $XDG_RUNTIME_DIR is not an absolute path.
        """
        if not self.user_bus:
            return parse_address(SYSTEM_ADDRESS)
        folder = environment.get("XDG_RUNTIME_DIR", "")
        if not os.path.isabs(folder):
            raise UsageError("--user requires $XDG_RUNTIME_DIR to be an absolute path; log in through PAM, set it, or use -a")
        return _address(f"{folder}/sbus.socket")


def parse_options(arguments: Sequence[str]) -> Options:
    """Return the options in *arguments*, without the program name. Prints and raises SystemExit(0) for --help and --version.

    Raises:
        UsageError: they are invalid.
    """
    values = _parser().parse_args(arguments)
    try:
        users = tuple(find_uid(user) for user in values.users)
    except UnknownUserError as error:
        raise UsageError(f"-u: {error}") from None
    return Options(
        address=None if values.address is None else _address(values.address),
        stream_address=None if values.stream_address is None else _address(values.stream_address, "--stream-address"),
        foreground=values.foreground,
        pid_file=None if values.pid_file == NO_PID_FILE else _absolute(values.pid_file),
        allowed_users=users,
        exit_after_last=values.exit_after_last,
        socket_mode=BASE_MODE | (GROUP_MODE if values.group else 0) | (OTHERS_MODE if values.others else 0),
        reuse_address=values.reuse_address,
        config_file=None if values.config is None else _absolute(values.config),
        check_config=values.check_config,
        user_bus=values.user,
        stalls_file=None if values.stalls is None else _absolute(values.stalls),
    )


def _address(text: str, option: str = "-a") -> Address:
    """Return the address *text* of *option*. Raises UsageError."""
    try:
        return parse_address(text)
    except BadAddressError as error:
        raise UsageError(f'{option}: "{printable(text)}" {error.reason}') from None


def _absolute(path: Path) -> Path:
    """Return the absolute *path*: the bus changes its working directory."""
    return Path(os.path.abspath(path))


def _path(text: str) -> Path:
    """Return *text* as a path. Raises ArgumentTypeError if it is empty, which Path would take for the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return Path(text)


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError, with a text of one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{printable(message, LINE_CHARACTERS)}; see `sbusd --help`")

    def _print_message(self, message: str, _file: object = None) -> None:
        """Print the text of --help or --version. Exits with status 1 if it cannot be written."""
        print_line("sbusd", message.removesuffix("\n"))


def _parser() -> _Parser:
    """Return the parser. The short options except -C are those of the original; the long ones are new."""
    parser = _Parser(prog="sbusd", description="A message bus for one machine.", allow_abbrev=False, epilog="See sbusd(8).")
    add = parser.add_argument
    add("-a", "--address", metavar="ADDRESS", help="listen on ADDRESS: a path, /dev/unix/abstract[/HEX] or /dev/fd/N")
    add("--stream-address", metavar="ADDRESS", help="listen on ADDRESS too, for clients that use a stream socket")
    add("-f", "--foreground", action="store_true", help="stay in the foreground; close standard output when the bus is ready")
    add("-p", "--pid-file", metavar="FILE", type=_path, default=DEFAULT_PID_FILE, help="in the background, write the process id to FILE")
    add("-u", "--allow-user", metavar="USER", dest="users", action="append", default=[], help="allow only USER, a name or id; repeatable")
    add("-c", "--exit-after-last", action="store_true", help="exit when the last client disconnects")
    add("-g", "--group-access", dest="group", action="store_true", help="allow the group of the socket to connect")
    add("-o", "--others-access", dest="others", action="store_true", help="allow all other users to connect; use with -g")
    add("-r", "--reuse-address", action="store_true", help="replace an existing socket or empty file at ADDRESS")
    add("-C", "--config", metavar="FILE", type=_path, help="read the configuration from FILE and FILE.d/*.toml")
    add("--check-config", action="store_true", help="check the configuration and exit")
    add("--user", action="store_true", help="run a user bus: use the socket and configuration of the user")
    add(
        "--stalls",
        metavar="FILE",
        type=_path,
        help="measure stalls of the main loop and write them to FILE at exit; for tests",
    )
    add("--version", action="version", version=f"sbusd {__version__}")
    return parser
