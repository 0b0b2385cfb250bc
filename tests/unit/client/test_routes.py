"""Dispatch to several subscriptions of one connection."""

from __future__ import annotations

from sbusd.client.inbox import Bounds, Inbox
from sbusd.client.routes import _CACHED_KEYS, Routes
from sbusd.protocol.keys import KeySpace


def inbox(*patterns: bytes) -> Inbox:
    return Inbox(list(patterns), Bounds(), set())


def test_each_inbox_that_matches_gets_it_once() -> None:
    routes = Routes(KeySpace())
    one, two, three = inbox(b"a/", b"a/*"), inbox(b"*/b"), inbox(b"c")
    for each in (one, two, three):
        routes.add(each)
    assert routes.find(b"a/b") == (one, two)
    assert routes.find(b"a/b") == (one, two)
    assert routes.find(b"x") == ()
    assert routes.only is None


def test_changes_are_seen_at_once() -> None:
    routes = Routes(KeySpace())
    one, two = inbox(b"a"), inbox(b"a")
    routes.add(one)
    assert routes.only is one
    assert routes.find(b"a") == (one,)
    routes.add(two)
    assert routes.find(b"a") == (one, two)
    assert routes.remove_pattern(b"a") is two
    assert routes.find(b"a") == (one,)
    assert routes.holds(b"a")
    assert routes.discard(one)
    assert not routes.discard(one)
    assert not routes.holds(b"a")
    assert routes.find(b"a") == ()


def test_the_separator_is_the_buss() -> None:
    routes = Routes(KeySpace(b"."))
    one = inbox(b"a.*")
    routes.add(one)
    assert routes.find(b"a.b") == (one,)
    assert routes.find(b"a/b") == ()


def test_no_flood_of_keys_grows_the_cache() -> None:
    routes = Routes(KeySpace())
    routes.add(inbox(b""))
    for number in range(_CACHED_KEYS + 10):
        routes.find(b"%d" % number)
    assert len(routes._cache) <= _CACHED_KEYS
