"""How sbusctl ends: the line and the exit status for an error, and signals. Spec: sbusctl(1), "EXIT STATUS"."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from sbus import CallTimeout, NoRecipient, PayloadTooLarge, PeerDisconnected, RemoteError
from sbus.protocol.errors import ProtocolError, SbusError
from sbus_programs.helptext import shortened
from sbus_programs.standard_error import write_errors
from sbusctl.output import OutputClosedError, visible
from sbusctl.payloads import BLOB_ADVICE

EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Exit on SIGTERM and SIGHUP with the status of a shell. A second signal kills, in case standard output is not read.

    A signal that the caller of the program ignores stays ignored, as nohup(1) needs it.

    Raises:
        SystemExit: one of the signals has arrived in the block; 143 or 129.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise SystemExit(128 + number)

    before = {number: handler for number in EXIT_SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


FAILED = 1
NO_RECIPIENT = 3
REMOTE_ERROR = 4
PEER_DISCONNECTED = 5
CALL_TIMEOUT = 6
DENIED = 7

INTERRUPTED = 128 + signal.SIGINT
"""Status after Ctrl-C, as in a shell."""

OUTPUT_CLOSED = 128 + signal.SIGPIPE
"""Status if standard output was closed by its reader, as in a shell after SIGPIPE."""


def status_of(error: Exception) -> int:
    """Return the exit status for *error*."""
    if isinstance(error, NoRecipient):
        return NO_RECIPIENT
    if isinstance(error, RemoteError):
        return REMOTE_ERROR
    if isinstance(error, PeerDisconnected):
        return PEER_DISCONNECTED
    return CALL_TIMEOUT if isinstance(error, CallTimeout) else FAILED


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an error in one line, and exit with its status.

    Raises:
        typer.Exit: status 130 after Ctrl-C; 141 if standard output was closed; for errors of the bus, files or the system that of
            :func:`status_of`.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except OutputClosedError:
        raise typer.Exit(OUTPUT_CLOSED) from None
    except (SbusError, OSError) as error:
        print_error(error_text(error))
        raise typer.Exit(status_of(error)) from None


def error_text(error: Exception) -> str:
    """Return the text of *error*; of a ProtocolError without its code, which is for programs."""
    if isinstance(error, ProtocolError):
        return error.words
    if isinstance(error, PayloadTooLarge):
        text = f"packet too long: {error.size} bytes, at most {error.limit} can be sent"
        return f"{text}; {BLOB_ADVICE}" if error.advice else text
    if isinstance(error, OSError) and not isinstance(error, SbusError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def print_error(message: str) -> None:
    """Print *message* to standard error in one line, after ``sbusctl:``. It ignores write errors."""
    write_errors(f"sbusctl: {shortened(visible(message))}\n")
