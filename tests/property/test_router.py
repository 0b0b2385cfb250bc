"""The compiled router, trie and cache, against the plain matcher: exhaustively for short texts, and through a random life."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbus.protocol.keys import KeySpace
from sbusd.dataplane.contract import Refusal
from sbusd.dataplane.switch import Router
from tests.support.examples import examples

TOKENS = [b"!", b"/", b"*", b"cred", b"1", b"a", b"ab", b".", b"!/cred/", b"1/"]
TEXTS = st.lists(st.sampled_from(TOKENS), max_size=8).map(b"".join)
PREFIX = b"!/cred/1/1/1"
KEYSPACES = [KeySpace(b"/"), KeySpace(b"."), KeySpace(b"/", PREFIX)]


def texts_of(tokens: list[bytes], most: int) -> list[bytes]:
    """Return all texts of up to *most* tokens, each once."""
    made = (b"".join(text) for length in range(most + 1) for text in itertools.product(tokens, repeat=length))
    return list(dict.fromkeys(made))


def expected_refusal(keyspace: KeySpace, key: bytes) -> Refusal | None:
    """Return the expected refusal for a publisher to *key*."""
    return None if keyspace.is_publishable(key) else Refusal.RESERVED


@pytest.mark.parametrize("keyspace", KEYSPACES, ids=["slash", "dot", "prefix"])
def test_every_short_pattern_matches_exactly_its_keys(keyspace: KeySpace) -> None:
    """1,400,000 pairs in all; each pattern has its own slot, so that one lookup tests all patterns."""
    patterns = texts_of([b"a", b"*", b"!", keyspace.separator, b"ab"], 5)
    keys = texts_of([b"a", b"!", keyspace.separator], 4)
    router = Router(keyspace, 1 << 20)
    for slot, pattern in enumerate(patterns):
        router.add(slot, pattern)
    pairs = 0
    for key in keys:
        slots = [slot for slot, pattern in enumerate(patterns) if keyspace.matches(pattern, key)]
        for _ in range(2):  # by a walk, then from the cache
            assert router.lookup(key) == (slots, expected_refusal(keyspace, key)), key
        pairs += len(patterns)
    assert pairs == 3_906 * 121
    assert router.hits >= len(keys) // 2
    for slot, pattern in enumerate(patterns):
        router.remove(slot, pattern)
    assert router.is_bare


class RouterMachine(RuleBasedStateMachine):
    """Patterns are added and removed while keys are looked up; the model counts the stored patterns."""

    @initialize(keyspace=st.sampled_from(KEYSPACES), cache_bytes=st.sampled_from([0, 16, 64, 256, 4096]))
    def open(self, keyspace: KeySpace, cache_bytes: int) -> None:
        self.keyspace = keyspace
        self.cache_bytes = cache_bytes
        self.router = Router(keyspace, cache_bytes)
        self.stored: Counter[tuple[int, bytes]] = Counter()

    @rule(slot=st.integers(0, 5), pattern=TEXTS, times=st.integers(1, 3))
    def add(self, slot: int, pattern: bytes, times: int) -> None:
        for _ in range(times):
            self.router.add(slot, pattern)
        self.stored[slot, pattern] += times

    @rule(slot=st.integers(0, 5), pattern=TEXTS)
    def remove_any(self, slot: int, pattern: bytes) -> None:
        self.remove(slot, pattern)

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def remove_stored(self, data: st.DataObject) -> None:
        self.remove(*data.draw(st.sampled_from(sorted(self.stored))))

    @rule(keys=st.lists(TEXTS, min_size=1, max_size=30))
    def look_up(self, keys: list[bytes]) -> None:
        for key in keys + keys:
            self.check(key)

    @precondition(lambda self: self.stored)
    @rule(data=st.data(), more=TEXTS)
    def look_up_below_a_pattern(self, data: st.DataObject, more: bytes) -> None:
        _, pattern = data.draw(st.sampled_from(sorted(self.stored)))
        for key in (pattern, pattern + more, pattern.replace(b"*", more), pattern.replace(b"*", b"")):
            self.check(key)

    def remove(self, slot: int, pattern: bytes) -> None:
        """Remove one instance from both. Of a pattern that can never match the router keeps none, so it says there was none."""
        was_stored = self.stored[slot, pattern] > 0
        self.stored[slot, pattern] -= was_stored
        self.stored += Counter()  # drops what is at 0
        assert self.router.remove(slot, pattern) == (was_stored and can_match(pattern, self.keyspace.separator))

    def check(self, key: bytes) -> None:
        slots = sorted({slot for slot, pattern in self.stored if self.keyspace.matches(pattern, key)})
        assert self.router.lookup(key) == (slots, expected_refusal(self.keyspace, key))

    @invariant()
    def the_cache_keeps_its_bound(self) -> None:
        assert self.router.cache_bytes <= self.cache_bytes

    def teardown(self) -> None:
        for slot, pattern in sorted(self.stored.elements()):
            self.remove(slot, pattern)
        assert self.router.is_bare


def can_match(pattern: bytes, separator: bytes) -> bool:
    """Return whether there is a key that *pattern* takes: nothing but stars follows a star in its segment."""
    return all(not segment.partition(b"*")[2].strip(b"*") for segment in pattern.split(separator))


RouterMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=30)
TestRouter = RouterMachine.TestCase


def test_the_cache_forgets_when_it_is_full_and_answers_all_the_same() -> None:
    keyspace = KeySpace()
    router = Router(keyspace, 64 << 10)
    router.add(7, b"a/*")
    keys = [b"a/%d" % number for number in range(20_000)]
    for _ in range(2):
        for key in keys:
            assert router.lookup(key) == ([7], None)
            assert router.cache_bytes <= 64 << 10
    assert router.misses > len(keys)


def test_a_change_of_patterns_is_seen_through_the_cache() -> None:
    router = Router(KeySpace(), 1 << 20)
    for slot in range(100):
        router.add(slot, b"a/")
        assert router.lookup(b"a/b") == (list(range(slot + 1)), None)
        assert router.lookup(b"a/b") == (list(range(slot + 1)), None)
    assert (router.hits, router.misses) == (100, 100)


@pytest.mark.parametrize("pattern", [b"/" * 65_536, b"a/" * 32_768, b"*/" * 32_768, b"*/" * 32_767 + b"a", b"x" * 65_535 + b"*"])
def test_the_longest_configurable_pattern_can_be_added_and_removed(pattern: bytes) -> None:
    """One node for each segment: a walk by recursion once overflowed the stack, and ended the bus."""
    router = Router(KeySpace(), 1 << 20)
    router.add(1, pattern)
    assert router.lookup(pattern) == ([1], None)
    assert router.remove(1, pattern)
    assert router.is_bare
    router.add(1, pattern)  # and is freed with the router


def test_stems_as_deep_as_literals_are_long_come_and_go() -> None:
    """Each literal begins the next: the stems are one path of a thousand forks."""
    router = Router(KeySpace(), 1 << 20)
    patterns = [b"x" * length + b"*" for length in range(1_000)]
    for slot, pattern in enumerate(patterns):
        router.add(slot, pattern)
    assert router.lookup(b"x" * 500) == (list(range(501)), None)
    for slot, pattern in enumerate(patterns[::2]):
        assert router.remove(2 * slot, pattern)
    assert router.lookup(b"x" * 500) == (list(range(1, 501, 2)), None)
    for slot, pattern in enumerate(patterns[1::2]):
        assert router.remove(2 * slot + 1, pattern)
    assert router.is_bare


def test_many_sibling_segments_are_added_and_removed_in_any_order() -> None:
    """Each is found, and none that has gone, while the tree of a node is rebalanced around it."""
    router = Router(KeySpace(), 0)
    order = [number * 7_919 % 5_000 for number in range(5_000)]
    for number in order:
        router.add(number, b"a/%d/*/x" % number)
    for number in order[::3]:
        assert router.remove(number, b"a/%d/*/x" % number)
    gone = set(order[::3])
    for number in range(5_000):
        assert router.lookup(b"a/%d/q/x" % number)[0] == ([] if number in gone else [number])
    for number in sorted(set(order) - gone):
        assert router.remove(number, b"a/%d/*/x" % number)
    assert router.is_bare


def test_a_pattern_that_parts_late_from_another_leaves_that_where_it_was() -> None:
    """They are one up to a segment, of which a star more makes no other, and then two."""
    router = Router(KeySpace(), 0)
    router.add(1, b"a/b*/c/d/e")
    router.add(2, b"a/b**/c/d/f*")
    router.add(3, b"a/b*/c/")
    router.add(4, b"a/b*/c")
    assert router.lookup(b"a/bx/c/d/e") == ([1, 3], None)
    assert router.lookup(b"a/b/c/d/fg") == ([2, 3], None)
    assert router.lookup(b"a/b/c") == ([4], None)
    for slot, pattern in ((2, b"a/b**/c/d/f*"), (3, b"a/b*/c/"), (4, b"a/b*/c")):
        assert router.remove(slot, pattern)
        assert not router.remove(slot, pattern)
    assert router.lookup(b"a/b/c/d/e") == ([1], None)
    assert router.remove(1, b"a/b*/c/d/e")
    assert router.is_bare
