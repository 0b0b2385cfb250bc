"""Limits on the bytes of bodies of unverified senders."""

from __future__ import annotations

import functools

from sbusd.relay.addresses import AddressGroups
from sbusd.relay.http.unverified_bytes import PARTS, UnverifiedBytes

PEER = "10.0.0.2"


def test_one_party_has_a_part_and_all_have_the_whole() -> None:
    unverified = UnverifiedBytes(AddressGroups([PEER]), 8_000, 100)
    bodies = [unverified.body(f"10.1.0.{number}") for number in range(PARTS + 1)]
    assert [body.grow(1_000) for body in bodies] == [True] * PARTS + [False]
    assert not bodies[0].grow(1)
    with bodies[0]:
        pass
    assert bodies[-1].grow(1_000)


def test_addresses_of_one_network_are_one_party() -> None:
    unverified = UnverifiedBytes(AddressGroups([]), 8_000, 100)
    first, second = (unverified.body(f"2001:db8::{number}") for number in (1, 2))
    assert first.grow(600)
    assert second.grow(600)
    assert first.is_evicted


def test_a_body_of_the_largest_size_is_taken_whatever_the_part() -> None:
    unverified = UnverifiedBytes(AddressGroups([]), 1_000, 1_000)
    assert unverified.body("10.1.0.1").grow(1_000)


def test_configured_peers_have_bytes_of_their_own() -> None:
    unverified = UnverifiedBytes(AddressGroups([PEER]), 1_000, 1_000)
    assert unverified.body("10.1.0.1").grow(1_000)
    assert not unverified.body("10.1.0.3").grow(1)
    assert unverified.body(PEER).grow(1_000)


def test_nobody_who_has_left_is_remembered() -> None:
    unverified = UnverifiedBytes(AddressGroups([]), 1_000, 1_000)
    for number in range(100):
        with unverified.body(f"10.1.0.{number}") as body:
            assert body.grow(1_000)
    assert (sum(unverified._of.values()), len(unverified._of), unverified._total[False]) == (0, 0, 0)


def test_the_oldest_body_of_a_party_makes_room_for_a_new_one() -> None:
    """A user without a key on a peer's host must not block the messages of the peer."""
    unverified = UnverifiedBytes(AddressGroups([PEER]), 8_000, 100)
    ended: list[str] = []
    oldest, empty, other = unverified.body(PEER), unverified.body(PEER), unverified.body("10.0.0.9")
    for name, body in (("oldest", oldest), ("empty", empty), ("other", other)):
        body.end = functools.partial(ended.append, name)
    assert [body.grow(1_000) for body in (other, oldest)] == [True, True]
    with unverified.body(PEER) as new:
        assert new.grow(1_000)
        assert ended == ["oldest"]
        assert oldest.is_evicted
        assert not oldest.grow(1)
        assert not new.grow(1), "there is nobody else to end"
        with oldest:
            pass
        assert not new.grow(1), "its bytes were given back once"
