"""Which pattern matches which key, and could a pattern reach under a prefix? All short keys are tried in tests/property/test_overlap.py."""

from __future__ import annotations

import pytest

from sbus.protocol.errors import ProtocolError
from sbus.protocol.keys import (
    KeySpace,
    Namespace,
    Reach,
    connection_address,
    covers,
    intersection,
    is_matchable,
    parse_connection_address,
    pattern_matches,
)

EXAMPLES = [
    # The examples of sbus-protocol(7) §3, in their order.
    (b"a/*/c/", b"a/b/c/", True),
    (b"a/*/c/", b"a/b/c/d/e", True),
    (b"a/*/c/", b"a/b/c", False),
    (b"a/*/c/", b"a/c/d", False),
    (b"ab*/c", b"abx/c", True),
    (b"ab*/c", b"ab/c", True),
    (b"a/*", b"a/", True),
    # Bytes after a star in the same segment can never match.
    (b"a*b", b"ab", False),
    (b"a*b", b"axb", False),
    (b"a*b", b"a*b", False),
    (b"*b/c", b"b/c", False),
    (b"**", b"a", True),
    (b"a**", b"a", True),
    (b"a**/b", b"ax/b", True),
    (b"**a", b"a", False),
    # A star in a key is an ordinary byte.
    (b"a", b"*", False),
    (b"*", b"*", True),
    (b"a*", b"a*", True),
    (b"a/", b"a/*", True),
    # Literal patterns, and how deep they go.
    (b"a", b"a", True),
    (b"a", b"ab", False),
    (b"ab", b"a", False),
    (b"a", b"a/", False),
    (b"a", b"a/b", False),
    (b"a/b", b"a", False),
    # Stars take one segment, also an empty one.
    (b"*", b"", True),
    (b"*", b"abc", True),
    (b"*", b"a/b", False),
    (b"*/*", b"/", True),
    (b"*/*", b"a", False),
    (b"*/b", b"a/b", True),
    (b"a/*", b"a", False),
    (b"a/*", b"a/b/c", False),
    # A separator at the end takes all that follows, also nothing.
    (b"a/", b"a/", True),
    (b"a/", b"a", False),
    (b"a/", b"a//", True),
    (b"/", b"/", True),
    (b"/", b"/a", True),
    (b"/", b"a", False),
    (b"/", b"", False),
    (b"//", b"/a", False),
    (b"//", b"//a", True),
    (b"*/", b"a/b/c", True),
    (b"*/", b"a", False),
    # The empty pattern takes everything that is not reserved.
    (b"", b"", True),
    (b"", b"a/b/c", True),
    (b"", b"/", True),
    (b"", b"!", True),
    (b"", b"!x", True),
    (b"", b"!x/y", True),
    # Bytes are bytes.
    (b"a*", b"a\n\xff b", True),
    (b"\xff/", b"\xff/\xfe", True),
    (b"A", b"a", False),
    (b"a.b", b"axb", False),
    (b"[a]", b"a", False),
    (b"a?", b"ab", False),
]

RESERVED = [
    # No wildcard reaches a reserved key.
    (b"", b"!/cred/1/2/3/x", False),
    (b"", b"!/", False),
    (b"*/cred/", b"!/cred/1/2/3/x", False),
    (b"!*/", b"!/cred/1/2/3/x", False),
    (b"!*/cred/", b"!/cred/1/2/3/x", False),
    (b"!/", b"!/cred/1/2/3/x", False),
    (b"!/*/", b"!/cred/1/2/3/x", False),
    (b"!/cred/", b"!/cred/1/2/3/x", False),
    (b"!/cred/*/2/3/x", b"!/cred/1/2/3/x", False),
    (b"!/cred/1/2*/3/x", b"!/cred/1/2/3/x", False),
    (b"!/cred/1/2/3*/x", b"!/cred/1/2/3/x", False),
    (b"!/cred/1/2/", b"!/cred/1/2/3/x", False),
    (b"*/*/*/*/*/*", b"!/cred/1/2/3/x", False),
    (b"!/cred/*/2/3/x", b"!/cred/*/2/3/x", False),
    # A pattern that spells out the guarded segments matches, with an ordinary pattern after them.
    (b"!/cred/1/2/3/x", b"!/cred/1/2/3/x", True),
    (b"!/cred/1/2/3/", b"!/cred/1/2/3/x/y", True),
    (b"!/cred/1/2/3/*", b"!/cred/1/2/3/x", True),
    (b"!/cred/1/2/3/*/y", b"!/cred/1/2/3/x/y", True),
    (b"!/cred/1/2/3/x", b"!/cred/1/2/3/y", False),
    (b"!/cred//2//", b"!/cred//2//x", True),
    # An empty id is literally empty, and an id is its digits.
    (b"!/cred//2//", b"!/cred/1/2/3/x", False),
    (b"!/cred/1/2/3/", b"!/cred//2//x", False),
    (b"!/cred/01/2/3/", b"!/cred/1/2/3/x", False),
    # The server's own keys guard their second segment too.
    (b"!/bus/x", b"!/bus/x", True),
    (b"!/bus/", b"!/bus/x", True),
    (b"!/bus/*", b"!/bus/x", True),
    (b"!/*/x", b"!/bus/x", False),
    (b"!/bus*/x", b"!/bus/x", False),
]


@pytest.mark.parametrize(("pattern", "key", "matches"), EXAMPLES + RESERVED)
def test_examples(pattern: bytes, key: bytes, matches: bool) -> None:
    assert pattern_matches(pattern, key) is matches


@pytest.mark.parametrize(("pattern", "key", "matches"), EXAMPLES)
def test_the_earlier_revision_separates_with_a_dot(pattern: bytes, key: bytes, matches: bool) -> None:
    swap = bytes.maketrans(b"/.", b"./")
    assert pattern_matches(pattern.translate(swap), key.translate(swap), b".") is matches


@pytest.mark.parametrize(
    ("pattern", "key"),
    [(b"", b"!/cred/1/2/3/x"), (b"*", b"!/cred/1"), (b"!/", b"!/"), (b"", b"!.a"), (b"*.cred.", b"!.cred.1"), (b"!*", b"!/bus/x")],
)
def test_the_earlier_revision_reserves_nothing(pattern: bytes, key: bytes) -> None:
    assert pattern_matches(pattern, key, b".")
    assert KeySpace(b".").namespace(key) is None
    assert KeySpace(b".").is_publishable(key)


def test_the_separator_of_one_revision_is_a_byte_in_the_other() -> None:
    assert pattern_matches(b"a/*", b"a/b.c")
    assert not pattern_matches(b"a/*", b"a/b.c", b".")
    assert pattern_matches(b"a/b.*", b"a/b.c/d", b".")


@pytest.mark.parametrize(
    ("key", "is_publishable"),
    [
        (b"", True),
        (b"a", True),
        (b"!", True),
        (b"!x", True),
        (b"a/!/cred", True),
        (b"/!/", True),
        (b"!/", False),
        (b"!/x", False),
        (b"!/bus/stats", False),
        (b"!/conn/5/x", True),
        (b"!/conn/5/", True),
        (b"!/conn/5", False),
        (b"!/event/connect/3", False),
        (b"!/cred", False),
        (b"!/cred/", False),
        (b"!/cred/1/2/3", False),
        (b"!/cred/1/2/3/", True),
        (b"!/cred/1/2/3/x/y", True),
        (b"!/cred////", True),
        (b"!/cred/*/any/thing/x", True),
        (b"!/CRED/1/2/3/x", False),
    ],
)
def test_where_clients_may_publish(key: bytes, is_publishable: bool) -> None:
    assert KeySpace().is_publishable(key) is is_publishable


def test_behind_a_server_the_prefix_is_guarded_too() -> None:
    keyspace = KeySpace(b"/", b"!/cred/100/1000/1111")
    secret = b"!/cred/100/1000/1111/!/cred/1/2/3/x"
    assert keyspace.is_publishable(secret)
    assert not keyspace.is_publishable(b"!/cred/1/2/3/x")
    assert not keyspace.is_publishable(b"!/cred/100/1000/1111/!/cred/1/2/3")
    assert keyspace.matches(secret, secret)
    assert keyspace.matches(b"!/cred/100/1000/1111/!/cred/1/2/3/", secret)
    for pattern in (b"", b"!/cred/100/1000/1111/", b"!/cred/100/1000/1111/*/cred/", b"!/cred/100/1000/1111/!/cred/*/2/3/x"):
        assert not keyspace.matches(pattern, secret)


def test_namespaces_define_the_reserved_keys() -> None:
    secrets, server = Namespace(b"!/cred/", 5, public=True), Namespace(b"!/", 2, public=False)
    addresses, events = Namespace(b"!/conn/", 3, public=True), Namespace(b"!/event/", 2, public=False)
    assert KeySpace().namespaces == (secrets, addresses, events, server)
    assert KeySpace(b".").namespaces == ()
    assert KeySpace(b"/", b"!/cred/1/1/1/!/cred/2/2/2").namespaces == (Namespace(b"!/cred/", 15, public=True), addresses, events, server)
    assert KeySpace().namespace(b"!/cred/1") == secrets
    assert KeySpace().namespace(b"!/credit") == server
    assert KeySpace().namespace(b"!/conn/5/x") == addresses
    assert KeySpace().namespace(b"!/event/connect/5") == events
    assert KeySpace().namespace(b"!x") is None


@pytest.mark.parametrize(
    ("pattern", "reaches"),
    [
        (b"", True),
        (b"*/", True),
        (b"*", False),  # one segment alone
        (b"*/x", True),
        (b"l*/x", True),
        (b"lab", False),
        (b"lab*", False),
        (b"lab/", True),
        (b"lab/x", True),
        (b"lab/*/y/", True),
        (b"la*b/x", False),  # takes nothing at all
        (b"lab*/x", True),
        (b"labor/x", False),
        (b"x/", False),
        (b"lab/x*y/", False),
        (b"!/", False),
    ],
)
def test_patterns_that_reach_under_lab(pattern: bytes, reaches: bool) -> None:
    assert Reach(KeySpace(), pattern).touches(b"lab/") is reaches


@pytest.mark.parametrize("pattern", [b"lab", b"lab*", b"la*", b"labor", b"*", b"", b"l*/"])
def test_a_prefix_need_not_end_with_its_segment(pattern: bytes) -> None:
    assert Reach(KeySpace(), pattern).touches(b"la")


def test_wildcards_reach_no_secret_and_a_spelled_out_pattern_does() -> None:
    for pattern in (b"", b"*/", b"!*/", b"*/cred/", b"!/*/", b"!/cred/"):
        assert not Reach(KeySpace(), pattern).touches(b"!/cred/")
    assert Reach(KeySpace(), b"!/cred//1000//x").touches(b"!/cred/")
    assert Reach(KeySpace(), b"!/cred//1000//*").touches(b"")
    assert not Reach(KeySpace(), b"!/cred//1000//x").touches(b"!/cred//1001/")


def test_the_separator_is_the_buses() -> None:
    assert Reach(KeySpace(b"."), b"lab.*").touches(b"lab.x")
    assert not Reach(KeySpace(b"."), b"lab/*").touches(b"lab.x")


@pytest.mark.parametrize(
    ("pattern", "within"), [(b"lab/", True), (b"lab/x*", True), (b"lab", False), (b"l*/", False), (b"", False), (b"lab*/", False)]
)
def test_a_pattern_is_within_a_prefix_if_it_spells_it_out(pattern: bytes, within: bool) -> None:
    assert Reach(KeySpace(), pattern).is_within(b"lab/") is within


def test_everything_is_within_the_empty_prefix() -> None:
    assert Reach(KeySpace(), b"*").is_within(b"")


def test_addresses_there_and_back() -> None:
    assert parse_connection_address(connection_address(4_294_967_296)) == 4_294_967_296


@pytest.mark.parametrize("address", [b"", b"!/conn/", b"!/conn/x/", b"!/conn/1", b"!/conn/1/x", b"!/conn/999999999999999999999/"])
def test_an_invalid_address(address: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_connection_address(address)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (b"", b"net/", b"net/"),
        (b"*/link/", b"net/", b"net/link/"),
        (b"a/*/c/", b"a/b/", b"a/b/c/"),
        (b"ab*/c", b"abx/", b"abx/c"),
        (b"a/*", b"a/", b"a/*"),
        (b"a", b"a/", None),
        (b"a*x", b"", None),
        (b"", b"!/cred//1//", None),
    ],
)
def test_two_patterns_have_this_intersection(one: bytes, other: bytes, both: bytes | None) -> None:
    assert intersection(one, other) == both


def test_a_pattern_with_bytes_after_a_star_matches_nothing() -> None:
    assert not is_matchable(b"a*b/c")
    assert is_matchable(b"a**/c")


@pytest.mark.parametrize(
    ("allowed", "pattern", "expected"),
    [
        ("", "", True),
        ("", "a/*", True),
        ("", "!x", True),
        ("", "!/cred//1//", False),
        ("", "!/event/", False),
        ("a/", "a/", True),
        ("a/", "a/b/c*", True),
        ("a/", "a", False),
        ("a/", "", False),
        ("a/", "*/b", False),
        ("a/", "a*/b", False),
        ("a/*", "a/b", True),
        ("a/*", "a/b*", True),
        ("a/*", "a/", False),
        ("a/b*", "a/*", False),
        ("a/b*", "a/bc", True),
        ("*/x", "a/x", True),
        ("*/x", "*/x", True),
        ("!/cred//1//", "!/cred//1//x", True),
        ("!/cred//1//", "!/cred//2//x", False),
        ("!/cred//1//", "!/cred///x", False),
        ("!/cred//1//a/", "!/cred//1//", False),
        ("!/event/", "!/event/connect/*", True),
        ("!/event/", "!/conn/1/", False),
        ("!/", "!/cred//1//", False),
    ],
)
def test_a_pattern_covers_another(allowed: str, pattern: str, expected: bool) -> None:
    assert covers(allowed.encode(), pattern.encode()) == expected
