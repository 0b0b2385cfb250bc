"""Standard output and standard error of sbusctl(1). A closed pipe is distinguished from a broken bus."""

from __future__ import annotations

import enum
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from sbusd.protocol.errors import ProtocolError, SbusError

_COMPLAINT_CHARACTERS = 480
"""Maximum length of an error line in characters: six lines of a terminal, even if the error quotes a long key."""


_NO_LOGIN = 2**32 - 1
"""Value of ``/proc/PID/loginuid`` for a process without a login session."""


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
    from rich.pager import SystemPager  # noqa: PLC0415 - most calls show no page, and this import is slow

    # As in systemd's tools: exit if it fits after all, pass colors, chop lines, keep the screen.
    os.environ.setdefault("LESS", "FRSXMK")
    # A user that may run only sbusctl as root must not get a shell from the pager.
    os.environ["LESSSECURE"] = "1"
    if is_elevated():
        # Other pagers may not know the variable, and a newer less allows what LESSSECURE_ALLOW names.
        for name in ("PAGER", "MANPAGER", "LESSOPEN", "LESSCLOSE", "LESSKEYIN", "LESSKEY", "LESSSECURE_ALLOW"):
            os.environ.pop(name, None)
        if shutil.which("less") is None:
            write_lines(lines)
            return
    SystemPager().show("".join(f"{line}\n" for line in lines))


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
    as ``\n``, ``\x1b``, ``\u202e``. Unlike :func:`sbusd.protocol.printable.printable` it does not truncate, and does not escape
    backslashes, so that JSON stays readable and escaped text stays the same; ``--json`` is exact.
    """
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def error_text(error: Exception) -> str:
    """Return the text of *error*; of a ProtocolError without its code, which is for programs."""
    if isinstance(error, ProtocolError):
        return error.words
    if isinstance(error, OSError) and not isinstance(error, SbusError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def print_error(message: str) -> None:
    """Print *message* to standard error in one line, after ``sbusctl:``. It ignores write errors."""
    line = visible(message)
    if len(line) > _COMPLAINT_CHARACTERS:
        # Truncated in the middle, where a long key or pattern is quoted: the reason is at the end.
        half = _COMPLAINT_CHARACTERS // 2
        line = f"{line[:half]}…{line[-half:]}"
    try:
        sys.stderr.write(f"sbusctl: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


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
