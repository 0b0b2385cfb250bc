"""Quotas of users, with a clock that the test sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.credentials import Credentials
from sbus_programs.config.settings import QuotaOverride, QuotaSettings
from sbus_programs.config.users import SubordinateIds, SubordinateRange
from sbusd.broker.quota_refusal import Quota, QuotaRefusal
from sbusd.broker.quota_usage import PATTERN_BYTES, SEGMENT_BYTES
from sbusd.broker.quotas import RESERVED_DESCRIPTORS, TOLERATED_PACKETS, TOLERATED_RATE, UserQuotas

ALICE, BOB, ROOT = Credentials(11, 1000, 1000), Credentials(22, 1001, 1001), Credentials(1, 0, 0)


class Clock:
    """A clock that the test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Users(UserQuotas):
    """Quotas with many descriptors and the clock of the test."""

    def __init__(self, settings: QuotaSettings | None = None, descriptors: int = 1 << 20) -> None:
        self.clock = Clock()
        super().__init__(settings or QuotaSettings(), frozenset({0}), descriptors, clock=self.clock)
        self.next = 1

    def enter(self, who: Credentials) -> int:
        """Admit one more connection, and return its number."""
        number, self.next = self.next, self.next + 1
        assert self.admit(number, who) is None
        return number

    def attempt(self, who: Credentials) -> QuotaRefusal | None:
        """Try one more connection."""
        self.next += 1
        return self.admit(self.next - 1, who)


def refused(refusal: QuotaRefusal | None) -> tuple[Quota, str]:
    """Return the quota and the reason of a refusal."""
    assert refusal is not None
    return refusal.quota, refusal.reason


# -- users that come back


def test_a_user_that_left_nothing_comes_back_as_a_new_one() -> None:
    users = Users(QuotaSettings(connections=2, connection_rate=1, connection_burst=2))
    before = users[users.enter(ALICE)]
    users.clock.now += 10
    users.leave(1)
    assert len(users.absent) == 0
    after = users[users.enter(ALICE)]
    assert (after.descriptors, after.subscriptions, dict(after.refused)) == (1, 0, {})
    assert after.limits == before.limits
    assert users.attempt(ALICE) is None
    assert refused(users.attempt(ALICE))[0] is Quota.CONNECTION_RATE


def test_new_quotas_and_other_groups_apply_to_a_user_that_comes_back() -> None:
    users = Users(QuotaSettings(connections=2))
    first = users.enter(ALICE)
    users.clock.now += 1_000
    users.leave(first)
    users.configure(QuotaSettings(connections=1, overrides=(QuotaOverride(groups=(7,), connections=5),)), frozenset({0}))
    second = users.enter(ALICE)
    assert users[second].limits.connections == 1
    users.clock.now += 1_000
    users.leave(second)
    assert users[users.enter(ALICE._replace(groups=frozenset({7})))].limits.connections == 5


# -- connections


def test_a_user_at_its_connection_quota_is_refused_and_another_is_admitted() -> None:
    users = Users(QuotaSettings(connections=2))
    first, _ = users.enter(ALICE), users.enter(ALICE)
    refusal = users.attempt(ALICE)
    assert refused(refusal) == (Quota.CONNECTIONS, "connections: 2 of 2 used by user 1000")
    assert refusal is not None
    assert refusal.disconnects
    users.enter(BOB)
    users.leave(first)
    users.enter(ALICE)
    assert users.attempt(ALICE) is not None


def test_a_refused_connection_uses_nothing() -> None:
    users = Users(QuotaSettings(connections=1))
    connection = users.enter(ALICE)
    assert users.attempt(ALICE) is not None
    users.leave(users.next - 1)
    assert users[connection].descriptors == 1


def test_refused_attempts_count_and_are_forgiven_with_time() -> None:
    users = Users(QuotaSettings(connections=1, connection_rate=2, connection_burst=10))
    users.enter(ALICE)
    kinds = [refused(users.attempt(ALICE))[0] for _ in range(11)]
    assert kinds == [Quota.CONNECTIONS] * 9 + [Quota.CONNECTION_RATE] * 2
    users.clock.now += 0.5
    assert refused(users.attempt(ALICE))[0] is Quota.CONNECTIONS
    words = "connection_rate: 10 of 10 attempts used by user 1000; 2 more each second"
    assert refused(users.attempt(ALICE)) == (Quota.CONNECTION_RATE, words)
    assert users.attempt(BOB) is None


def test_reconnecting_refills_no_bucket() -> None:
    users = Users(QuotaSettings(connection_rate=1, connection_burst=10))
    for _ in range(10):
        users.leave(users.enter(ALICE))
    assert (len(users), len(users.absent)) == (0, 1)
    assert refused(users.attempt(ALICE))[0] is Quota.CONNECTION_RATE
    users.clock.now += 1
    assert users.attempt(ALICE) is None


def test_an_absent_user_with_full_buckets_is_forgotten() -> None:
    users = Users(QuotaSettings(connection_rate=1, connection_burst=10))
    users.leave(users.enter(ALICE))
    assert len(users.absent) == 1
    users.clock.now += 1
    users.leave(users.enter(BOB))
    assert len(users.absent) == 1
    assert users.absent.forgotten_early == 0


def test_absent_users_are_bounded_and_early_removals_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.broker.quota_usage.MAX_ABSENT_USERS", 5)
    users = Users()
    for uid in range(2000, 2020):
        users.leave(users.enter(Credentials(1, uid, uid)))
    assert len(users.absent) == 5
    assert users.absent.forgotten_early == 15


def test_a_user_gets_half_of_the_free_descriptors() -> None:
    users = Users(descriptors=RESERVED_DESCRIPTORS + 96)  # 42 for all but owners
    taken: list[int] = []
    for who in (ALICE, BOB, Credentials(33, 1002, 1002), ROOT):
        while (refusal := users.attempt(who)) is None and len(taken) < 100:
            taken.append(who.uid)
            if who is ROOT and taken.count(0) == 30:
                break
    assert [taken.count(uid) for uid in (1000, 1001, 1002)] == [21, 10, 5]
    assert taken.count(0) == 30
    words = "connections: 21 of 0 used by user 1000, half of the descriptors that other users leave free, of those that a restart can keep"
    assert refused(users.attempt(ALICE)) == (Quota.CONNECTIONS, words)
    assert refusal is None


def test_all_users_but_owners_leave_a_restart_half_of_the_descriptors() -> None:
    users = Users(QuotaSettings(connections=4_096, connection_burst=100_000), descriptors=1_024)
    for uid in range(61_000, 61_080):
        while users.attempt(Credentials(1, uid, uid)) is None:
            pass
    held = users.descriptors
    assert 1_024 * 0.4 < held < 1_024 / 2 - 32
    for _ in range(40):
        assert users.attempt(ROOT) is None


RANGES = SubordinateIds([SubordinateRange(100_000, 65_536, 1000), SubordinateRange(200_000, 10, 0), SubordinateRange(300_000, 10, None)])


def test_a_user_and_its_containers_have_the_quotas_of_one_user() -> None:
    users = Users(QuotaSettings(connections=3, subscriptions=2, connection_burst=10, connection_rate=1))
    users.subordinates = RANGES
    inside = users.enter(Credentials(7, 100_000, 100_000))
    outside = users.enter(ALICE)
    assert users.charge_subscription(inside, b"a") is None
    assert users.charge_subscription(outside, b"a") is None
    assert refused(users.charge_subscription(inside, b"a")) == (Quota.SUBSCRIPTIONS, "subscriptions: 2 of 2 used by user 1000")
    last = users.enter(Credentials(8, 165_535, 5))
    for who in (ALICE, Credentials(9, 100_001, 5)):
        assert refused(users.attempt(who)) == (Quota.CONNECTIONS, "connections: 3 of 3 used by user 1000")
    assert len(users) == 1
    assert users.attempt(Credentials(9, 165_536, 5)) is None  # not in the range
    assert users[inside].limits is users[outside].limits is users[last].limits
    for connection in (inside, outside, last):
        users.leave(connection)
    assert users.descriptors == 1
    for uid in range(100_002, 100_007):  # the burst is that of one user, too
        users.leave(users.enter(Credentials(1, uid, uid)))
    assert refused(users.attempt(ALICE))[0] is Quota.CONNECTION_RATE


def test_containers_of_an_owner_have_no_more_than_other_users() -> None:
    users = Users(QuotaSettings(connections=2))
    users.subordinates = RANGES
    assert [users.charged_uid(uid) for uid in (0, 200_000, 200_009, 300_004, 1000, 231)] == [0, 200_000, 200_000, 300_000, 1000, 231]
    for uid in (200_001, 200_002):
        users.enter(Credentials(1, uid, uid))
    assert users.attempt(Credentials(1, 200_003, 5)) is not None


def test_a_watched_process_uses_one_more_descriptor() -> None:
    users = Users(QuotaSettings(connections=2))
    connection = users.enter(ALICE)
    assert users.charge_descriptor(connection) is None
    assert refused(users.attempt(ALICE))[1] == "connections: 2 of 2 used by user 1000"
    assert refused(users.charge_descriptor(connection))[1].endswith("; watching a process needs one")
    users.release_descriptor(connection)
    other = users.enter(ALICE)
    assert users.charge_descriptor(other) is not None
    users.leave(connection)
    assert users.charge_descriptor(other) is None
    users.leave(other)
    assert users.descriptors == 0


# -- subscriptions


def test_subscriptions_of_all_connections_are_charged_to_their_user() -> None:
    users = Users(QuotaSettings(subscriptions=3))
    first, second, other = users.enter(ALICE), users.enter(ALICE), users.enter(BOB)
    for connection in (first, first, second):
        assert users.charge_subscription(connection, b"a") is None
    refusal = users.charge_subscription(second, b"a")
    assert refused(refusal) == (Quota.SUBSCRIPTIONS, "subscriptions: 3 of 3 used by user 1000")
    assert refusal is not None
    assert not refusal.disconnects
    assert users.charge_subscription(other, b"a") is None
    users.release_subscription(first, b"a")
    assert users.charge_subscription(second, b"a") is None
    users.leave(second)
    assert (users[first].subscriptions, users[first].pattern_bytes) == (1, SEGMENT_BYTES + PATTERN_BYTES + 4)


def test_the_bytes_of_patterns_have_a_quota_of_their_own() -> None:
    users = Users(QuotaSettings(pattern_bytes=3 * SEGMENT_BYTES + 2 * PATTERN_BYTES + 40))
    connection = users.enter(ALICE)
    assert users.charge_subscription(connection, b"a/2345") is None
    for pattern in (b"12345", b"/"):
        words = f"pattern_bytes: {2 * SEGMENT_BYTES + PATTERN_BYTES + 24} of {3 * SEGMENT_BYTES + 2 * PATTERN_BYTES + 40} used by user 1000"
        assert refused(users.charge_subscription(connection, pattern)) == (Quota.PATTERN_BYTES, words)
    assert users.charge_subscription(connection, b"1.34") is None


def test_segments_depend_on_the_separator() -> None:
    users = UserQuotas(QuotaSettings(), frozenset(), 1 << 20, separator=b".")
    users.admit(1, ALICE)
    users.charge_subscription(1, b"a.b/c")
    assert users[1].pattern_bytes == 2 * SEGMENT_BYTES + PATTERN_BYTES + 20
    users.release_subscription(1, b"a.b/c")
    assert users[1].pattern_bytes == 0


# -- control packets


def test_control_packets_beyond_the_tolerance_disconnect() -> None:
    users = Users(QuotaSettings(control_rate=1, control_burst=10))
    loud, quiet = users.enter(ALICE), users.enter(ALICE)
    assert [users.charge_control(loud) for _ in range(10)] == [None] * 10
    refusals = [users.charge_control(loud) for _ in range(TOLERATED_PACKETS + 1)]
    assert refused(refusals[0]) == (Quota.CONTROL_RATE, "control_rate: 10 of 10 packets used by user 1000; 1 more each second")
    assert [each.disconnects for each in refusals if each] == [False] * TOLERATED_PACKETS + [True]
    # The other connection of that user is refused too, but has its own tolerance.
    refusal = users.charge_control(quiet)
    assert refusal is not None
    assert not refusal.disconnects
    users.clock.now += 1
    assert users.charge_control(loud) is None
    forgiven = [users.charge_control(loud) for _ in range(TOLERATED_RATE + 1)]
    assert [each.disconnects for each in forgiven if each] == [False] * TOLERATED_RATE + [True]


# -- records


def test_the_record_names_the_largest_holders_and_is_rate_limited() -> None:
    users = Users(QuotaSettings(subscriptions=10))
    connections = [users.enter(ALICE._replace(pid=pid)) for pid in (5, 6, 7, 8)]
    for connection, count in zip(connections, (1, 4, 2, 3), strict=True):
        for _ in range(count):
            assert users.charge_subscription(connection, b"a") is None
    refusals = [users.charge_subscription(connections[0], b"a") for _ in range(20)]
    assert refusals[0] is not None
    assert refusals[0].holders == "pid 6: 4, pid 8: 3, pid 7: 2"
    assert [each.unrecorded for each in refusals if each] == [1] * 5 + [0] * 15
    users.clock.now += 1
    last = users.charge_subscription(connections[0], b"a")
    assert last is not None
    assert last.unrecorded == 16
    assert users[connections[0]].refused == {"subscriptions": 21}


def test_holders_of_connections_are_processes() -> None:
    users = Users(QuotaSettings(connections=5))
    for pid in (5, 6, 6, 6, 7):
        users.enter(ALICE._replace(pid=pid))
    refusal = users.attempt(ALICE)
    assert refusal is not None
    assert refusal.holders == "pid 6: 3, pid 5: 1, pid 7: 1"


def test_without_connections_no_holder_is_named() -> None:
    users = Users(QuotaSettings(connection_rate=1, connection_burst=10))
    for _ in range(10):
        users.leave(users.enter(ALICE))
    refusal = users.attempt(ALICE)
    assert refusal is not None
    assert refusal.holders == "none"


# -- who is there, and other settings


def test_pages_of_users() -> None:
    users = Users()
    for uid in (5, 0, 9, 7):
        users.enter(Credentials(1, uid, uid))

    def page(uid: int | None, after: int, size: int) -> tuple[list[int], int | None]:
        found, following = users.page(uid, after, size)
        return [each.uid for each in found], following

    assert page(None, -1, 3) == ([0, 5, 7], 7)
    assert page(None, 7, 3) == ([9], None)
    assert page(None, -1, 4) == ([0, 5, 7, 9], None)
    assert page(7, -1, 4) == ([7], None)
    assert page(7, 7, 4) == ([], None)


def test_new_settings_apply_to_present_users_and_refill_nothing() -> None:
    users = Users(QuotaSettings(subscriptions=2, connection_rate=1, connection_burst=10))
    connection = users.enter(ALICE)
    for _ in range(2):
        users.charge_subscription(connection, b"a")
    for _ in range(9):
        users.leave(users.enter(BOB))
    changed = QuotaSettings(connection_rate=1, connection_burst=20, overrides=(QuotaOverride(users=(1000,), subscriptions=1),))
    assert [account.uid for account in users.configure(changed, frozenset({0}))] == [1000]
    assert refused(users.charge_subscription(connection, b"a"))[1] == "subscriptions: 2 of 1 used by user 1000"
    assert [users.attempt(BOB) is None for _ in range(12)] == [True] * 11 + [False]
    users.configure(changed, frozenset({0, 1000}))
    assert users[connection].is_owner


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3)), max_size=120))
def test_usage_is_consistent_after_any_sequence(steps: list[tuple[int, int, int]]) -> None:
    users = Users(QuotaSettings(connections=4, subscriptions=6, pattern_bytes=4 * (SEGMENT_BYTES + PATTERN_BYTES)))
    live: list[int] = []
    stored: list[tuple[int, bytes]] = []
    for action, who, size in steps:
        if action == 0:
            if users.attempt(Credentials(who, 1000 + who % 2, 0)) is None:
                live.append(users.next - 1)
        elif action == 1 and live:
            gone = live.pop(who % len(live))
            users.leave(gone)
            stored = [each for each in stored if each[0] != gone]
        elif action == 2 and live:
            connection = live[who % len(live)]
            if users.charge_subscription(connection, b"x" * size) is None:
                stored.append((connection, b"x" * size))
        elif action == 3 and stored:
            users.release_subscription(*stored.pop(who % len(stored)))
        elif action == 4 and live:
            users.charge_control(live[who % len(live)])
    for account in users.page(None, -1, 10)[0]:
        own = [each for each in stored if users[each[0]] is account]
        assert account.subscriptions == len(own) <= 6
        assert account.pattern_bytes == sum(4 * len(pattern) + SEGMENT_BYTES + PATTERN_BYTES for _, pattern in own)
        assert account.pattern_bytes <= 4 * (SEGMENT_BYTES + PATTERN_BYTES)
        assert account.descriptors == len(account.connections) <= 4
    assert sum(len(account.connections) for account in users.page(None, -1, 10)[0]) == len(live)
    for connection in live:
        users.leave(connection)
    assert len(users) == users.descriptors == 0
