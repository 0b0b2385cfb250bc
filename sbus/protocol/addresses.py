r"""Addresses of a bus, as in ``-a`` and ``$SBUS_ADDRESS``. Spec: sbusd(8), and unix(7) for the names.

=============================  ==========================================================================
``/dev/fd/N``                  the descriptor N, inherited
``/dev/unix/abstract``         a random abstract name, chosen by the server and printed in the next form
``/dev/unix/abstract/HEX``     the socket address in hexadecimal, padded with zeros to 108 bytes;
                               an abstract name begins with ``00``
anything else                  a path
=============================  ==========================================================================

As in the original server, an address that begins with ``/dev/fd/`` or ``/dev/unix/abstract/`` but is not of that form is a path.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from sbus.protocol.errors import BadAddressError

SUN_PATH_BYTES = 108
"""Size of ``sun_path`` on Linux, unix(7). A path may have one byte less, because of its NUL."""

ABSTRACT_HEAD = "/dev/unix/abstract"

LAST_FD = (1 << 31) - 1
"""The greatest possible descriptor: in the kernel it is an int."""


@dataclass(frozen=True, slots=True)
class InheritedDescriptor:
    """``/dev/fd/N``."""

    fd: int


@dataclass(frozen=True, slots=True)
class RandomAbstract:
    """``/dev/unix/abstract``: any free abstract name. Only a server can use this form."""


@dataclass(frozen=True, slots=True)
class UnixName:
    """A path, or an abstract name that begins with NUL; as bytes for bind(2) and connect(2)."""

    name: bytes

    @property
    def is_abstract(self) -> bool:
        """Whether the name is in the abstract namespace, without a file."""
        return self.name.startswith(b"\0")

    def __str__(self) -> str:
        """Return the form that :func:`parse_address` parses to the same name."""
        # The name of a file may look like another form, such as /dev/fd/3: then only the hexadecimal form is a path.
        if self.is_abstract or _is_special(text := os.fsdecode(self.name)):
            return f"{ABSTRACT_HEAD}/{self.name.hex()}"
        return text


Address = InheritedDescriptor | RandomAbstract | UnixName

_DESCRIPTOR = re.compile(r"/dev/fd/([0-9]{1,10})")
_HEX_NAME = re.compile(ABSTRACT_HEAD + r"/((?:[0-9A-Fa-f]{2})+)")


def parse_address(text: str) -> Address:
    """Return the address that *text* spells.

    Raises:
        BadAddressError: it is empty, has a NUL or a character that no path can have, is longer than the address of a Unix socket
            can be, or is a descriptor greater than the greatest.
    """
    if not text or "\0" in text:
        raise BadAddressError(text, "is empty" if not text else "contains a NUL byte")
    if match := _DESCRIPTOR.fullmatch(text):
        fd = int(match.group(1))
        if fd > LAST_FD:
            raise BadAddressError(text, f"is not a file descriptor; the largest is {LAST_FD}")
        return InheritedDescriptor(fd)
    if text == ABSTRACT_HEAD:
        return RandomAbstract()
    if match := _HEX_NAME.fullmatch(text):
        name = bytes.fromhex(match.group(1))
        if len(name) > SUN_PATH_BYTES:
            raise BadAddressError(text, f"has {len(name)} bytes; a socket address has at most {SUN_PATH_BYTES}")
        # The original server always binds the whole structure, so the zeros are part of an abstract name.
        return UnixName(name.ljust(SUN_PATH_BYTES, b"\0") if name.startswith(b"\0") else _checked_path(text, name.rstrip(b"\0")))
    try:
        path = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise BadAddressError(text, f"contains {text[error.start]!r}, which cannot be in a path") from None
    return UnixName(_checked_path(text, path))


def _is_special(text: str) -> bool:
    """Return whether *text* has a form other than a plain path."""
    return text == ABSTRACT_HEAD or any(form.fullmatch(text) for form in (_DESCRIPTOR, _HEX_NAME))


def _checked_path(text: str, path: bytes) -> bytes:
    """Return *path* if it fits into a socket address."""
    if b"\0" in path:
        raise BadAddressError(text, "contains a NUL byte")
    if len(path) >= SUN_PATH_BYTES:
        raise BadAddressError(text, f"has {len(path)} bytes; the path of a socket has at most {SUN_PATH_BYTES - 1}")
    return path
