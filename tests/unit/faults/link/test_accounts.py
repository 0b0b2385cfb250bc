"""Histories that the accounts of linked hosts accept or reject."""

from __future__ import annotations

import pytest

from tests.faults.link.accounts import Accounts, LossError, Receiver

SENT = 9


def judged(items: list[tuple[str, int] | int], *, excused: bool = False, is_exact: bool = True) -> Accounts:
    """Return the accounts of one receiver of ``load/a``, messages 3, 6 and 9 of the series s, after a round with *items*."""
    accounts = Accounts()
    series = accounts.add_series("s", "alpha")
    receiver = Receiver("r", "beta", (b"host/alpha/load/a",))
    accounts.receivers.append(receiver)
    accounts.begin(receiver, is_exact=is_exact)
    series.sent = SENT
    receiver.items += items
    accounts.check(receiver, [("beta", "alpha")] if excused else [])
    accounts.end_round(receiver)
    return accounts


@pytest.mark.parametrize(
    ("items", "lost"),
    [
        ([("s", 3), ("s", 6), ("s", 9)], 0),
        ([("s", 3), 1, ("s", 9)], 1),
        ([3], 3),
        ([1, ("s", 6), 1], 2),
    ],
)
def test_complete_histories_are_accepted(items: list[tuple[str, int] | int], lost: int) -> None:
    accounts = judged(items)
    assert (accounts.lost, accounts.unknown) == (lost, 0)


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([("s", 3), ("s", 9)], "1 missing, reported"),
        ([("s", 3), ("s", 6), ("s", 9), 1], "0 missing, but reported"),
        ([("s", 3), ("s", 3), ("s", 6), ("s", 9)], "repeated"),
        ([("s", 6), 1, ("s", 3), ("s", 9)], "order"),
        ([1, ("s", 3), ("s", 9)], "no report between"),
        ([("s", 3), ("s", 9), 1], "no report between"),
        ([("s", 3), 0, ("s", 9)], "unknown loss without a reason"),
        ([("s", 1), ("s", 3), ("s", 6), ("s", 9)], "does not want, or that was not published"),
        ([("s", 3), ("s", 6), ("s", 9), ("s", 12)], "does not want, or that was not published"),
    ],
)
def test_wrong_histories_are_found(items: list[tuple[str, int] | int], says: str) -> None:
    with pytest.raises(LossError, match=says):
        judged(items)


def test_an_unknown_number_needs_a_reason() -> None:
    accounts = judged([("s", 3), 0, ("s", 9)], excused=True)
    assert (accounts.lost, accounts.unknown) == (1, 1)


def test_a_report_can_include_what_was_lost_before_the_round() -> None:
    assert judged([("s", 3), 5, ("s", 9)], is_exact=False).lost == 1


def test_what_is_missing_between_two_reports_of_an_unknown_number_is_reported() -> None:
    assert judged([0, ("s", 3), ("s", 9), 0], excused=True).lost == 1
    with pytest.raises(LossError, match="no report between"):
        judged([("s", 3), ("s", 9), 0], excused=True)
