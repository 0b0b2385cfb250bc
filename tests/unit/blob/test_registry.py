"""The tickets: how they end, and what is remembered."""

from __future__ import annotations

import pytest

from sbusd.blob.refusals import Cause, Refusal
from sbusd.blob.registry import MAX_ENDED, Blob, End, Registry
from sbusd.blob.users import User
from sbusd.protocol.blobs import ANYONE, MAX_EXPIRE
from sbusd.protocol.credentials import Credentials


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def blob(uid: int = 1, until: float = 200.0, connection: object | None = None) -> Blob:
    return Blob(0, 1, "a/b", Credentials(1, uid, 1), User(uid), ANYONE, None, until, False, connection)


def cause(registry: Registry, ticket: str) -> tuple[Cause, str]:
    with pytest.raises(Refusal) as refused:
        registry.find(ticket)
    return refused.value.cause, refused.value.reason


def test_a_blob_is_found_until_it_expires() -> None:
    clock = Clock()
    registry = Registry(clock)
    made = blob()
    registry.add(made)
    assert registry.find(made.ticket) is made
    clock.now = 200.0  # before its timer runs
    assert cause(registry, made.ticket) == (Cause.GONE, "the blob is gone: it has expired")


@pytest.mark.parametrize("why", End)
def test_the_reason_is_remembered_for_as_long_as_a_message_can_be_on_its_way(why: End) -> None:
    clock = Clock()
    registry = Registry(clock)
    made = blob()
    registry.add(made)
    assert registry.end(made, why)
    assert not registry.end(made, why)
    registry.forget_ended()
    assert cause(registry, made.ticket) == (Cause.GONE, f"the blob is gone: {why.value}")
    clock.now += MAX_EXPIRE + 1
    registry.forget_ended()
    assert cause(registry, made.ticket)[0] is Cause.UNKNOWN_TICKET


def test_a_user_cannot_make_others_forget() -> None:
    registry = Registry(Clock())
    first = blob(1)
    registry.add(first)
    registry.end(first, End.DROPPED)
    made = [blob(2) for _ in range(MAX_ENDED + 1)]
    for each in made:
        registry.add(each)
        registry.end(each, End.USED)
    assert cause(registry, first.ticket)[0] is Cause.GONE
    assert cause(registry, made[0].ticket)[0] is Cause.UNKNOWN_TICKET
    assert cause(registry, made[1].ticket)[0] is Cause.GONE
    assert len(registry) == 0


def test_only_own_blobs_are_listed_in_order() -> None:
    registry = Registry(Clock())
    connection = object()
    made = [blob(1, connection=connection), blob(1), blob(2, connection=connection)]
    for each in made:
        registry.add(each)
    tickets = sorted(each.ticket for each in made[:2])
    assert [each.ticket for each in registry.of_user(1)] == tickets
    assert [each.ticket for each in registry.of_user(1, tickets[0])] == tickets[1:]
    assert registry.of_connection(1, connection) == made[:1]
    with pytest.raises(Refusal, match="no blob of this user"):
        registry.own(made[2].ticket, 1)
