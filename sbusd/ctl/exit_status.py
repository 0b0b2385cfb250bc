"""The exit status that an error stands for. Spec: sbusctl(1), "EXIT STATUS"."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from sbusd.client import CallTimeout, NoRecipient, PeerDisconnected, RemoteError
from sbusd.ctl.output import OutputClosedError, error_text, print_error
from sbusd.protocol.errors import SbusError

FAILED = 1
NO_RECIPIENT = 3
REMOTE_ERROR = 4
PEER_DISCONNECTED = 5
CALL_TIMEOUT = 6

INTERRUPTED = 128 + signal.SIGINT
"""Status after Ctrl-C, as a shell would report it."""

OUTPUT_CLOSED = 128 + signal.SIGPIPE
"""Status when the reader of standard output has gone, as a shell would report it of a program that SIGPIPE ends."""


def status_of(error: Exception) -> int:
    """Return the exit status for *error*: of a call that failed one by the way in which it did, else 1."""
    if isinstance(error, NoRecipient):
        return NO_RECIPIENT
    if isinstance(error, RemoteError):
        return REMOTE_ERROR
    if isinstance(error, PeerDisconnected):
        return PEER_DISCONNECTED
    return CALL_TIMEOUT if isinstance(error, CallTimeout) else FAILED


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn what a command raises into a status.

    Raises:
        typer.Exit: with 130 after Ctrl-C; 141 when standard output's reader has gone; after any error of the bus, of its files or of
            the system, and one line on standard error, what :func:`status_of` says.
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
