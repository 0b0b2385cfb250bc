"""Quotas and counters by user."""

from __future__ import annotations

import pytest

from sbusd.blob.refusals import Cause, Refusal
from sbusd.blob.users import GUESS_SECONDS, MAX_REMEMBERED, Users
from sbusd.config.blob import BlobQuotas
from sbusd.config.subordinate_ids import ChargedUsers, SubordinateIds, SubordinateRange


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_all_ids_of_a_user_have_the_quotas_of_one() -> None:
    charged = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 10, 1000)]))
    users = Users(BlobQuotas(blobs=1), Clock(), charged)
    inside = users.of(100_003)
    inside.blobs += 1
    for uid in (1000, 100_009):
        with pytest.raises(Refusal, match="user 1000 has 1 blobs"):
            users.check_blob(users.of(uid), 0)
    users.check_blob(users.of(100_010), 0)


def test_each_quota_has_a_cause_of_its_own() -> None:
    users = Users(BlobQuotas(blobs=1, bytes=10, connections=1, requests=1), Clock(), ChargedUsers())
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
    clock = Clock()
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
    users = Users(BlobQuotas(), Clock(), ChargedUsers())
    for uid in (1, 1, 2):
        users.count_refusal(users.of(uid), Cause.SPARSE)
    assert users.of(1).counters == {"refused-sparse": 2}
    assert users.refused == {"sparse": 3}


def test_many_idle_users_are_forgotten_but_for_those_who_guess() -> None:
    clock = Clock()
    users = Users(BlobQuotas(), clock, ChargedUsers())
    users.count_guess(users.of(0))
    users.of(1).connections = 1
    for uid in range(2, MAX_REMEMBERED + 10):
        users.of(uid)
    users.forget_idle()
    left = {user.uid for user in users}
    assert len(left) == MAX_REMEMBERED
    assert {0, 1} < left
