"""Standard output and standard error of sbusctl(1): bytes out, a closed pipe told apart from a broken bus."""

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
"""The longest complaint: six lines of a terminal, however long the key is that is wrong."""


_NO_LOGIN = 2**32 - 1
"""What ``/proc/PID/loginuid`` says of a process that no login session has started."""


class JsonStyle(enum.Enum):
    """How ``--json`` writes."""

    SHORT = "short"
    PRETTY = "pretty"
    OFF = "off"


class OutputClosedError(Exception):
    """The reader of standard output has gone, as ``head`` does. Not an error of ours: sbusctl ends without a word."""


class OutputError(SbusError):
    """Standard output cannot be written: a full disk, a descriptor that is not for writing."""


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def write_bytes(data: bytes) -> None:
    """Write *data* to standard output as it is; buffered until :func:`flush`.

    Raises:
        OutputClosedError: its reader has gone.
        OutputError: it cannot be written.
    """
    try:
        sys.stdout.buffer.write(data)
    except OSError as error:
        raise _output_error(error) from None


def flush() -> None:
    """Hand the kernel what is buffered. Raises what :func:`write_bytes` raises."""
    try:
        sys.stdout.buffer.flush()
    except OSError as error:
        raise _output_error(error) from None


def encode(text: str) -> bytes:
    """Return *text* in the encoding of standard output; what that cannot say becomes a backslash escape."""
    return text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")


def write_lines(lines: Iterable[str]) -> None:
    """Write each of *lines* and a newline, and flush. Raises what :func:`write_bytes` raises."""
    write_bytes(encode("".join(f"{line}\n" for line in lines)))
    flush()


def write_page(lines: list[str], *, pager: bool) -> None:
    """Write *lines*, through the user's pager if *pager* is set, they are more than the terminal shows, and it is a terminal."""
    if not (pager and is_terminal() and sys.stdin.isatty() and len(lines) >= shutil.get_terminal_size().lines):
        write_lines(lines)
        return
    from rich.pager import SystemPager  # noqa: PLC0415 - most calls show no page, and this import is slow

    # As systemd's tools do: quit if it fits after all, pass colours, chop lines, keep the screen.
    os.environ.setdefault("LESS", "FRSXMK")
    # Whoever may run only sbusctl as root, by whatever program, must not get a shell from the pager; and nobody needs one from it.
    os.environ["LESSSECURE"] = "1"
    if is_elevated():
        # Another pager may not know that variable, and a newer less allows again what LESSSECURE_ALLOW names.
        for name in ("PAGER", "MANPAGER", "LESSOPEN", "LESSCLOSE", "LESSKEYIN", "LESSKEY", "LESSSECURE_ALLOW"):
            os.environ.pop(name, None)
        if shutil.which("less") is None:
            write_lines(lines)
            return
    SystemPager().show("".join(f"{line}\n" for line in lines))


def is_elevated() -> bool:
    """Return whether this process may have other rights than the person at the terminal: sudo, run0, pkexec, doas or su started it, or
    its user is not the owner of its login session. As systemd's tools decide it, SYSTEMD_PAGERSECURE in systemctl(1)."""
    if any(name in os.environ for name in ("SUDO_UID", "PKEXEC_UID", "DOAS_USER")) or os.geteuid() != os.getuid():
        return True
    try:
        login = int(Path("/proc/self/loginuid").read_text("ascii"))
    except (OSError, ValueError):
        # A kernel without audit does not know.
        return False
    return login not in (_NO_LOGIN, os.geteuid())


def write_json(value: Mapping[str, object], style: JsonStyle) -> None:
    """Write *value* as one JSON document and a newline, and flush. Raises what :func:`write_bytes` raises."""
    write_bytes(json_text(value, style).encode("ascii") + b"\n")
    flush()


def json_text(value: Mapping[str, object], style: JsonStyle) -> str:
    """Return *value* as JSON in plain ASCII, so that it can do nothing to a terminal: in one line unless *style* is PRETTY."""
    indent = 2 if style is JsonStyle.PRETTY else None
    separators = None if style is JsonStyle.PRETTY else (",", ":")
    # DEL is the one control character that JSON leaves alone.
    return json.dumps(value, indent=indent, separators=separators).replace("\x7f", "\\u007f")


def visible(value: bytes | str) -> str:
    r"""Return *value* as one line in which every character is visible.

    What is not UTF-8, a control or format character (C0, C1, bidirectional marks), or a line break becomes a backslash escape
    such as ``\n``, ``\x1b``, ``\u202e``. Unlike :func:`sbusd.protocol.printable.printable` it cuts nothing and leaves a backslash
    as it is, so that JSON in a payload stays readable and escaped text stays the same; ``--json`` is exact.
    """
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def error_text(error: Exception) -> str:
    """Return what *error* says to a person: of an error of the protocol the words alone, for its code is for programs."""
    if isinstance(error, ProtocolError):
        return error.words
    if isinstance(error, OSError) and not isinstance(error, SbusError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def print_error(message: str) -> None:
    """Say *message* on standard error in one line, after ``sbusctl:``. Never raises: where standard error is gone, nobody listens."""
    line = visible(message)
    if len(line) > _COMPLAINT_CHARACTERS:
        # Cut in the middle, where a long key or pattern is quoted: what is wrong with it stands behind.
        half = _COMPLAINT_CHARACTERS // 2
        line = f"{line[:half]}…{line[-half:]}"
    try:
        sys.stderr.write(f"sbusctl: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def _output_error(error: OSError) -> Exception:
    """Return what a failed write to standard output means."""
    if isinstance(error, BrokenPipeError):
        return OutputClosedError()
    return OutputError(f"cannot write to standard output: {error.strerror or error}")


def _escaped(character: str) -> str:
    """Return the backslash escape of one character; a surrogate stands for a byte that is not UTF-8."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
