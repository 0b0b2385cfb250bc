"""Two hosts with one number are noticed, and a host that moves is not."""

from __future__ import annotations

from sbusd.relay.http.shared_numbers import CHANGES, MAX_HOSTS, SECONDS, SharedNumbers


def test_two_addresses_in_turn_are_noticed() -> None:
    made = SharedNumbers()
    found = [made.other_address(7, address, second) for second, address in enumerate("abbaabba" * 3)]
    assert {each for each in found if each is not None} <= {"a", "b"}
    assert sum(each is not None for each in found) == 3


def test_a_host_that_moves_or_alternates_slowly_is_not() -> None:
    made = SharedNumbers()
    moves = [made.other_address(7, address, 1.0) for address in "aaabbbaaacde"]
    slow = [made.other_address(8, address, number * SECONDS) for number, address in enumerate("ab" * CHANGES * 2)]
    apart = [made.other_address(number % 2, "ab"[number % 2], number) for number in range(20)]
    assert {*moves, *slow, *apart} == {None}


def test_the_number_of_hosts_is_bounded() -> None:
    made = SharedNumbers()
    for twin in range(MAX_HOSTS + 10):
        made.other_address(twin, "a", 0.0)
    assert len(made._seen) == MAX_HOSTS
