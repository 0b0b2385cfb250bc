r"""Addresses of a bus, as ``-a`` and ``$SBUS_ADDRESS`` spell them. Spec: sbusd(8), and unix(7) for the names.

=============================  ==========================================================================
``/dev/fd/N``                  the descriptor N, inherited
``/dev/unix/abstract``         a random abstract name, picked by the server and printed in the next form
``/dev/unix/abstract/HEX``     the socket address in hex, two digits a byte, padded with zeros to 108 bytes;
                               an abstract name begins with ``00``
anything else                  a path
=============================  ==========================================================================

As in the original server, text after ``/dev/fd/`` or ``/dev/unix/abstract/`` that is not of its form makes the whole a path.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from sbusd.protocol.errors import BadAddressError

SUN_PATH_BYTES = 108
"""Size of ``sun_path`` on Linux, unix(7). A path needs one byte less, for its NUL."""

ABSTRACT_HEAD = "/dev/unix/abstract"


@dataclass(frozen=True, slots=True)
class InheritedDescriptor:
    """``/dev/fd/N``."""

    fd: int


@dataclass(frozen=True, slots=True)
class RandomAbstract:
    """``/dev/unix/abstract``: any free abstract name. Only a server can use it."""


@dataclass(frozen=True, slots=True)
class UnixName:
    """A path, or an abstract name that begins with NUL; as bytes for bind(2) and connect(2)."""

    name: bytes

    @property
    def is_abstract(self) -> bool:
        """Whether the name is in the abstract namespace, so no file is made."""
        return self.name.startswith(b"\0")

    def __str__(self) -> str:
        """Return the form that :func:`parse_address` reads back."""
        if self.is_abstract:
            return f"{ABSTRACT_HEAD}/{self.name.hex()}"
        return os.fsdecode(self.name)


Address = InheritedDescriptor | RandomAbstract | UnixName


def parse_address(text: str) -> Address:
    """Return what the address *text* means.

    Raises:
        BadAddressError: it is empty, has a NUL, or is longer than a Unix socket's address can be.
    """
    if not text or "\0" in text:
        raise BadAddressError(text, "is empty" if not text else "has a NUL byte")
    if match := re.fullmatch(r"/dev/fd/([0-9]{1,10})", text):
        return InheritedDescriptor(int(match.group(1)))
    if text == ABSTRACT_HEAD:
        return RandomAbstract()
    if match := re.fullmatch(ABSTRACT_HEAD + r"/((?:[0-9A-Fa-f]{2})+)", text):
        name = bytes.fromhex(match.group(1))
        if len(name) > SUN_PATH_BYTES:
            raise BadAddressError(text, f"is {len(name)} bytes; a socket address has {SUN_PATH_BYTES}")
        # The original always binds the whole structure, so the zeros are part of an abstract name.
        return UnixName(name.ljust(SUN_PATH_BYTES, b"\0") if name.startswith(b"\0") else _checked_path(text, name.rstrip(b"\0")))
    return UnixName(_checked_path(text, os.fsencode(text)))


def _checked_path(text: str, path: bytes) -> bytes:
    """Return *path* if it fits into a socket address."""
    if b"\0" in path:
        raise BadAddressError(text, "has a NUL byte")
    if len(path) >= SUN_PATH_BYTES:
        raise BadAddressError(text, f"is {len(path)} bytes; a socket's path has at most {SUN_PATH_BYTES - 1}")
    return path
