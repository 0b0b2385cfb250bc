"""The roster: the clients, and the clients that each may see."""

from __future__ import annotations

from typing import NoReturn

import pytest

from sbus.protocol.credentials import Credentials
from sbusd.broker.roster import Client, Roster

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
    assert (len(roster), roster.newest) == (2, 3)
    roster.remove(3)
    assert (roster.newest, Roster(frozenset()).newest) == (1, 0)
    with pytest.raises(KeyError):
        roster[2]


def test_clients_with_equal_properties_are_distinct() -> None:
    who = Credentials(1, ALICE, ALICE)
    assert Client(1, who, 0.0) != Client(1, who, 0.0)


def test_owners_see_all_clients_and_others_their_own_user() -> None:
    roster, (owner, alice, bob, other_alice) = roster_of(OWNER, ALICE, BOB, ALICE)
    assert roster.is_owner(owner)
    assert not roster.is_owner(alice)
    assert all(roster.may_see(owner, client) for client in roster)
    assert [roster.may_see(alice, client) for client in (owner, alice, bob, other_alice)] == [False, True, False, True]
    assert [roster.hidden_from(client) for client in roster] == [0, 2, 3, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_pages_contain_each_visible_client_once(size: int) -> None:
    roster, clients = roster_of(ALICE, BOB, ALICE, BOB, ALICE, ALICE)
    seen: list[Client] = []
    after: int | None = 0
    while after is not None:
        page = roster.page(clients[0], after, size)
        assert 0 < len(page.clients) <= size
        seen += page.clients
        after = page.next
    assert seen == [clients[0], clients[2], clients[4], clients[5]]


def test_a_page_after_the_end_is_empty() -> None:
    roster, clients = roster_of(ALICE)
    page = roster.page(clients[0], 1, 10)
    assert (page.clients, page.next) == ((), None)


def test_a_page_does_not_need_the_client_it_starts_after() -> None:
    roster, clients = roster_of(ALICE, ALICE, ALICE)
    first = roster.page(clients[2], 0, 2)
    roster.remove(2)
    assert first.next == 2
    assert roster.page(clients[2], 2, 2).clients == (clients[2],)


def test_the_cost_of_a_page_depends_on_its_size_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 10 reads 11 of 2,000 clients of two users, for each start and each viewer."""
    roster, clients = roster_of(*[ALICE, BOB] * 1_000, OWNER)
    looks = 0

    class Counted(dict[int, Client]):
        def __getitem__(self, number: int) -> Client:
            nonlocal looks
            looks += 1
            return super().__getitem__(number)

        def values(self) -> NoReturn:
            raise AssertionError("it looks at all")

    monkeypatch.setattr(roster, "clients", Counted(roster.clients))
    for viewer in (clients[0], clients[-1]):
        for after in (0, 777, 1_900):
            looks = 0
            page = roster.page(viewer, after, 10)
            assert len(page.clients) == 10
            assert looks == 11
    assert (roster.hidden_from(clients[0]), roster.hidden_from(clients[-1])) == (1_001, 0)


def test_clients_restored_in_any_order_are_found_by_number() -> None:
    roster = Roster(frozenset({OWNER}))
    for number in (5, 2, 9, 7):
        roster.add(number, Credentials(1, ALICE, 0), 0.0)
    assert [client.connection for client in roster.after(2)] == [5, 7, 9]
    assert [client.connection for client in roster.after(5, ALICE)] == [7, 9]
    assert list(roster.after(0, BOB)) == []
    roster.remove(7)
    following = roster.following(5)
    assert following is not None
    assert following.connection == 9
    assert roster.following(9) is None
