"""Who is on the bus, and who may see whom."""

from __future__ import annotations

import pytest

from sbusd.daemon.roster import Client, Roster
from sbusd.protocol.credentials import Credentials

OWNER, ALICE, BOB = 0, 1_000, 1_001


def roster_of(*uids: int) -> tuple[Roster, list[Client]]:
    """Return a roster with a client of each uid, numbered from 1."""
    roster = Roster(frozenset({OWNER}))
    return roster, [roster.add(number, Credentials(number, uid, uid), 100.0 + number) for number, uid in enumerate(uids, 1)]


def test_clients_come_in_order_and_go() -> None:
    roster, clients = roster_of(ALICE, BOB, ALICE)
    assert list(roster) == clients
    assert roster[2] is clients[1]
    assert roster.remove(2) is clients[1]
    assert roster.remove(2) is None
    assert [client.connection for client in roster] == [1, 3]
    assert len(roster) == 2
    with pytest.raises(KeyError):
        roster[2]


def test_two_clients_with_the_same_facts_are_two() -> None:
    who = Credentials(1, ALICE, ALICE)
    assert Client(1, who, 0.0) != Client(1, who, 0.0)


def test_an_owner_sees_all_and_others_their_own_user() -> None:
    roster, (owner, alice, bob, other_alice) = roster_of(OWNER, ALICE, BOB, ALICE)
    assert roster.is_owner(owner)
    assert not roster.is_owner(alice)
    assert all(roster.may_see(owner, client) for client in roster)
    assert [roster.may_see(alice, client) for client in (owner, alice, bob, other_alice)] == [False, True, False, True]
    assert [roster.hidden_from(client) for client in roster] == [0, 2, 3, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_pages_hold_all_that_a_viewer_may_see_once(size: int) -> None:
    roster, clients = roster_of(ALICE, BOB, ALICE, BOB, ALICE, ALICE)
    seen: list[Client] = []
    after: int | None = 0
    while after is not None:
        page = roster.page(clients[0], after, size)
        assert 0 < len(page.clients) <= size
        seen += page.clients
        after = page.next
    assert seen == [clients[0], clients[2], clients[4], clients[5]]


def test_a_page_behind_the_end_is_empty() -> None:
    roster, clients = roster_of(ALICE)
    page = roster.page(clients[0], 1, 10)
    assert (page.clients, page.next) == ((), None)


def test_a_page_does_not_need_the_client_it_starts_after() -> None:
    roster, clients = roster_of(ALICE, ALICE, ALICE)
    first = roster.page(clients[2], 0, 2)
    roster.remove(2)
    assert first.next == 2
    assert roster.page(clients[2], 2, 2).clients == (clients[2],)
