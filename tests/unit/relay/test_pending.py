"""Bodies of senders who are not verified have a bounded number of bytes, and do not use up those of others."""

from __future__ import annotations

from sbusd.relay.addresses import Parties
from sbusd.relay.pending import PARTS, Pending

PEER = "10.0.0.2"


def test_one_party_has_a_part_and_all_have_the_whole() -> None:
    pending = Pending(Parties([PEER]), 8_000, 100)
    bodies = [pending.body(f"10.1.0.{number}") for number in range(PARTS + 1)]
    assert [body.grow(1_000) for body in bodies] == [True] * PARTS + [False]
    assert not bodies[0].grow(1)
    with bodies[0]:
        pass
    assert bodies[-1].grow(1_000)


def test_addresses_of_one_network_are_one_party() -> None:
    pending = Pending(Parties([]), 8_000, 100)
    assert [pending.body(f"2001:db8::{number}").grow(600) for number in (1, 2)] == [True, False]


def test_a_body_of_the_largest_size_is_taken_whatever_the_part() -> None:
    pending = Pending(Parties([]), 1_000, 1_000)
    assert pending.body("10.1.0.1").grow(1_000)


def test_configured_peers_have_bytes_of_their_own() -> None:
    pending = Pending(Parties([PEER]), 1_000, 1_000)
    assert pending.body("10.1.0.1").grow(1_000)
    assert not pending.body("10.1.0.3").grow(1)
    assert pending.body(PEER).grow(1_000)


def test_nobody_who_has_left_is_remembered() -> None:
    pending = Pending(Parties([]), 1_000, 1_000)
    for number in range(100):
        with pending.body(f"10.1.0.{number}") as body:
            assert body.grow(1_000)
    assert (sum(pending._of.values()), len(pending._of), pending._total[False]) == (0, 0, 0)
