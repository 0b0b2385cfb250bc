"""The error of a configuration that cannot be used."""

from __future__ import annotations

from pathlib import Path

from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable

PATH_MAX = 4096
"""Longest path of a file, limits.h(0p): none is cut in a message."""


class ConfigError(SbusError, ValueError):
    """A configuration file that cannot be used; its text is one line: file, key if there is one, and reason.

    ``key`` is dotted, as TOML would spell it, and empty where the file as a whole is meant; whoever raises it makes sure that
    ``key`` and ``reason`` are printable. A program that stops for it exits
    with status 78, EX_CONFIG of sysexits.h(3head).
    """

    def __init__(self, file: Path, key: str, reason: str) -> None:
        where = printable(str(file), PATH_MAX)
        super().__init__(f"{where}: {key}: {reason}" if key else f"{where}: {reason}")
        self.file = file
        self.key = key
        self.reason = reason
