from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.addresses import ABSTRACT_HEAD, SUN_PATH_BYTES, Address, InheritedDescriptor, RandomAbstract, UnixName, parse_address
from sbus.protocol.errors import BadAddressError, ErrorCode

HEX_PATH = ABSTRACT_HEAD + "/2f72756e2f73627573"  # /run/sbus
HEX_OF_A_DESCRIPTOR = ABSTRACT_HEAD + "/2f6465762f66642f33"  # /dev/fd/3
HEX_OF_ABSTRACT = f"{ABSTRACT_HEAD}/{ABSTRACT_HEAD.encode().hex()}"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/run/sbus.socket", UnixName(b"/run/sbus.socket")),
        ("sbus.socket", UnixName(b"sbus.socket")),
        (" ", UnixName(b" ")),
        ("/é", UnixName(b"/\xc3\xa9")),
        (os.fsdecode(b"/\xff"), UnixName(b"/\xff")),
        ("x" * 107, UnixName(b"x" * 107)),
        ("/dev/fd/0", InheritedDescriptor(0)),
        ("/dev/fd/3", InheritedDescriptor(3)),
        ("/dev/fd/003", InheritedDescriptor(3)),
        ("/dev/fd/2147483647", InheritedDescriptor(2147483647)),
        (ABSTRACT_HEAD, RandomAbstract()),
        (ABSTRACT_HEAD + "/00ab", UnixName(b"\0\xab".ljust(SUN_PATH_BYTES, b"\0"))),
        (ABSTRACT_HEAD + "/00AB", UnixName(b"\0\xab".ljust(SUN_PATH_BYTES, b"\0"))),
        (ABSTRACT_HEAD + "/00", UnixName(bytes(SUN_PATH_BYTES))),
        (ABSTRACT_HEAD + "/" + "00" * 108, UnixName(bytes(SUN_PATH_BYTES))),
        (HEX_PATH, UnixName(b"/run/sbus")),
        (HEX_PATH + "0000", UnixName(b"/run/sbus")),
        (HEX_OF_A_DESCRIPTOR, UnixName(b"/dev/fd/3")),
        # What is not quite of a form is a path, as in the original.
        ("/dev/fd/", UnixName(b"/dev/fd/")),
        ("/dev/fd/x", UnixName(b"/dev/fd/x")),
        ("/dev/fd/-1", UnixName(b"/dev/fd/-1")),
        ("/dev/fd/3/", UnixName(b"/dev/fd/3/")),
        ("/dev/fd/3\n", UnixName(b"/dev/fd/3\n")),
        ("/dev/fd/٣", UnixName("/dev/fd/٣".encode())),
        ("/dev/fd/12345678901", UnixName(b"/dev/fd/12345678901")),
        (ABSTRACT_HEAD + "/", UnixName(ABSTRACT_HEAD.encode() + b"/")),
        (ABSTRACT_HEAD + "/0", UnixName(ABSTRACT_HEAD.encode() + b"/0")),
        (ABSTRACT_HEAD + "/00a", UnixName(ABSTRACT_HEAD.encode() + b"/00a")),
        (ABSTRACT_HEAD + "/00 ab", UnixName(ABSTRACT_HEAD.encode() + b"/00 ab")),
        (ABSTRACT_HEAD + "s", UnixName(ABSTRACT_HEAD.encode() + b"s")),
    ],
)
def test_every_form(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("a\0b", "contains a NUL byte"),
        ("x" * 108, "has 108 bytes; the path of a socket has at most 107"),
        ("é" * 54, "has 108 bytes"),
        (ABSTRACT_HEAD + "/" + "00" * 109, "has 109 bytes; a socket address has at most 108"),
        (ABSTRACT_HEAD + "/" + "61" * 108, "has 108 bytes; the path of a socket has at most 107"),
        (ABSTRACT_HEAD + "/610061", "contains a NUL byte"),
        ("/dev/fd/2147483648", "is not a file descriptor; the largest is 2147483647"),
        ("/dev/fd/9999999999", "is not a file descriptor"),
        ("/tmp/\ud800", r"contains '\ud800', which cannot be in a path"),
    ],
)
def test_an_address_without_a_socket(text: str, reason: str) -> None:
    with pytest.raises(BadAddressError) as caught:
        parse_address(text)
    error = caught.value
    assert reason in error.reason
    assert (error.address, error.code) == (text, ErrorCode.EINVAL)
    assert str(error).isprintable()
    assert str(error) == f"EINVAL {f'invalid address {text!r}:' if text else 'the address'} {error.reason}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"/run/sbus.socket", "/run/sbus.socket"),
        (b"\0" + b"\xab" * 107, ABSTRACT_HEAD + "/00" + "ab" * 107),
        (b"/\xff", "/\udcff"),
        # A file that is called as another form stays a path, which it once did not.
        (b"/dev/fd/3", HEX_OF_A_DESCRIPTOR),
        (ABSTRACT_HEAD.encode(), HEX_OF_ABSTRACT),
        (HEX_PATH.encode(), f"{ABSTRACT_HEAD}/{HEX_PATH.encode().hex()}"),
    ],
)
def test_a_name_is_written_as_it_is_read(name: bytes, text: str) -> None:
    assert str(UnixName(name)) == text
    assert parse_address(text) == UnixName(name)


def test_only_an_abstract_name_makes_no_file() -> None:
    assert UnixName(b"\0x").is_abstract
    assert not UnixName(b"/x").is_abstract
    assert not UnixName(b"00").is_abstract


FORMS = st.sampled_from(["/dev/fd/", ABSTRACT_HEAD, ABSTRACT_HEAD + "/", HEX_PATH, ""])
TEXTS = st.text() | st.text("0123456789abcdefAF/", max_size=250) | st.binary(max_size=120).map(os.fsdecode)


@given(st.tuples(FORMS, TEXTS).map("".join))
def test_parsing_is_total_and_names_are_read_back(text: str) -> None:
    with contextlib.suppress(BadAddressError):
        address = parse_address(text)
        assert not isinstance(address, UnixName) or parse_address(str(address)) == address


@given(st.binary(min_size=1, max_size=107).filter(lambda name: b"\0" not in name))
def test_every_path_has_an_address(name: bytes) -> None:
    assert parse_address(str(UnixName(name))) == UnixName(name)


@given(st.binary(max_size=107))
def test_every_whole_abstract_name_has_an_address(name: bytes) -> None:
    whole = UnixName((b"\0" + name).ljust(SUN_PATH_BYTES, b"\0"))
    assert parse_address(str(whole)) == whole
