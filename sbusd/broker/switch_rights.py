"""What the switch is told of a client, so that it holds it to the rules and rights of its user by itself.

It is found once for each set of credentials, and not for each connection: every rule would be looked at again.
"""

from __future__ import annotations

from typing import NamedTuple

from sbusd.broker.policy import Policy
from sbusd.dataplane.contract import Sight
from sbusd.protocol.credentials import Credentials

MAX_KNOWN = 1_024
"""Sets of credentials that are remembered; with one more, all are forgotten."""

MAX_ALLOWED = 64
"""Patterns that are remembered as allowed for one set of credentials; with one more, all of that set are forgotten."""

MAX_ALLOWED_BYTES = 64
"""Longest pattern that is remembered: all sets together take less than 10 MiB."""


class Placement(NamedTuple):
    """What holds for all clients with the same user and groups: see :meth:`sbusd.dataplane.contract.Switch.set_party`."""

    blocks_others: bool
    rules: int
    sight: Sight


class Placements:
    """The placements under one policy; make another object when the policy or the *owners* change."""

    def __init__(self, policy: Policy, owners: frozenset[int]) -> None:
        self._policy = policy
        self._owners = owners
        self.known: dict[tuple[int, int, frozenset[int]], tuple[Placement, set[bytes]]] = {}
        """By uid, gid and groups: the placement, and ordinary patterns to which such a client may subscribe."""

    def of(self, who: Credentials) -> Placement:
        """Return what holds for a client with the credentials *who*; its pid does not matter."""
        return self.find(who)[0]

    def find(self, who: Credentials) -> tuple[Placement, set[bytes]]:
        """Return the placement of *who*, and the patterns that such a client is known to be allowed, which the caller adds."""
        key = who.uid, who.gid, who.groups
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            found = self.known[key] = self._find(who), set()
        return found

    def _find(self, who: Credentials) -> Placement:
        """Return what the policy says of *who*."""
        policy = self._policy
        sight = Sight.ALL if who.uid in self._owners else Sight.PRESENCE if policy.may_see_presence(who) else Sight.OWN
        return Placement(policy.may_block_others(who), policy.publish_mask(who), sight)
