"""Patterns and prefixes against all short keys, one by one."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbus.protocol.keys import KeySpace, Reach
from tests.support.examples import examples

KEYSPACES = (KeySpace(), KeySpace(b"."), KeySpace(prefix=b"!/cred/1/2/3"))

PATTERNS = st.lists(st.sampled_from([b"a", b"b", b"!", b"*", b"/"]), max_size=4).map(b"".join) | st.builds(
    b"%b%b".__mod__,
    st.tuples(
        st.sampled_from([b"!/cred/", b"!/cred/1/", b"!/cred/1/2/3/", b"!/cre", b"!/"]),
        st.lists(st.sampled_from([b"a", b"*", b"/"]), max_size=3).map(b"".join),
    ),
)
PREFIXES = st.lists(st.sampled_from([b"a", b"b", b"!", b"/"]), max_size=3).map(b"".join) | st.sampled_from(
    [b"!/cred/", b"!/cred", b"!/cred/1/", b"!/cred/1/2/3/", b"!/cred/1/2/3/a", b"!/c"]
)
TAILS = [b"".join(tail) for length in range(6) for tail in itertools.product([b"a", b"b", b"/", b"!"], repeat=length)]
"""Continuations of a prefix: a pattern of four symbols that matches any key below the prefix matches one of these."""


@settings(max_examples=examples(300))
@given(PATTERNS, PREFIXES, st.sampled_from(KEYSPACES))
@example(b"*", b"lab/", KeySpace())
@example(b"", b"lab/", KeySpace())
@example(b"*/", b"!/cred/", KeySpace())
@example(b"*a/b", b"a", KeySpace())
@example(b"a**/", b"ab", KeySpace())
def test_a_pattern_overlaps_a_prefix_exactly_if_it_matches_a_key_with_the_prefix(pattern: bytes, prefix: bytes, keyspace: KeySpace) -> None:
    pattern, prefix = (text.replace(b"/", keyspace.separator) for text in (pattern, prefix))
    tails = [tail.replace(b"/", keyspace.separator) for tail in TAILS]
    # They are too short for the five segments of a secret: what the pattern itself spells out is tried too.
    tails += [pattern.removeprefix(prefix).replace(b"*", b"") + tail for tail in (b"", b"a", b"/", b"a/")]
    found = any(keyspace.matches(pattern, prefix + tail) for tail in tails)
    assert Reach(keyspace, pattern).touches(prefix) is found


@settings(max_examples=examples(300))
@given(PATTERNS, PREFIXES)
def test_a_pattern_within_a_prefix_matches_no_key_outside_of_it(pattern: bytes, prefix: bytes) -> None:
    keys = [key for key in TAILS[:1_365] if KeySpace().matches(pattern, key)]
    if Reach(KeySpace(), pattern).is_within(prefix):
        assert all(key.startswith(prefix) for key in keys)
    elif Reach(KeySpace(), pattern).touches(b""):
        # Some key that it takes begins otherwise; of those with stars taken for nothing, or for one byte, there is one.
        witnesses = {pattern.replace(b"*", fill) + more for fill in (b"", b"a", b"b", b"!") for more in (b"", b"a")}
        assert any(KeySpace().matches(pattern, key) and not key.startswith(prefix) for key in witnesses | set(keys))
