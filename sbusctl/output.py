"""Standard output of sbusctl(1): text, pages, JSON, and received items. A closed pipe is distinguished from a broken bus."""

from __future__ import annotations

import base64
import contextlib
import enum
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from sbus.protocol.errors import SbusError

_NOT_RUN = (126, 127)
"""Exit statuses of a shell whose command is not executable, or not found. Source: sh(1p)."""

_NO_LOGIN = 2**32 - 1
"""Value of ``/proc/PID/loginuid`` for a process without a login session."""

ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class JsonStyle(enum.Enum):
    """How ``--json`` writes."""

    SHORT = "short"
    PRETTY = "pretty"
    OFF = "off"


class OutputClosedError(Exception):
    """The reader of standard output has gone, such as ``head``. sbusctl exits silently."""


class OutputError(SbusError):
    """Standard output cannot be written, for example because the disk is full."""


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def terminal_width() -> int | None:
    """Return the number of columns of standard output if it is a terminal, otherwise None."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def write_bytes(data: bytes) -> None:
    """Write *data* to standard output, buffered until :func:`flush`.

    Raises:
        OutputClosedError: its reader has gone.
        OutputError: it cannot be written.
    """
    try:
        sys.stdout.buffer.write(data)
    except OSError as error:
        raise _output_error(error) from None


def flush() -> None:
    """Write the buffer. Raises what :func:`write_bytes` raises."""
    try:
        sys.stdout.buffer.flush()
    except OSError as error:
        raise _output_error(error) from None


def encode(text: str) -> bytes:
    """Return *text* in the encoding of standard output; other characters become backslash escapes."""
    return text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")


def write_lines(lines: Iterable[str]) -> None:
    """Write each of *lines* and a newline, and flush. Raises what :func:`write_bytes` raises."""
    write_bytes(encode("".join(f"{line}\n" for line in lines)))
    flush()


def write_page(lines: list[str], *, pager: bool) -> None:
    """Write *lines*; use the pager of the user if *pager* is set, the terminal is too small, and standard output is a terminal."""
    if not (pager and is_terminal() and sys.stdin.isatty() and len(lines) >= shutil.get_terminal_size().lines):
        write_lines(lines)
        return
    # As in systemd's tools: exit if it fits after all, pass colors, chop lines, keep the screen.
    os.environ.setdefault("LESS", "FRSXMK")
    # A user that may run only sbusctl as root must not get a shell from the pager.
    os.environ["LESSSECURE"] = "1"
    if is_elevated():
        # Other pagers may not know the variable, and a newer less allows what LESSSECURE_ALLOW names.
        for name in ("PAGER", "MANPAGER", "LESSOPEN", "LESSCLOSE", "LESSKEYIN", "LESSKEY", "LESSSECURE_ALLOW"):
            os.environ.pop(name, None)
    is_dumb = os.environ.get("TERM") in ("dumb", "emacs")
    command = os.environ.get("MANPAGER") or os.environ.get("PAGER") or (None if is_dumb else shutil.which("less"))
    if command is None or not run_pager(command, "".join(f"{line}\n" for line in lines)):
        write_lines(lines)


def run_pager(command: str, text: str) -> bool:
    """Show *text* with the shell command *command*, and return whether it could be run; the shell reports why not."""
    import subprocess  # noqa: PLC0415 - most calls show no page, and this import is slow

    try:
        process = subprocess.Popen(("sh", "-c", command), stdin=subprocess.PIPE)
    except OSError:
        return False
    # Ctrl-C is for the pager, as in other programs. A pager that ends early has shown enough.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with contextlib.suppress(BrokenPipeError):
            process.communicate(encode(text))
    finally:
        signal.signal(signal.SIGINT, before)
    return process.returncode not in _NOT_RUN


def is_elevated() -> bool:
    """Return whether this process may have other rights than the user at the terminal.

    sudo, run0, pkexec, doas or su started it, or its user is not that of the login session. As in systemd's tools, SYSTEMD_PAGERSECURE in
    systemctl(1).
    """
    if any(name in os.environ for name in ("SUDO_UID", "PKEXEC_UID", "DOAS_USER")) or os.geteuid() != os.getuid():
        return True
    try:
        login = int(Path("/proc/self/loginuid").read_text("ascii"))
    except (OSError, ValueError):
        # A kernel without audit has no such file.
        return False
    return login not in (_NO_LOGIN, os.geteuid())


def write_json(value: Mapping[str, object], style: JsonStyle) -> None:
    """Write *value* as one JSON document and a newline, and flush. Raises what :func:`write_bytes` raises."""
    write_bytes(json_text(value, style).encode("ascii") + b"\n")
    flush()


def json_text(value: Mapping[str, object], style: JsonStyle) -> str:
    """Return *value* as JSON in ASCII, so that it cannot control a terminal; in one line unless *style* is PRETTY."""
    indent = 2 if style is JsonStyle.PRETTY else None
    separators = None if style is JsonStyle.PRETTY else (",", ":")
    # JSON does not escape DEL.
    return json.dumps(value, indent=indent, separators=separators).replace("\x7f", "\\u007f")


def visible(value: bytes | str) -> str:
    r"""Return *value* as one line in which every character is visible.

    Bytes that are not UTF-8, control and format characters (C0, C1, bidirectional marks) and line breaks become backslash escapes, such
    as ``\n``, ``\x1b``, ``\u202e``. Unlike :func:`sbus.protocol.printable.printable` it does not truncate, and does not escape
    backslashes, so that JSON stays readable and escaped text stays the same; ``--json`` is exact.
    """
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _output_error(error: OSError) -> Exception:
    """Return the exception for a failed write to standard output."""
    if isinstance(error, BrokenPipeError):
        return OutputClosedError()
    return OutputError(f"cannot write to standard output: {error.strerror or error}")


def _escaped(character: str) -> str:
    """Return the backslash escape of one character; a surrogate is a byte that is not UTF-8."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """Return *value* under *name*, or in base64 under ``<name>_base64`` if it is not UTF-8."""
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


class Writer(Protocol[ItemT_contra]):
    """Writes items to standard output, and counts those that match the request; loss notices are not counted."""

    printed: int

    def write(self, item: ItemT_contra) -> None:
        """Write one item."""


def follow(
    receive: Callable[[float | None], ItemT],
    writer: Writer[ItemT],
    count: int | None,
    deadline: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Write the results of *receive* until *count* are printed or *clock* reaches *deadline*, in seconds; None: no limit.

    Standard output is flushed when no item is available: prompt on a quiet bus, with few system calls on a busy one.
    """
    while count is None or writer.printed < count:
        try:
            item = receive(0)
        except TimeoutError:
            flush()
            remaining = None if deadline is None else deadline - clock()
            if remaining is not None and remaining <= 0:
                return
            try:
                item = receive(remaining)
            except TimeoutError:
                return
        writer.write(item)
