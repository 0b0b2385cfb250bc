"""Accounts of users, by a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.broker.quotas import PATIENCE_PACKETS, PATIENCE_RATE, RESERVED_DESCRIPTORS, Accounts, Excess, Quota
from sbusd.broker.usage import PATTERN_BYTES, SEGMENT_BYTES
from sbusd.config.quotas import QuotaOverride, QuotaSettings
from sbusd.protocol.credentials import Credentials

ALICE, BOB, ROOT = Credentials(11, 1000, 1000), Credentials(22, 1001, 1001), Credentials(1, 0, 0)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Bank(Accounts):
    """Accounts with many descriptors and the test's own clock."""

    def __init__(self, settings: QuotaSettings | None = None, descriptors: int = 1 << 20) -> None:
        self.clock = Clock()
        super().__init__(settings or QuotaSettings(), frozenset({0}), descriptors, clock=self.clock)
        self.next = 1

    def enter(self, who: Credentials) -> int:
        """Admit one more connection, and return its number."""
        number, self.next = self.next, self.next + 1
        assert self.admit(number, who) is None
        return number

    def attempt(self, who: Credentials) -> Excess | None:
        """Try one more connection."""
        self.next += 1
        return self.admit(self.next - 1, who)


def refused(excess: Excess | None) -> tuple[Quota, str]:
    """Return what an excess says."""
    assert excess is not None
    return excess.quota, excess.words


# -- connections


def test_a_user_at_its_connections_is_told_which_quota_and_another_is_not() -> None:
    bank = Bank(QuotaSettings(connections=2))
    first, _ = bank.enter(ALICE), bank.enter(ALICE)
    excess = bank.attempt(ALICE)
    assert refused(excess) == (Quota.CONNECTIONS, "connections: 2 of 2 used by user 1000")
    assert excess is not None
    assert excess.ends
    bank.enter(BOB)
    bank.leave(first)
    bank.enter(ALICE)
    assert bank.attempt(ALICE) is not None


def test_a_connection_that_was_refused_holds_nothing() -> None:
    bank = Bank(QuotaSettings(connections=1))
    connection = bank.enter(ALICE)
    assert bank.attempt(ALICE) is not None
    bank.leave(bank.next - 1)
    assert bank[connection].descriptors == 1


def test_attempts_count_though_they_are_refused_and_come_back_with_time() -> None:
    bank = Bank(QuotaSettings(connections=1, connection_rate=2, connection_burst=10))
    bank.enter(ALICE)
    kinds = [refused(bank.attempt(ALICE))[0] for _ in range(11)]
    assert kinds == [Quota.CONNECTIONS] * 9 + [Quota.CONNECTION_RATE] * 2
    bank.clock.now += 0.5
    assert refused(bank.attempt(ALICE))[0] is Quota.CONNECTIONS
    words = "connection_rate: 10 of 10 attempts used by user 1000; 2 more each second"
    assert refused(bank.attempt(ALICE)) == (Quota.CONNECTION_RATE, words)
    assert bank.attempt(BOB) is None


def test_to_leave_and_come_back_fills_no_bucket() -> None:
    bank = Bank(QuotaSettings(connection_rate=1, connection_burst=10))
    for _ in range(10):
        bank.leave(bank.enter(ALICE))
    assert (len(bank), bank.absent()) == (0, 1)
    assert refused(bank.attempt(ALICE))[0] is Quota.CONNECTION_RATE
    bank.clock.now += 1
    assert bank.attempt(ALICE) is None


def test_a_user_who_has_nothing_left_is_forgotten() -> None:
    bank = Bank(QuotaSettings(connection_rate=1, connection_burst=10))
    bank.leave(bank.enter(ALICE))
    assert bank.absent() == 1
    bank.clock.now += 1
    bank.leave(bank.enter(BOB))
    assert bank.absent() == 1
    assert bank.forgotten_early == 0


def test_the_absent_are_bounded_and_who_is_forgotten_early_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.broker.usage.MAX_ABSENT", 5)
    bank = Bank()
    for uid in range(2000, 2020):
        bank.leave(bank.enter(Credentials(1, uid, uid)))
    assert bank.absent() == 5
    assert bank.forgotten_early == 15


def test_half_of_the_descriptors_that_others_leave() -> None:
    bank = Bank(descriptors=RESERVED_DESCRIPTORS + 40)
    taken: list[int] = []
    for who in (ALICE, BOB, Credentials(33, 1002, 1002), ROOT):
        while (excess := bank.attempt(who)) is None and len(taken) < 100:
            taken.append(who.uid)
            if who is ROOT and taken.count(0) == 30:
                break
    assert [taken.count(uid) for uid in (1000, 1001, 1002)] == [20, 10, 5]
    assert taken.count(0) == 30
    words = "connections: 20 of 0 used by user 1000, half of the descriptors that other users leave free"
    assert refused(bank.attempt(ALICE)) == (Quota.CONNECTIONS, words)
    assert excess is None


def test_a_process_that_is_watched_is_one_descriptor_more() -> None:
    bank = Bank(QuotaSettings(connections=2))
    connection = bank.enter(ALICE)
    assert bank.charge_descriptor(connection) is None
    assert refused(bank.attempt(ALICE))[1] == "connections: 2 of 2 used by user 1000"
    assert refused(bank.charge_descriptor(connection))[1].endswith("; watching a process needs one")
    bank.release_descriptor(connection)
    other = bank.enter(ALICE)
    assert bank.charge_descriptor(other) is not None
    bank.leave(connection)
    assert bank.charge_descriptor(other) is None
    bank.leave(other)
    assert bank.descriptors == 0


# -- subscriptions


def test_subscriptions_of_all_connections_are_one_user_s() -> None:
    bank = Bank(QuotaSettings(subscriptions=3))
    first, second, other = bank.enter(ALICE), bank.enter(ALICE), bank.enter(BOB)
    for connection in (first, first, second):
        assert bank.charge_subscription(connection, b"a") is None
    excess = bank.charge_subscription(second, b"a")
    assert refused(excess) == (Quota.SUBSCRIPTIONS, "subscriptions: 3 of 3 used by user 1000")
    assert excess is not None
    assert not excess.ends
    assert bank.charge_subscription(other, b"a") is None
    bank.release_subscription(first, b"a")
    assert bank.charge_subscription(second, b"a") is None
    bank.leave(second)
    assert (bank[first].subscriptions, bank[first].pattern_bytes) == (1, SEGMENT_BYTES + PATTERN_BYTES + 4)


def test_bytes_of_patterns_are_bounded_apart() -> None:
    bank = Bank(QuotaSettings(pattern_bytes=3 * SEGMENT_BYTES + 2 * PATTERN_BYTES + 40))
    connection = bank.enter(ALICE)
    assert bank.charge_subscription(connection, b"a/2345") is None
    for pattern in (b"12345", b"/"):
        words = f"pattern_bytes: {2 * SEGMENT_BYTES + PATTERN_BYTES + 24} of {3 * SEGMENT_BYTES + 2 * PATTERN_BYTES + 40} used by user 1000"
        assert refused(bank.charge_subscription(connection, pattern)) == (Quota.PATTERN_BYTES, words)
    assert bank.charge_subscription(connection, b"1.34") is None


def test_what_a_segment_is_depends_on_the_separator() -> None:
    bank = Accounts(QuotaSettings(), frozenset(), 1 << 20, separator=b".")
    bank.admit(1, ALICE)
    bank.charge_subscription(1, b"a.b/c")
    assert bank[1].pattern_bytes == 2 * SEGMENT_BYTES + PATTERN_BYTES + 20
    bank.release_subscription(1, b"a.b/c")
    assert bank[1].pattern_bytes == 0


# -- control packets


def test_control_packets_beyond_the_rate_are_refused_and_after_long_end_the_connection() -> None:
    bank = Bank(QuotaSettings(control_rate=1, control_burst=10))
    loud, quiet = bank.enter(ALICE), bank.enter(ALICE)
    assert [bank.charge_control(loud) for _ in range(10)] == [None] * 10
    told = [bank.charge_control(loud) for _ in range(PATIENCE_PACKETS + 1)]
    assert refused(told[0]) == (Quota.CONTROL_RATE, "control_rate: 10 of 10 packets used by user 1000; 1 more each second")
    assert [each.ends for each in told if each] == [False] * PATIENCE_PACKETS + [True]
    # The other connection of that user is refused too, but has its own patience.
    excess = bank.charge_control(quiet)
    assert excess is not None
    assert not excess.ends
    bank.clock.now += 1
    assert bank.charge_control(loud) is None
    forgiven = [bank.charge_control(loud) for _ in range(PATIENCE_RATE + 1)]
    assert [each.ends for each in forgiven if each] == [False] * PATIENCE_RATE + [True]


# -- records


def test_the_record_names_who_holds_most_and_is_not_made_each_time() -> None:
    bank = Bank(QuotaSettings(subscriptions=10))
    connections = [bank.enter(ALICE._replace(pid=pid)) for pid in (5, 6, 7, 8)]
    for connection, count in zip(connections, (1, 4, 2, 3), strict=True):
        for _ in range(count):
            assert bank.charge_subscription(connection, b"a") is None
    told = [bank.charge_subscription(connections[0], b"a") for _ in range(20)]
    assert told[0] is not None
    assert told[0].holders == "pid 6: 4, pid 8: 3, pid 7: 2"
    assert [each.untold for each in told if each] == [1] * 5 + [0] * 15
    bank.clock.now += 1
    last = bank.charge_subscription(connections[0], b"a")
    assert last is not None
    assert last.untold == 16
    assert bank[connections[0]].refused == {"subscriptions": 21}


def test_connections_are_held_by_processes() -> None:
    bank = Bank(QuotaSettings(connections=5))
    for pid in (5, 6, 6, 6, 7):
        bank.enter(ALICE._replace(pid=pid))
    excess = bank.attempt(ALICE)
    assert excess is not None
    assert excess.holders == "pid 6: 3, pid 5: 1, pid 7: 1"


def test_without_a_holder_none_is_named() -> None:
    bank = Bank(QuotaSettings(connection_rate=1, connection_burst=10))
    for _ in range(10):
        bank.leave(bank.enter(ALICE))
    excess = bank.attempt(ALICE)
    assert excess is not None
    assert excess.holders == "none"


# -- who is there, and other settings


def test_pages_of_users() -> None:
    bank = Bank()
    for uid in (5, 0, 9, 7):
        bank.enter(Credentials(1, uid, uid))

    def page(uid: int | None, after: int, size: int) -> tuple[list[int], int | None]:
        found, following = bank.page(uid, after, size)
        return [each.uid for each in found], following

    assert page(None, -1, 3) == ([0, 5, 7], 7)
    assert page(None, 7, 3) == ([9], None)
    assert page(None, -1, 4) == ([0, 5, 7, 9], None)
    assert page(7, -1, 4) == ([7], None)
    assert page(7, 7, 4) == ([], None)


def test_other_settings_hold_for_those_who_are_there_and_forgive_nothing() -> None:
    bank = Bank(QuotaSettings(subscriptions=2, connection_rate=1, connection_burst=10))
    connection = bank.enter(ALICE)
    for _ in range(2):
        bank.charge_subscription(connection, b"a")
    for _ in range(9):
        bank.leave(bank.enter(BOB))
    changed = QuotaSettings(connection_rate=1, connection_burst=20, overrides=(QuotaOverride(users=(1000,), subscriptions=1),))
    assert [account.uid for account in bank.configure(changed, frozenset({0}))] == [1000]
    assert refused(bank.charge_subscription(connection, b"a"))[1] == "subscriptions: 2 of 1 used by user 1000"
    assert [bank.attempt(BOB) is None for _ in range(12)] == [True] * 11 + [False]
    bank.configure(changed, frozenset({0, 1000}))
    assert bank[connection].is_owner


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3)), max_size=120))
def test_the_books_balance_whatever_is_done(steps: list[tuple[int, int, int]]) -> None:
    bank = Bank(QuotaSettings(connections=4, subscriptions=6, pattern_bytes=4 * (SEGMENT_BYTES + PATTERN_BYTES)))
    live: list[int] = []
    stored: list[tuple[int, bytes]] = []
    for action, who, size in steps:
        if action == 0:
            if bank.attempt(Credentials(who, 1000 + who % 2, 0)) is None:
                live.append(bank.next - 1)
        elif action == 1 and live:
            gone = live.pop(who % len(live))
            bank.leave(gone)
            stored = [each for each in stored if each[0] != gone]
        elif action == 2 and live:
            connection = live[who % len(live)]
            if bank.charge_subscription(connection, b"x" * size) is None:
                stored.append((connection, b"x" * size))
        elif action == 3 and stored:
            bank.release_subscription(*stored.pop(who % len(stored)))
        elif action == 4 and live:
            bank.charge_control(live[who % len(live)])
    for account in bank.page(None, -1, 10)[0]:
        own = [each for each in stored if bank[each[0]] is account]
        assert account.subscriptions == len(own) <= 6
        assert account.pattern_bytes == sum(4 * len(pattern) + SEGMENT_BYTES + PATTERN_BYTES for _, pattern in own)
        assert account.pattern_bytes <= 4 * (SEGMENT_BYTES + PATTERN_BYTES)
        assert account.descriptors == len(account.holdings) <= 4
    assert sum(len(account.holdings) for account in bank.page(None, -1, 10)[0]) == len(live)
    for connection in live:
        bank.leave(connection)
    assert len(bank) == bank.descriptors == 0
