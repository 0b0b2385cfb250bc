"""How memberships in queue groups are named, stored and sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.memberships import (
    MAX_GROUP_BYTES,
    check_group,
    parse_membership,
    split_stored,
    stored_pattern,
    subscription_packet,
    subscription_words,
    unsubscription_packet,
)

NAMES = st.text(st.characters(categories=["L", "N", "P"], exclude_characters="/"), min_size=1, max_size=16).map(str.encode)
PATTERNS = st.binary().map(lambda data: data.replace(b"\0", b"x"))


@given(PATTERNS, NAMES)
def test_a_membership_is_sent_and_parsed(pattern: bytes, group: bytes) -> None:
    stored = stored_pattern(pattern, group)
    assert split_stored(stored) == (pattern, group)
    for packet, head in ((subscription_packet(stored), b"CMSG group/join\0"), (unsubscription_packet(stored), b"CMSG group/leave\0")):
        assert packet.startswith(head)
        assert parse_membership(packet.removeprefix(head)) == stored


@given(PATTERNS)
def test_without_a_group_it_is_a_subscription(pattern: bytes) -> None:
    assert stored_pattern(pattern, b"") == pattern
    assert split_stored(pattern) == (pattern, b"")
    assert subscription_packet(pattern) == b"SUB " + pattern
    assert unsubscription_packet(pattern) == b"UNSUB " + pattern


@pytest.mark.parametrize("name", [b"", b"a/b", b"/", b"\xff", b"tab\t", "rtl\u202e".encode(), b"x" * (MAX_GROUP_BYTES + 1)])
def test_invalid_names(name: bytes) -> None:
    with pytest.raises(ProtocolError, match="1 to 64 bytes of printable UTF-8 without /") as error:
        check_group(name)
    assert error.value.code is ErrorCode.EINVAL


@pytest.mark.parametrize("name", [b"a", "é".encode(), b"a b", b"!", b"x" * MAX_GROUP_BYTES])
def test_valid_names(name: bytes) -> None:
    check_group(name)


@pytest.mark.parametrize("payload", [b"", b"group", b"group\0a\0b", b"\0a", b"a/b\0a"])
def test_malformed_payloads(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_membership(payload)


def test_how_errors_name_it() -> None:
    assert subscription_words(b"a/") == "the subscription a/"
    assert subscription_words(b"a/\0w") == "the subscription a/ in the group w"
