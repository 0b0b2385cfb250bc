"""Whose messages count."""

from __future__ import annotations

from functools import partial

import pytest

from sbusd.config.trigger import EVERY_USER
from sbusd.config.users import ChargedUsers
from sbusd.trigger import senders
from sbusd.trigger.senders import Sender
from tests.unit.trigger.rules import ALICE, BOB, peer, rule

LOCAL = b"!/store/!/cred/100/%d/9" % ALICE

STORE = 990

sender_of = partial(senders.sender_of, charged=ChargedUsers())


def test_a_connection_is_its_user() -> None:
    assert sender_of(rule(), peer()) == Sender(ALICE, ALICE, 5, ALICE)
    assert sender_of(rule(), peer(BOB)) is None
    assert sender_of(rule(), None) is None
    assert sender_of(rule(senders=(EVERY_USER,)), peer(BOB)) == Sender(BOB, BOB, 5, BOB)
    assert sender_of(rule(senders=(EVERY_USER,)), None) is None


def test_only_a_trusted_service_speaks_for_a_user() -> None:
    trusting = rule(vouched_by=(STORE,))
    assert sender_of(trusting, peer(STORE, LOCAL)) == Sender(ALICE, 100, 9, ALICE, STORE)
    assert sender_of(trusting, peer(BOB, LOCAL)) is None
    assert sender_of(trusting, peer(ALICE, LOCAL)) is None
    assert sender_of(rule(), peer(STORE, LOCAL)) is None
    assert sender_of(rule(senders=(EVERY_USER,)), peer(STORE, LOCAL)) is None


@pytest.mark.parametrize(
    "origin",
    [
        b"!/host/alpha/!/cred/100/1000/9",
        b"!/twin/1002/!/cred/100/1000/9",
        b"!/host/alpha/!/store/!/cred/100/1000/9",
        b"!/store/!/cred/1/2/3/!/cred/100/1000/9",
        b"!/store/!/cred/100/1000/9/x",
        b"!/store/!/cred/100/1000/9\n",
        b"words",
    ],
)
def test_an_author_on_another_host_is_not_a_user_here(origin: bytes) -> None:
    assert sender_of(rule(vouched_by=(STORE,), senders=(EVERY_USER, ALICE)), peer(STORE, origin)) is None
