"""The matcher against a second one, made of regular expressions from the words of sbus-protocol(7) §3 alone, and its laws."""

from __future__ import annotations

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from sbus.protocol.keys import KeySpace, pattern_matches

TOKENS = [b"a", b"ab", b"b", b"*", b"/", b".", b"!", b"!/cred/", b"cred", b"1", b"\n", b"\xff"]
"""Few, so that patterns and keys often meet."""

WORDS = st.lists(st.sampled_from(TOKENS), max_size=9).map(b"".join)
ANY_BYTES = st.binary(max_size=12).map(lambda data: data.replace(b"\0", b"/"))
TEXTS = WORDS | ANY_BYTES

PREFIX = b"!/cred/1/1/1"
KEYSPACES = st.sampled_from([KeySpace(b"/"), KeySpace(b"."), KeySpace(b"/", PREFIX), KeySpace(b"/", PREFIX + b"/" + PREFIX)])


def expression(pattern: bytes, separator: bytes) -> re.Pattern[bytes]:
    """Return *pattern* as a regular expression, byte by byte as the protocol says it, reserved keys left aside."""
    parts: list[bytes] = []
    starred = False
    for byte in (pattern[i : i + 1] for i in range(len(pattern))):
        if byte == separator:
            starred = False
            parts.append(re.escape(byte))
        elif byte == b"*":
            starred = True
            parts.append(b"[^" + re.escape(separator) + b"]*")
        else:
            # Bytes after a star in the same segment can never match.
            parts.append(b"(?!)" if starred else re.escape(byte))
    if not pattern or pattern.endswith(separator):
        parts.append(b".*")
    return re.compile(b"".join(parts), re.DOTALL)


def is_open(pattern: bytes, key: bytes, keyspace: KeySpace) -> bool:
    """Return whether *pattern* spells out what must not be reached by a wildcard: the guarded head of a reserved *key*."""
    if keyspace.separator != b"/" or not key.startswith(b"!/"):
        return True
    guard = 5 * (1 + keyspace.prefix.count(b"!/cred/")) if key.startswith(b"!/cred/") else 2
    head = re.match(rb"(?:[^/]*/){%d}" % guard, key)
    if head is None:
        # Too short to be a whole reserved key: the pattern must be the key, and have no wildcard at its end.
        return pattern == key and b"*" not in pattern and not pattern.endswith(b"/")
    return pattern.startswith(head[0]) and b"*" not in head[0]


def second_matcher(pattern: bytes, key: bytes, keyspace: KeySpace) -> bool:
    """Return what ``KeySpace.matches`` must."""
    return is_open(pattern, key, keyspace) and expression(pattern, keyspace.separator).fullmatch(key) is not None


@given(TEXTS, TEXTS, KEYSPACES)
def test_both_matchers_agree(pattern: bytes, key: bytes, keyspace: KeySpace) -> None:
    assert keyspace.matches(pattern, key) == second_matcher(pattern, key, keyspace)


@given(st.data(), TEXTS, KEYSPACES)
def test_both_matchers_agree_on_patterns_made_from_the_key(data: st.DataObject, key: bytes, keyspace: KeySpace) -> None:
    """Random texts seldom match: here each segment of the pattern is the key's, or its start with a star, or a star."""
    segments = key.split(keyspace.separator)
    changed = [data.draw(st.sampled_from([segment, segment[:1] + b"*", b"*", segment[:1]])) for segment in segments]
    kept = data.draw(st.integers(0, len(changed)))
    pattern = keyspace.separator.join(changed[:kept]) + data.draw(st.sampled_from([b"", keyspace.separator]))
    assert keyspace.matches(pattern, key) == second_matcher(pattern, key, keyspace)


@given(TEXTS, TEXTS, KEYSPACES)
def test_a_pattern_without_wildcards_matches_only_itself(pattern: bytes, key: bytes, keyspace: KeySpace) -> None:
    assume(pattern and b"*" not in pattern and not pattern.endswith(keyspace.separator))
    assert keyspace.matches(pattern, pattern)
    assert keyspace.matches(pattern, key) == (pattern == key)


@given(TEXTS, KEYSPACES)
def test_the_empty_pattern_matches_all_but_reserved_keys(key: bytes, keyspace: KeySpace) -> None:
    assert keyspace.matches(b"", key) == (keyspace.separator == b"." or not key.startswith(b"!/"))


@given(TEXTS, TEXTS, ANY_BYTES, KEYSPACES)
def test_a_trailing_separator_also_matches_all_longer_keys(pattern: bytes, key: bytes, more: bytes, keyspace: KeySpace) -> None:
    pattern += keyspace.separator
    if keyspace.matches(pattern, key):
        assert keyspace.matches(pattern, key + more)


@given(TEXTS, ANY_BYTES, KEYSPACES)
def test_a_star_matches_the_rest_of_its_segment(start: bytes, rest: bytes, keyspace: KeySpace) -> None:
    key = start + rest.replace(keyspace.separator, b"")
    assume(b"*" not in start and (keyspace.separator == b"." or not key.startswith(b"!/")))
    assert keyspace.matches(start + b"*", key)
    assert not keyspace.matches(start + b"*", key + keyspace.separator)
    assert not keyspace.matches(start + b"*x", key)


@given(TEXTS, TEXTS)
def test_both_separators_mean_the_same_outside_reserved_keys(pattern: bytes, key: bytes) -> None:
    assume(not key.startswith(b"!/"))
    swap = bytes.maketrans(b"/.", b"./")
    assert pattern_matches(pattern, key) == pattern_matches(pattern.translate(swap), key.translate(swap), b".")


@given(TEXTS, TEXTS)
def test_with_a_dot_nothing_is_reserved(pattern: bytes, key: bytes) -> None:
    keyspace = KeySpace(b".")
    assert keyspace.is_publishable(key)
    assert keyspace.matches(b"", key)
    assert keyspace.matches(pattern, key) == (expression(pattern, b".").fullmatch(key) is not None)
