"""The names that clients give to their connections."""

from __future__ import annotations

import pytest

from sbusd.protocol.connection_names import MAX_NAME_BYTES, parse_name
from sbusd.protocol.errors import ErrorCode, ProtocolError


@pytest.mark.parametrize("name", ["", "web-1", "caf\u00e9 2", "x" * MAX_NAME_BYTES])
def test_valid_names(name: str) -> None:
    assert parse_name(name.encode()) == name


@pytest.mark.parametrize("payload", [b"x" * (MAX_NAME_BYTES + 1), b"\xff", b"a\nb", b"\x1b[31m", "\u202ex".encode(), b"a\0b"])
def test_invalid_names(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="at most 64 bytes of printable UTF-8") as caught:
        parse_name(payload)
    assert caught.value.code is ErrorCode.EINVAL
