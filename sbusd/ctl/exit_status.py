"""The exit status for an error. Spec: sbusctl(1), "EXIT STATUS"."""

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
