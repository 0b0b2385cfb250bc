"""Which subscriptions stand."""

from __future__ import annotations

from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.schema import Row
from sbusd.recorder.subscription_snapshot import SubscriptionSnapshot
from tests.support.records import NOON


def happened(kind: Kind, conn: int | None, pattern: str | None = None) -> Row:
    return Row(NOON, 0, kind, pattern, conn, uid=1000 + (conn or 0))


def known(standing: SubscriptionSnapshot) -> set[tuple[int | None, str | None]]:
    rows = list(standing.rows(NOON + 5))
    assert len(rows) == len(standing)
    assert all((row.kind, row.ts, row.uid) == (Kind.STANDING, NOON + 5, 1000 + (row.conn or 0)) for row in rows)
    return {(row.conn, row.key) for row in rows}


def test_what_was_subscribed_stands_until_it_ends() -> None:
    standing = SubscriptionSnapshot()
    for conn, pattern in [(1, "a"), (2, "a"), (1, "a"), (None, "x")]:
        standing.note(happened(Kind.SUBSCRIBE, conn, pattern))
    assert not standing.knows(happened(Kind.STANDING, 1, "b"))
    standing.note(happened(Kind.STANDING, 1, "b"))
    assert [standing.knows(happened(Kind.STANDING, *each)) for each in ((1, "b"), (2, "b"), (3, "a"), (None, "x"))] == [True, *[False] * 3]
    assert known(standing) == {(1, "a"), (1, "b"), (2, "a")}
    standing.note(happened(Kind.UNSUBSCRIBE, 1, "a"))
    standing.note(happened(Kind.UNSUBSCRIBE, 1, "a"))
    standing.note(happened(Kind.UNSUBSCRIBE, 9, "a"))
    standing.note(happened(Kind.MESSAGE, 1, "b"))
    assert known(standing) == {(1, "b"), (2, "a")}
    standing.note(happened(Kind.DISCONNECT, 1))
    standing.note(happened(Kind.DISCONNECT, 9))
    assert known(standing) == {(2, "a")}
    standing.clear()
    assert known(standing) == set()


def test_what_finds_no_room_is_counted() -> None:
    standing = SubscriptionSnapshot(most=2)
    for number in range(5):
        standing.note(happened(Kind.SUBSCRIBE, number, "a"))
    assert (len(standing), standing.forgotten) == (2, 3)
    standing.note(happened(Kind.DISCONNECT, 0))
    standing.note(happened(Kind.SUBSCRIBE, 7, "b"))
    assert known(standing) == {(1, "a"), (7, "b")}
