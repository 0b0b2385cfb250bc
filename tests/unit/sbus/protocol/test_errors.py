from __future__ import annotations

import errno

import pytest

from sbus.protocol.errors import BadAddressError, ErrorCode, ProtocolError, SbusError


def test_the_tree() -> None:
    assert issubclass(BadAddressError, ProtocolError)
    assert issubclass(ProtocolError, SbusError)
    assert issubclass(ProtocolError, ValueError)
    assert issubclass(SbusError, Exception)


def test_an_error_carries_the_text_for_the_peer() -> None:
    error = ProtocolError(ErrorCode.EMSGSIZE, "packet too long: 5 bytes, at most 4 are allowed")
    assert (error.code, error.words) == (ErrorCode.EMSGSIZE, "packet too long: 5 bytes, at most 4 are allowed")
    assert str(error) == "EMSGSIZE packet too long: 5 bytes, at most 4 are allowed"


def test_a_bad_address_carries_the_address_and_the_reason() -> None:
    error = BadAddressError("a\0\n", "contains a NUL byte")
    assert (error.address, error.reason, error.code) == ("a\0\n", "contains a NUL byte", ErrorCode.EINVAL)
    assert str(error) == r"EINVAL invalid address 'a\x00\n': contains a NUL byte"


@pytest.mark.parametrize("code", list(ErrorCode))
def test_which_errors_end_a_connection(code: ErrorCode) -> None:
    """sbus-protocol(7) §8: EPROTO and EACCES; those of a misbehaving client, §7; EMFILE, said to one that was never let in."""
    ending = {"EPROTO", "EACCES", "ENOBUFS", "EMFILE"}
    assert code.disconnects is (code.name in ending)


def test_every_code_has_its_name_from_errno_and_words_for_people() -> None:
    assert {code.name for code in ErrorCode} >= {"EPROTO", "EACCES", "EPERM", "EDQUOT", "EMSGSIZE", "ENOSYS", "EINVAL"}
    for code in ErrorCode:
        assert hasattr(errno, code.name)
        assert code.value.isprintable()
        assert len(code.value) > 5
