"""The payload of one message: an argument, or standard input if the argument says so."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
from collections.abc import Iterator
from typing import BinaryIO

import typer

from sbus.protocol.errors import SbusError
from sbus.protocol.packets import MAX_PACKET_BYTES

BLOB_ADVICE = "'sbusctl pub --blob FILE KEY' sends more"
"""What to do with a publication that is too large for a packet."""

END_SECONDS = 1
"""How long the end of a pipe is awaited before its data is asked for: its writer may be closing it."""


class InputError(SbusError):
    """Standard input cannot be read."""


class InputTooLongError(SbusError):
    """Standard input is longer than a packet."""

    def __init__(self, advice: str = "") -> None:
        text = f"payload too large: the maximum packet size is {MAX_PACKET_BYTES} bytes"
        super().__init__(f"{text}; {advice}" if advice else text)


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Raise InputError for an OSError in the block, which reads standard input: it may be closed."""
    try:
        yield
    except OSError as error:
        if isinstance(error, SbusError):
            raise
        raise InputError(f"cannot read standard input: {error.strerror or error}") from None


def one_payload(payload: str | None, source: BinaryIO, name: str = "PAYLOAD", advice: str = "") -> bytes:
    """Return the payload for the argument *payload*, whose metavariable is *name*; without one it is empty.

    *advice* says what to do if it is too large.

    Raises:
        BadParameter: there is no argument, and *source* may have data. In ``while read line; do sbusctl pub KEY; done < FILE`` they are
            the remaining lines, which belong to the loop.
        InputError: *source* cannot be read.
        InputTooLongError: *source* is longer than a packet.
    """
    if payload is not None and payload != "-":
        return os.fsencode(payload)
    if payload is None:
        if is_without_data(source):
            return b""
        raise typer.BadParameter(f"missing {name}: write '-' to read standard input, or '' for an empty payload")
    with reading():
        data = source.read(MAX_PACKET_BYTES + 1)
    if len(data) > MAX_PACKET_BYTES:
        raise InputTooLongError(advice)
    return data


def is_without_data(source: BinaryIO) -> bool:
    """Return whether *source* has no data for this program: it is a terminal, the null device, or a pipe or socket that has ended.

    A file belongs to the loop that reads it, also at its end. Waits at most END_SECONDS for the end of a pipe.
    """
    if source.isatty():
        return True
    found = os.fstat(source.fileno())
    if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
        return _has_ended(source.fileno(), stat.S_ISSOCK(found.st_mode))
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev


def _has_ended(fd: int, is_socket: bool) -> bool:
    """Return whether the pipe or socket *fd* ends without data. Nothing is read: what there is belongs to somebody else."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    for _, events in waiting.poll(END_SECONDS * 1_000):
        if not events & select.POLLIN:
            return True
        if not is_socket:
            return False
        # A socket that was shut down can be read; its end is a read of nothing.
        with socket.socket(fileno=os.dup(fd)) as peer:
            return not peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return False
