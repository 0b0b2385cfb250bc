"""Fuzz target: any text is an address that is written as it is read, or a BadAddressError of one printable line."""

from __future__ import annotations

from sbus.protocol.addresses import LAST_FD, SUN_PATH_BYTES, InheritedDescriptor, UnixName, parse_address
from sbus.protocol.errors import BadAddressError


def check(data: bytes) -> None:
    """Any text is an address that fits and is written as it is read, or a BadAddressError of one printable line."""
    _check_text(data.decode("utf-8", "surrogateescape"))  # as the command line and the environment come
    _check_text(data.decode("utf-16-le", "surrogatepass") if len(data) % 2 == 0 else data.decode("latin-1"))


def _check_text(text: str) -> None:
    """Check one text."""
    try:
        address = parse_address(text)
    except BadAddressError as error:
        assert str(error).isprintable()
        return
    match address:
        case UnixName(name):
            assert 0 < len(name) <= SUN_PATH_BYTES
            assert address.is_abstract or b"\0" not in name
            assert parse_address(str(address)) == address
        case InheritedDescriptor(fd):
            assert 0 <= fd <= LAST_FD
