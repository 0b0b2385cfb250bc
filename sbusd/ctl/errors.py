"""The line and the exit status for an error. Spec: sbusctl(1), "EXIT STATUS"."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from sbusd.client import CallTimeout, NoRecipient, PayloadTooLarge, PeerDisconnected, RemoteError
from sbusd.ctl.output import OutputClosedError, visible
from sbusd.ctl.payloads import BLOB_ADVICE
from sbusd.helptext import shortened
from sbusd.protocol.errors import ProtocolError, SbusError
from sbusd.standard_error import write_errors

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
