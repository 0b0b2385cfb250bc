"""What the switch is told of a client: found once for each set of credentials, and forgotten with the policy."""

from __future__ import annotations

from unittest.mock import patch

from sbusd.config.rules import PolicyRule, RightsSettings, Subjects
from sbusd.daemon.contract import Sight
from sbusd.daemon.placement import MAX_KNOWN, Placement, Placements
from sbusd.daemon.policy import Policy
from sbusd.protocol.credentials import Credentials

ALICE = Credentials(10, 1000, 100, frozenset({27}))
POLICY = Policy(
    (PolicyRule(keys="a/", publish="deny", groups=(27,)), PolicyRule(keys="b/", publish="deny")),
    RightsSettings(presence=Subjects(users=(1000,)), block_others=Subjects(groups=(27,))),
)


def test_users_groups_and_owners_decide() -> None:
    placements = Placements(POLICY, frozenset({0}))
    assert placements.of(ALICE) == Placement(True, 0b11, Sight.PRESENCE)
    assert placements.of(ALICE._replace(groups=frozenset())) == Placement(False, 0b10, Sight.PRESENCE)
    assert placements.of(ALICE._replace(gid=27, groups=frozenset())) == Placement(True, 0b11, Sight.PRESENCE)
    assert placements.of(ALICE._replace(uid=1001)) == Placement(True, 0b11, Sight.OWN)
    assert placements.of(ALICE._replace(uid=0)) == Placement(True, 0b11, Sight.ALL)


def test_the_rules_are_looked_at_once_for_all_connections_of_a_user() -> None:
    placements = Placements(POLICY, frozenset())
    with patch.object(Policy, "publish_mask", autospec=True, side_effect=Policy.publish_mask) as looked:
        found = {placements.of(ALICE._replace(pid=pid)) for pid in range(1, 100)}
    assert len(found) == 1
    assert looked.call_count == 1


def test_many_users_do_not_take_memory_for_ever() -> None:
    placements = Placements(POLICY, frozenset())
    for uid in range(3 * MAX_KNOWN):
        assert placements.of(ALICE._replace(uid=uid)).sight is (Sight.PRESENCE if uid == 1000 else Sight.OWN)
        assert len(placements.known) <= MAX_KNOWN
