"""Tickets in messages that have crossed: the blobs that each host may pull, and the limits of the table."""

from __future__ import annotations

import pytest

from sbus.protocol.blobs import MAX_EXPIRE, Reference, new_ticket
from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.link.blob_tickets import EVERY_HOST, MAX_OF_PUBLISHER, MAX_PUBLISHERS, BlobTickets, host_label
from tests.support.link_bodies import run_of

USER = b"!/cred/1000/1000/%d"


class Clock:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def payload(ticket: str, *, host: str = "alpha", size: int = 10) -> bytes:
    """Return the payload of a message that refers to a blob."""
    return Reference(ticket, size, "text/plain", host, 5.0).encode()


def test_the_hosts_of_the_message_may_pull_the_blob() -> None:
    tickets, (one, two, three) = BlobTickets(Clock()), (new_ticket(), new_ticket(), new_ticket())
    run = run_of(b"cam/x", b"other", payload(one), b'{"sbus-blob": "no"}', payload(two, host="alpha.example.org"))
    tickets.note("alpha", run, 100, ("beta",))
    tickets.note("alpha", run_of(b"cam/x", payload(three)), 200, (EVERY_HOST,))
    assert [tickets.max_bytes("alpha", each, "beta") for each in (one, two, three)] == [100, 100, 200]
    assert [tickets.max_bytes("alpha", each, "gamma") for each in (one, two, three)] == [None, None, 200]
    assert tickets.max_bytes("beta", one, "beta") is None
    tickets.note("alpha", run_of(b"cam/x", payload(one)), 300, ("gamma",))
    assert (tickets.max_bytes("alpha", one, "beta"), tickets.max_bytes("alpha", one, "gamma")) == (300, 300)


def test_only_the_run_itself_is_looked_at() -> None:
    """Batches have the messages of several keys, and the rule is that of one key."""
    tickets, ticket = BlobTickets(Clock()), new_ticket()
    run = run_of(b"cam/x", b"a", payload(ticket))
    tickets.note("alpha", run._replace(messages=1), 100, (EVERY_HOST,))
    assert len(tickets) == 0


@pytest.mark.parametrize("host", ["gamma", "alph", "alpha2", "", ".alpha", "gamma.alpha"])
def test_a_host_cannot_name_another_one(host: str) -> None:
    tickets, ticket = BlobTickets(Clock()), new_ticket()
    tickets.note("alpha", run_of(b"cam/x", payload(ticket, host=host)), 100, (EVERY_HOST,))
    assert len(tickets) == 0


def test_a_blob_above_the_limit_is_not_noted() -> None:
    tickets, ticket = BlobTickets(Clock()), new_ticket()
    tickets.note("alpha", run_of(b"cam/x", payload(ticket, size=101)), 100, (EVERY_HOST,))
    assert tickets.max_bytes("alpha", ticket, "beta") is None


def test_tickets_are_forgotten() -> None:
    clock, ticket = Clock(), new_ticket()
    tickets = BlobTickets(clock)
    tickets.note("alpha", run_of(b"cam/x", payload(ticket)), 100, (EVERY_HOST,))
    clock.now = MAX_EXPIRE - 1
    assert tickets.max_bytes("alpha", ticket, "beta") == 100
    clock.now = MAX_EXPIRE
    assert tickets.max_bytes("alpha", ticket, "beta") is None
    tickets.note("alpha", run_of(b"cam/x", payload(new_ticket())), 100, (EVERY_HOST,))
    assert len(tickets) == 1


def test_a_publisher_displaces_only_its_own_tickets() -> None:
    tickets, ticket = BlobTickets(Clock()), new_ticket()
    tickets.note("alpha", run_of(b"cam/x", payload(ticket), credentials=USER % 1), 100, (EVERY_HOST,))
    flood = run_of(b"cam/x", *(payload(new_ticket()) for _ in range(2 * MAX_OF_PUBLISHER)), credentials=b"!/cred/1000/1001/5")
    tickets.note("alpha", flood, 100, (EVERY_HOST,))
    assert tickets.max_bytes("alpha", ticket, "beta") == 100
    assert len(tickets) == MAX_OF_PUBLISHER + 1
    # Another process of the same user is the same publisher, also with another group.
    own = run_of(b"cam/x", *(payload(new_ticket()) for _ in range(MAX_OF_PUBLISHER)), credentials=b"!/cred/7/1000/2")
    tickets.note("alpha", own, 100, (EVERY_HOST,))
    assert tickets.max_bytes("alpha", ticket, "beta") is None


def test_the_ids_of_a_user_displace_only_the_tickets_of_that_user() -> None:
    charged = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 65_536, 1001)]))
    tickets, ticket, first = BlobTickets(Clock(), "alpha", charged.of), new_ticket(), new_ticket()
    tickets.note("alpha", run_of(b"cam/x", payload(ticket), credentials=USER % 1), 100, (EVERY_HOST,))
    tickets.note("alpha", run_of(b"cam/x", payload(first), credentials=b"!/cred/1001/1001/1"), 100, (EVERY_HOST,))
    for uid in range(100_000, 100_000 + MAX_OF_PUBLISHER):
        tickets.note("alpha", run_of(b"cam/x", payload(new_ticket()), credentials=b"!/cred/%d/%d/1" % (uid, uid)), 100, (EVERY_HOST,))
    assert (tickets.max_bytes("alpha", ticket, "beta"), tickets.max_bytes("alpha", first, "beta")) == (100, None)
    assert len(tickets) == MAX_OF_PUBLISHER + 1


def test_a_host_with_many_users_does_not_displace_tickets_of_others() -> None:
    tickets, ticket = BlobTickets(Clock()), new_ticket()
    tickets.note("alpha", run_of(b"cam/x", payload(ticket)), 100, (EVERY_HOST,))
    for uid in range(2 * MAX_PUBLISHERS):
        run = run_of(b"cam/x", payload(new_ticket(), host="gamma"), credentials=b"!/cred/1/%d/1" % uid)
        tickets.note("gamma", run, 100, (EVERY_HOST,))
    assert tickets.max_bytes("alpha", ticket, "beta") == 100
    assert len(tickets) == MAX_PUBLISHERS + 1


def test_the_name_of_a_host_for_the_link() -> None:
    assert [host_label(name) for name in ("alpha", "alpha.example.org", "")] == ["alpha", "alpha", ""]
