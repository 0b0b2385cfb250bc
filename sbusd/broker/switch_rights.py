"""The rights of a client that the switch enforces itself.

They are determined once for each set of credentials, not for each connection, because that reads every rule.
"""

from __future__ import annotations

from typing import NamedTuple

from sbusd.broker.policy import Policy
from sbusd.dataplane.contract import Sight
from sbusd.protocol.credentials import Credentials

MAX_CREDENTIALS = 1_024
"""Maximum number of sets of credentials in the cache. When it is full, it is emptied."""

MAX_ALLOWED = 64
"""Maximum number of allowed patterns that are cached for one set of credentials. When this is full, it is emptied."""

MAX_ALLOWED_BYTES = 64
"""Maximum length of a cached pattern. All sets together take less than 10 MiB."""


class SwitchRights(NamedTuple):
    """The rights of all clients with the same user and groups: see :meth:`sbusd.dataplane.contract.Switch.set_party`."""

    blocks_others: bool
    rules: int
    sight: Sight


class SwitchRightsCache:
    """The rights under one policy. Create another cache when the policy or the *owners* change."""

    def __init__(self, policy: Policy, owners: frozenset[int]) -> None:
        self._policy = policy
        self._owners = owners
        self.known: dict[tuple[int, int, frozenset[int]], tuple[SwitchRights, set[bytes]]] = {}
        """By uid, gid and groups: the rights, and ordinary patterns that such a client may subscribe to."""

    def of(self, who: Credentials) -> SwitchRights:
        """Return the rights of a client with the credentials *who*. Its pid does not matter."""
        return self.find(who)[0]

    def find(self, who: Credentials) -> tuple[SwitchRights, set[bytes]]:
        """Return the rights of *who*, and the cached patterns that such a client may subscribe to. The caller adds patterns."""
        key = who.uid, who.gid, who.groups
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MAX_CREDENTIALS:
                self.known.clear()
            found = self.known[key] = self._determine(who), set()
        return found

    def _determine(self, who: Credentials) -> SwitchRights:
        """Return the rights of *who* by the policy."""
        policy = self._policy
        sight = Sight.ALL if who.uid in self._owners else Sight.PRESENCE if policy.may_see_presence(who) else Sight.OWN
        return SwitchRights(policy.may_block_others(who), policy.publish_mask(who), sight)
