"""The payload of one message: an argument, or standard input if the argument says so."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

import typer

from sbusd.protocol.errors import SbusError
from sbusd.protocol.packets import MAX_PACKET_BYTES


class InputTooLongError(SbusError):
    """Standard input is longer than a packet."""

    def __init__(self) -> None:
        super().__init__(f"payload too large: the maximum packet size is {MAX_PACKET_BYTES} bytes; 'sbusctl pub --blob FILE' sends more")


def one_payload(payload: str | None, source: BinaryIO, name: str = "PAYLOAD") -> bytes:
    """Return the payload for the argument *payload*, whose metavariable is *name*; without one it is empty.

    Raises:
        BadParameter: there is no argument, and *source* may have data. In ``while read line; do sbusctl pub KEY; done < FILE`` they are
            the remaining lines, which belong to the loop.
        InputTooLongError: *source* is longer than a packet.
    """
    if payload is not None and payload != "-":
        return os.fsencode(payload)
    if payload is None:
        if is_without_data(source):
            return b""
        raise typer.BadParameter(f"missing {name}: write '-' to read standard input, or '' for an empty payload")
    data = source.read(MAX_PACKET_BYTES + 1)
    if len(data) > MAX_PACKET_BYTES:
        raise InputTooLongError
    return data


def is_without_data(source: BinaryIO) -> bool:
    """Return whether *source* is a terminal or the null device, which have no data for this program."""
    if source.isatty():
        return True
    found = os.fstat(source.fileno())
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev
