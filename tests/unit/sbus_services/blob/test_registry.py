"""The tickets: how they end, and what is remembered."""

from __future__ import annotations

import pytest

from sbus.protocol.blobs import ANYONE, MAX_EXPIRE
from sbus.protocol.credentials import Credentials
from sbus_programs.config.blob import BlobQuotas
from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.blob.registry import GUESS_SECONDS, MAX_ENDED, MAX_REMEMBERED, Blob, End, Registry, User, Users
from sbus_services.blob.requests import Cause, Refusal


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


class UsersClock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_all_ids_of_a_user_have_the_quotas_of_one() -> None:
    charged = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 10, 1000)]))
    users = Users(BlobQuotas(blobs=1), UsersClock(), charged)
    inside = users.of(100_003)
    inside.blobs += 1
    for uid in (1000, 100_009):
        with pytest.raises(Refusal, match="user 1000 has 1 blobs"):
            users.check_blob(users.of(uid), 0)
    users.check_blob(users.of(100_010), 0)


def test_each_quota_has_a_cause_of_its_own() -> None:
    users = Users(BlobQuotas(blobs=1, bytes=10, connections=1, requests=1), UsersClock(), ChargedUsers())
    user = users.of(5)
    users.check_blob(user, 10)
    users.check_connection(user)
    users.check_request(user)
    with pytest.raises(Refusal, match="11 more") as refused:
        users.check_blob(user, 11)
    assert refused.value.cause is Cause.QUOTA_BYTES
    user.blobs = user.connections = user.requests = 1
    with pytest.raises(Refusal, match="1 blobs, the maximum") as refused:
        users.check_blob(user, 0)
    assert refused.value.cause is Cause.QUOTA_BLOBS
    with pytest.raises(Refusal, match="1 connections"):
        users.check_connection(user)
    with pytest.raises(Refusal, match="wait for the bus"):
        users.check_request(user)
    users.check_blob(users.of(6), 10)


def test_guesses_are_counted_by_the_minute_and_user() -> None:
    clock = UsersClock()
    users = Users(BlobQuotas(wrong_tickets=2), clock, ChargedUsers())
    user = users.of(5)
    for _ in range(2):
        users.check_guesses(user)
        users.count_guess(user)
    with pytest.raises(Refusal, match="2 unknown tickets"):
        users.check_guesses(user)
    users.check_guesses(users.of(6))
    clock.now += GUESS_SECONDS
    users.check_guesses(user)


def test_refusals_are_counted_for_the_user_and_for_all() -> None:
    users = Users(BlobQuotas(), UsersClock(), ChargedUsers())
    for uid in (1, 1, 2):
        users.count_refusal(users.of(uid), Cause.SPARSE)
    assert users.of(1).counters == {"refused-sparse": 2}
    assert users.refused == {"sparse": 3}


def test_many_idle_users_are_forgotten_but_for_those_who_guess() -> None:
    clock = UsersClock()
    users = Users(BlobQuotas(), clock, ChargedUsers())
    users.count_guess(users.of(0))
    users.of(1).connections = 1
    for uid in range(2, MAX_REMEMBERED + 10):
        users.of(uid)
    users.forget_idle()
    left = {user.uid for user in users}
    assert len(left) == MAX_REMEMBERED
    assert {0, 1} < left
