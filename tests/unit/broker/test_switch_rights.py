"""What the switch is told of a client: found once for each set of credentials, and forgotten with the policy."""

from __future__ import annotations

from unittest.mock import patch

from sbusd.broker.access import AccessRules
from sbusd.broker.admission import BusOwnership
from sbusd.broker.policy import Policy
from sbusd.broker.switch_rights import MAX_ALLOWED, MAX_ALLOWED_BYTES, MAX_CREDENTIALS, SwitchRights, SwitchRightsCache
from sbusd.config.rules import PolicyRule, RightsSettings, Subjects
from sbusd.config.settings import DaemonSettings
from sbusd.dataplane.contract import Sight
from sbusd.protocol.credentials import Credentials
from tests.support.parlour import MakeParlour
from tests.support.wire import error_code

ALICE = Credentials(10, 1000, 100, frozenset({27}))
POLICY = Policy(
    (PolicyRule(keys="a/", publish="deny", groups=(27,)), PolicyRule(keys="b/", publish="deny")),
    RightsSettings(presence=Subjects(users=(1000,)), block_others=Subjects(groups=(27,))),
)


def test_users_groups_and_owners_decide() -> None:
    cache = SwitchRightsCache(POLICY, frozenset({0}))
    assert cache.of(ALICE) == SwitchRights(True, 0b11, Sight.PRESENCE)
    assert cache.of(ALICE._replace(groups=frozenset())) == SwitchRights(False, 0b10, Sight.PRESENCE)
    assert cache.of(ALICE._replace(gid=27, groups=frozenset())) == SwitchRights(True, 0b11, Sight.PRESENCE)
    assert cache.of(ALICE._replace(uid=1001)) == SwitchRights(True, 0b11, Sight.OWN)
    assert cache.of(ALICE._replace(uid=0)) == SwitchRights(True, 0b11, Sight.ALL)


def test_the_rules_are_looked_at_once_for_all_connections_of_a_user() -> None:
    cache = SwitchRightsCache(POLICY, frozenset())
    with patch.object(Policy, "publish_mask", autospec=True, side_effect=Policy.publish_mask) as looked:
        found = {cache.of(ALICE._replace(pid=pid)) for pid in range(1, 100)}
    assert len(found) == 1
    assert looked.call_count == 1


def test_many_users_do_not_take_memory_for_ever() -> None:
    cache = SwitchRightsCache(POLICY, frozenset())
    for uid in range(3 * MAX_CREDENTIALS):
        assert cache.of(ALICE._replace(uid=uid)).sight is (Sight.PRESENCE if uid == 1000 else Sight.OWN)
        assert len(cache.known) <= MAX_CREDENTIALS


CLOSED = PolicyRule(keys="lab/", subscribe="deny", groups=(27,))
OWNERSHIP = BusOwnership(0, None, frozenset({0}))


def test_what_one_user_is_allowed_opens_nothing_to_another_nor_after_new_rules(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(policy=(CLOSED,)))
    free, same_user, closed_out = parlour.guest(uid=1000), parlour.guest(uid=1000, groups=frozenset({27})), parlour.guest(uid=1001, gid=27)
    for _ in range(2):
        free.subscribe(b"lab/x")
        assert free.barrier() == []
        for each in (same_user, closed_out):
            each.subscribe(b"lab/x")
            assert [error_code(packet) for packet in each.barrier()] == ["EPERM"]
    parlour.broker.reconfigure(DaemonSettings(policy=(PolicyRule(keys="lab/", subscribe="deny"),)), OWNERSHIP)
    free.subscribe(b"lab/x")
    assert [error_code(packet) for packet in free.barrier()] == ["EPERM"]
    parlour.broker.reconfigure(DaemonSettings(), OWNERSHIP)
    for each in (free, same_user, closed_out):
        each.subscribe(b"lab/x")
        assert each.barrier() == []


def test_a_rule_is_looked_at_once_for_a_pattern_and_user_and_a_secret_each_time(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(policy=(CLOSED,)))
    with patch.object(AccessRules, "subscription", autospec=True, side_effect=AccessRules.subscription) as looked:
        for pid in range(1, 10):
            guest = parlour.guest(uid=1000, pid=pid)
            guest.subscribe(b"lab/x")
            assert guest.barrier() == []
        assert looked.call_count == 1
        other = parlour.guest(uid=1000, pid=77)
        for pattern in (b"!/cred//1000//x", b"!/cred//1000//x"):
            other.subscribe(pattern)
        assert other.barrier() == []
        assert looked.call_count == 3


def test_many_patterns_do_not_take_memory_for_ever(make_parlour: MakeParlour) -> None:
    parlour = make_parlour()
    guest = parlour.guest(uid=1000)
    for number in range(3 * MAX_ALLOWED):
        guest.subscribe(b"%d" % number)
        guest.subscribe(b"%d/" % number + MAX_ALLOWED_BYTES * b"x")
        assert guest.barrier() == []
    allowed = parlour.broker._roster[guest.connection].allowed
    assert 0 < len(allowed) <= MAX_ALLOWED
    assert max(map(len, allowed)) <= MAX_ALLOWED_BYTES
