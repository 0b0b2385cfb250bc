"""No pattern reaches a reserved key by wildcard: over all patterns of up to six symbols, and through every door of the bus."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import KeySpace
from sbusd.broker.access import AccessRules
from sbusd.dataplane.switch import Router

ALPHABETS = {
    "symbols": [b"!", b"/", b"*", b"cred", b"1", b"a"],
    "heads": [b"!/cred/", b"1/", b"2/", b"/", b"*", b"a"],
}
"""In the first a pattern is any mixture; in the second, six symbols are enough for whole secret patterns."""

PREFIX = b"!/cred/1/1/1"
TWO_PREFIXES = PREFIX + b"/!/cred/2/2/2"
BUSES = {"plain": KeySpace(), "prefix": KeySpace(b"/", PREFIX), "two prefixes": KeySpace(b"/", TWO_PREFIXES)}
CASES = [("symbols", "plain", 6), ("heads", "plain", 6), ("heads", "prefix", 6), ("heads", "two prefixes", 5)]
"""Alphabet, bus, and symbols. Behind a prefix, mixtures of the smaller symbols reach nothing that they do not reach without."""

SECRETS = [
    *[b"1/1/1/a", b"1/1/1/", b"1/1/1/a/a", b"1///a", b"/1//a", b"//1/a", b"/1//", b"1/1//1", b"*/*/*/a", b"a/a/a/a", b"1/1/1/*"],
]
"""Private keys after ``!/cred/`` that belong to user 1, or to no user."""

SERVERS = [b"!/", b"!/a", b"!/a/", b"!/bus/x", b"!/1/a", b"!/conn/5/x", b"!/cred", b"!/*/a", b"!//", b"!/!/cred/1"]
"""Reserved keys of the bus itself, and an address that is not the client's."""

EVENTS = [b"!/event/connect/3", b"!/event/1/a", b"!/event/a", b"!/event/"]
"""Keys that anybody may subscribe to, by spelling out their head."""

CUT = [b"!/cred/", b"!/cred/1", b"!/cred/1/1/1", b"!/cred/1/1/", b"!/cred//"]
"""Truncated private keys, to which no user can publish."""

OWNER = Credentials(pid=1, uid=1, gid=1)
OTHER_USER = Credentials(pid=7, uid=2, gid=2, groups=frozenset({5, 6}))


@cache
def patterns_of(alphabet: str, most: int = 6) -> tuple[bytes, ...]:
    """Return every text of up to *most* symbols, each once."""
    symbols = ALPHABETS[alphabet]
    return tuple(dict.fromkeys(b"".join(text) for length in range(most + 1) for text in itertools.product(symbols, repeat=length)))


def secret_keys(bus: KeySpace) -> list[bytes]:
    """Return the private keys of *bus*, behind its prefix."""
    head = bus.prefix + b"/!/cred/" if bus.prefix else b"!/cred/"
    return [head + rest for rest in SECRETS]


def reserved_keys(bus: KeySpace) -> list[bytes]:
    """Return reserved keys of every kind."""
    unprefixed = [b"!/cred/" + rest for rest in SECRETS] if bus.prefix else []
    return secret_keys(bus) + unprefixed + SERVERS + EVENTS + CUT


def guarded_segments(key: bytes, bus: KeySpace) -> int:
    """Return how many segments of a reserved key a pattern must spell out, as the protocol counts them."""
    if key.startswith(b"!/cred/"):
        return 5 * (1 + bus.prefix.count(b"!/cred/"))
    return 3 if key.startswith(b"!/conn/") else 2


def spells_out(pattern: bytes, key: bytes, segments: int) -> bool:
    """Return whether *pattern* begins with the first *segments* of *key*, letter by letter and without a star."""
    wanted = pattern.split(b"/")[:segments]
    return wanted == key.split(b"/")[:segments] and not any(b"*" in segment for segment in wanted)


def in_front(patterns: Iterable[bytes], bus: KeySpace) -> list[bytes]:
    """Return *patterns*; behind a prefix with that in front, for six symbols would not reach so far, and the shortest without."""
    plain = list(patterns)
    return plain if not bus.prefix else [bus.prefix + b"/" + pattern for pattern in plain] + plain[:2_000]


@pytest.mark.parametrize(("alphabet", "bus", "most"), CASES)
def test_matcher_and_router_let_no_wildcard_into_a_reserved_key(alphabet: str, bus: str, most: int) -> None:
    keyspace = BUSES[bus]
    patterns = in_front(patterns_of(alphabet, most), keyspace)
    router = Router(keyspace, 1 << 20)
    for slot, pattern in enumerate(patterns):
        router.add(slot, pattern)
    reached = 0
    for key in reserved_keys(keyspace):
        segments = guarded_segments(key, keyspace)
        slots, _ = router.lookup(key)
        for slot in slots:
            assert spells_out(patterns[slot], key, segments), (patterns[slot], key)
        assert slots == [slot for slot, pattern in enumerate(patterns) if keyspace.matches(pattern, key)]
        reached += len(slots)
    assert reached, "no pattern reached any key, so nothing was tried"


def test_there_are_as_many_patterns_as_there_should_be() -> None:
    assert len(patterns_of("symbols")) == sum(6**length for length in range(7)) == 55_987


@pytest.mark.parametrize(("alphabet", "bus", "most"), CASES)
def test_accepted_patterns_of_others_match_no_private_and_no_server_key(alphabet: str, bus: str, most: int) -> None:
    keyspace = BUSES[bus]
    acceptance = AccessRules(keyspace, 4_096)
    patterns = in_front(patterns_of(alphabet, most), keyspace)
    for credentials in (OTHER_USER, OWNER):
        accepted = [pattern for pattern in patterns if acceptance.subscription(pattern, credentials).is_allowed]
        router = Router(keyspace, 1 << 20)
        for slot, pattern in enumerate(accepted):
            router.add(slot, pattern)
        for key in SERVERS + CUT:
            assert not router.lookup(key)[0], key
        # On a bus with a credential prefix, keys without it belong to no user.
        for key in [b"!/cred/" + rest for rest in SECRETS] if keyspace.prefix else []:
            assert not router.lookup(key)[0], key
        for key in secret_keys(keyspace) if credentials is OTHER_USER else []:
            assert not router.lookup(key)[0], key


@pytest.mark.parametrize("bus", BUSES)
def test_the_owner_of_a_private_key_receives_it(bus: str) -> None:
    """Without this, a bus that accepts nothing would pass all of the above."""
    keyspace = BUSES[bus]
    acceptance = AccessRules(keyspace, 4_096)
    patterns = in_front(patterns_of("heads"), keyspace)
    router = Router(keyspace, 1 << 20)
    for slot, pattern in enumerate(patterns):
        if acceptance.subscription(pattern, OWNER).is_allowed:
            router.add(slot, pattern)
    owned, others = secret_keys(keyspace)[:8], secret_keys(keyspace)[8:10]
    for key in owned:
        slots, refusal = router.lookup(key)
        assert refusal is None
        assert slots, key
    for key in others:
        assert not router.lookup(key)[0], key


def test_each_refusal_has_its_reason() -> None:
    """EACCES ends a connection, EPERM does not: a subscription to a key of the server is a mistake, one to a private key is an attack."""
    acceptance = AccessRules(KeySpace(), 4_096)
    for pattern in patterns_of("symbols"):
        code = acceptance.subscription(pattern, OTHER_USER).code
        if pattern.startswith(b"!/cred/"):
            assert code is ErrorCode.EACCES  # six symbols are too few for a whole secret pattern
        else:
            assert code is (ErrorCode.EPERM if pattern.startswith(b"!/") else None)


SEGMENT = st.sampled_from([b"!", b"cred", b"1", b"2", b"", b"*", b"!*", b"c*", b"1*", b"**", b"a", b"01", b"!/cred/1/1/1", b"!/cred", b"5"])
LONG_TEXT = st.lists(SEGMENT, max_size=16).map(b"/".join)
SECRET_TEXT = st.tuples(st.sampled_from([b"!/cred/", PREFIX + b"/!/cred/", TWO_PREFIXES + b"/!/cred/"]), LONG_TEXT).map(b"".join)
ID = st.sampled_from([b"", b"", b"1", b"2", b"3", b"01", b"4294967296"])
SECRET_KEY = st.tuples(st.sampled_from([b"!/cred", PREFIX + b"/!/cred"]), ID, ID, ID, LONG_TEXT).map(b"/".join)
BUS = st.sampled_from(list(BUSES.values()))
IDS = st.integers(1, 3)
CREDENTIALS = st.builds(Credentials, pid=IDS, uid=IDS, gid=IDS, groups=st.frozensets(IDS, max_size=3))


@given(LONG_TEXT | SECRET_TEXT, SECRET_TEXT, BUS)
def test_a_longer_pattern_must_spell_out_the_guarded_segments_too(pattern: bytes, key: bytes, keyspace: KeySpace) -> None:
    router = Router(keyspace, 1 << 16)
    router.add(0, pattern)
    reached = router.lookup(key)[0] == [0]
    assert reached == keyspace.matches(pattern, key)
    assert not reached or spells_out(pattern, key, guarded_segments(key, keyspace))


@given(st.data(), SECRET_KEY, BUS, CREDENTIALS)
def test_recipients_of_a_private_key_have_all_of_its_ids(data: st.DataObject, key: bytes, keyspace: KeySpace, who: Credentials) -> None:
    """The pattern is the key with some segments made wild, or cut: what an attacker would try."""
    segments = [data.draw(st.sampled_from([segment, segment, segment, segment[:1] + b"*"])) for segment in key.split(b"/")]
    pattern = b"/".join(segments[: data.draw(st.integers(0, len(segments)))]) + data.draw(st.sampled_from([b"", b"/"]))
    accepted = AccessRules(keyspace, 4_096).subscription(pattern, who).is_allowed
    if not accepted or not keyspace.matches(pattern, key):
        return
    head = keyspace.prefix + b"/!/cred/" if keyspace.prefix else b"!/cred/"
    assert key.startswith(head)
    gid, uid, pid = key.removeprefix(head).split(b"/")[:3]
    assert gid == b"" or int(gid) in {who.gid, *who.groups}
    assert uid == b"" or int(uid) == who.uid
    assert pid == b"" or int(pid) == who.pid
