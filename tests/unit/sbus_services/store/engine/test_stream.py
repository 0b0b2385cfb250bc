"""Compiled patterns against the reference."""

from __future__ import annotations

import pytest

from sbus.protocol.keys import pattern_matches
from sbus_programs.config.store import StreamSettings
from sbus_services.store.engine.stream import KeyMap, KeyMatcher

PATTERNS = [b"", b"a", b"a/", b"a/*", b"*/b", b"a/b", b"a*/c/", b"ab/"]
KEYS = [b"", b"a", b"a/", b"a/b", b"b/b", b"ab/c/", b"ab/c/d", b"ab", b"ab/", b"\xff/b"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_compiled_pattern_matches_as_the_reference(pattern: bytes) -> None:
    assert [KeyMatcher([pattern]).matches(key) for key in KEYS] == [pattern_matches(pattern, key) for key in KEYS]


def test_the_stream_of_a_key_and_of_a_pattern() -> None:
    keys = KeyMap([StreamSettings("a", ("a/", "one")), StreamSettings("b", ("b/*/x",))])
    assert [keys.stream_of(key) for key in (b"a/x", b"one", b"b/q/x", b"b/q", b"!/cred/1/1/1/a")] == ["a", "a", "b", None, None]
    assert [keys.streams_of(pattern) for pattern in (b"", b"*/q/x", b"b/", b"c/")] == [["a", "b"], ["a", "b"], ["b"], []]


def test_the_keys_of_the_store_itself_are_never_stored() -> None:
    keys = KeyMap([StreamSettings("all", ("",))])
    assert [keys.stream_of(key) for key in (b"store/put", b"queue/q/1/k", b"!/bus/x", b"stored")] == [None, None, None, "all"]
