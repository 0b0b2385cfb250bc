"""Which handshake is ended for a new one, compared with a plain list of all."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sbusd.link.network.handshakes import Handshakes

MOST, MOST_OF_ADDRESS = 6, 3

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.sampled_from("abcdefgh")), max_size=80)
"""Whether a handshake begins or a number is released, that number, and the address."""


class Model:
    """All handshakes, oldest first."""

    def __init__(self) -> None:
        self.all: list[tuple[int, str]] = []

    def admit(self, number: int, address: str) -> int | None:
        """Add a handshake; return the one that is ended."""
        ended = self._victim(address)
        self.release(ended)
        self.all.append((number, address))
        return ended

    def release(self, number: int | None) -> bool:
        """Remove a handshake."""
        before = len(self.all)
        self.all = [each for each in self.all if each[0] != number]
        return len(self.all) < before

    def _victim(self, address: str) -> int | None:
        of = Counter(each for _, each in self.all)
        if of[address] == MOST_OF_ADDRESS:
            return self._oldest({address})
        if len(self.all) < MOST:
            return None
        busiest = {each for each in of if of[each] == max(of.values())}
        return self._oldest({address} if address in busiest else busiest)

    def _oldest(self, addresses: set[str]) -> int:
        return next(number for number, address in self.all if address in addresses)


@given(STEPS)
def test_the_ended_handshake_is_that_of_a_plain_list(steps: list[tuple[bool, int, str]]) -> None:
    model, handshakes = Model(), Handshakes[int](MOST, MOST_OF_ADDRESS)
    for number, (begins, old, address) in enumerate(steps):
        if begins:
            assert handshakes.admit(number, address) == model.admit(number, address)
        else:
            assert handshakes.release(number - old) == model.release(number - old)
        assert len(handshakes) == len(model.all) <= MOST


def test_one_address_cannot_end_the_handshakes_of_others() -> None:
    handshakes = Handshakes[int](MOST, MOST_OF_ADDRESS)
    for number, address in enumerate("abcdef"):
        assert handshakes.admit(number, address) is None
    ended = [handshakes.admit(number, "a") for number in range(10, 20)]
    assert ended == [0, *range(10, 19)]
